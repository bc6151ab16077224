"""`log`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from tensorrepo.cli import output
from tensorrepo.cli.commits import RefNames, commit_json, headline, names_of, whole
from tensorrepo.cli.common import JsonOption, RepoOption, session_of, sides, split_words
from tensorrepo.cli.complete import complete_ref_or_entry
from tensorrepo.cli.graph import graph_lines
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history import walk
from tensorrepo.workspace.session import SPACES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.repo.commits import Commit
    from tensorrepo.repo.ids import Digest
    from tensorrepo.workspace.session import Session


def log_command(
    context: Context,
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="REF|A..B -- PATH",
            help="From where; only commits that changed these.",
            autocompletion=complete_ref_or_entry,
        ),
    ] = None,
    graph: Annotated[bool, Option("--graph", help="Draw how commits join.")] = False,
    oneline: Annotated[bool, Option("--oneline", help="A line for each commit.")] = False,
    limit: Annotated[int | None, Option("-n", "--limit", min=0, help="At most so many.")] = None,
    everything: Annotated[bool, Option("--all", help="From every branch and tag.")] = False,
    void: Annotated[
        bool, Option("--void", help="Show entries of the log that had no effect, and why.")
    ] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show commits, the newest first.

    Examples:
        tensorrepo log --graph --all
        tensorrepo log v1..main
        tensorrepo log main -- datasets/photos
        tensorrepo log -n 5 --json
    """
    session = session_of(context, repo)
    if void:
        _show_void(session, as_json=as_json)
        return
    revisions, paths = split_words(context, session, words)
    history = islice(_history(session, revisions, paths, everything=everything), limit)
    names = names_of(session)
    if as_json:
        output.json_lines(commit_json(digest, commit, names) for digest, commit in history)
    elif graph:
        _show_graph(history, names)
    else:
        for digest, commit in history:
            shown = headline if oneline else whole
            output.styled(shown(digest, commit, names))


def _history(
    session: Session, revisions: list[str], paths: tuple[str, ...], *, everything: bool
) -> Iterator[tuple[Digest, Commit]]:
    repository = session.repository
    tips, hidden = _tips(session, revisions, everything=everything)
    # `photos` may mean `datasets/photos`: whichever of them a commit changed.
    wanted = [full for path in paths for full in (path, *(f"{space}/{path}" for space in SPACES))]
    for digest, commit in walk(repository.objects, tips, hidden=hidden):
        touched = (repository.touches(digest, commit, path.strip("/")) for path in wanted)
        if not wanted or any(touched):
            yield digest, commit


def _tips(
    session: Session, revisions: list[str], *, everything: bool
) -> tuple[list[Digest], list[Digest]]:
    """Where to begin, and the commits whose history is left out."""
    if everything:
        if revisions:
            raise InvalidInputError("--all is every branch and tag: give no revision beside it")
        return sorted(set(session.repository.log.refresh().state.refs.values())), []
    if (both := sides(revisions)) is not None:
        return [session.resolve(both[1]).digest], [session.resolve(both[0]).digest]
    if len(revisions) > 1:
        raise InvalidInputError(
            f"one revision or A..B, got {' '.join(revisions)}. Paths come after --"
        )
    return [session.resolve(revisions[0] if revisions else None).digest], []


def _show_graph(history: Iterator[tuple[Digest, Commit]], names: RefNames) -> None:
    drawn: dict[str, Commit] = {}

    def remembered() -> Iterator[tuple[str, tuple[str, ...]]]:
        for digest, commit in history:
            drawn[digest] = commit
            yield digest, commit.parents

    for digest, drawing in graph_lines(remembered()):
        if digest is None:
            output.line(drawing)
        else:
            commit = drawn.pop(digest)
            output.styled(f"{drawing} {headline(digest, commit, names)}")  # type: ignore[arg-type]


def _show_void(session: Session, *, as_json: bool) -> None:
    log = session.repository.log
    void = [
        {"record": record.gen, "txn": each.txn, "kind": each.kind, "reason": each.reason}
        for record, verdicts in log.judged(1, log.refresh().generation + 1)
        for each in verdicts
        if not each.applied
    ]
    texts = ("record {record}: {kind} {txn:.12} {reason}".format_map(each) for each in void)
    output.answer(void, *texts, as_json=as_json)
