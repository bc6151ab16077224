"""What may the word be that the user began to type? For the shell's completion.

Called by the shell at every press of the tab key: it never prints, never raises, and looks only
at a repository that answers at once.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from typer import Context

from tensorrepo.cli.common import started_in
from tensorrepo.repo.errors import Error
from tensorrepo.repo.refs import BRANCHES, TAGS
from tensorrepo.repo.registry import registered
from tensorrepo.repo.revisions import split_path
from tensorrepo.repo.trees import iterate
from tensorrepo.workspace.session import SPACES, Session, open_session

if TYPE_CHECKING:
    from collections.abc import Iterable

MANY = 1000


def complete_branch(context: Context, incomplete: str) -> list[str]:
    """Names of branches."""
    return _starting(_refs(context, (BRANCHES,)), incomplete)


def complete_tag(context: Context, incomplete: str) -> list[str]:
    """Names of tags."""
    return _starting(_refs(context, (TAGS,)), incomplete)


def complete_ref(context: Context, incomplete: str) -> list[str]:
    """Branches, tags and HEAD; after ``A..`` the other side."""
    before, dots, last = incomplete.rpartition("..")
    return [f"{before}{dots}{name}" for name in _starting(_all_refs(context), last)]


def complete_registered(context: Context, incomplete: str) -> list[str]:
    """Names of registered models."""
    try:
        names = list(registered(_session(context).repository.log.refresh()))
    except (Error, OSError):
        names = []
    return _starting(names, incomplete)


def complete_entry(context: Context, incomplete: str) -> list[str]:
    """Entries of HEAD, and what is staged."""
    return _starting(_entries(context, None), incomplete)


def complete_place(context: Context, incomplete: str) -> list[str]:
    """``[REF:]PATH``: entries of HEAD, refs with a colon, and after it entries of that commit."""
    ref, path = split_path(incomplete)
    if path is not None:
        return [f"{ref}:{name}" for name in _starting(_entries(context, ref), path)]
    refs = [f"{name}:" for name in _all_refs(context)]
    return _starting([*_entries(context, None), *refs], incomplete)


def complete_ref_or_entry(context: Context, incomplete: str) -> list[str]:
    """Refs first, entries after them."""
    return complete_ref(context, incomplete) + complete_entry(context, incomplete)


def _all_refs(context: Context) -> list[str]:
    return ["HEAD", *_refs(context, (BRANCHES, TAGS))]


def _refs(context: Context, spaces: tuple[str, ...]) -> list[str]:
    try:
        refs = _session(context).repository.log.refresh().state.refs
    except (Error, OSError):
        return []
    return [ref.split("/", 1)[1] for ref in sorted(refs) if ref.startswith(spaces)]


def _entries(context: Context, ref: str | None) -> list[str]:
    try:
        session = _session(context)
        tree = session.resolve(ref).commit.tree
        paths = [path for path, _ in islice(iterate(session.repository.objects, tree), MANY)]
        staged = list(session.workspace.staging().entries) if session.workspace and not ref else []
    except (Error, OSError):
        return []
    names = list(dict.fromkeys([*paths, *staged]))
    short = [path.partition("/")[2] for path in names if path.partition("/")[0] in SPACES]
    return [*names, *short]


def _session(context: Context) -> Session:
    return open_session(started_in(context), context.params.get("repo"))


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
