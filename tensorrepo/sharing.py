"""Exchange with other repositories, for Python: `clone`, and what `Repository` offers of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tensorrepo.connect import connect, is_url
from tensorrepo.context import Context
from tensorrepo.formats.common.arguments import text, whole
from tensorrepo.repo.changes.merge_branches import MergeOutcome
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.transfer.bundle import BundleReport, write_bundle
from tensorrepo.repo.transfer.exchange import TransferReport
from tensorrepo.repo.transfer.pace import TransferTotals
from tensorrepo.repo.transfer.promotion import Promotion
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tensorrepo.repository import Repository
from tensorrepo.sdk import open_repository
from tensorrepo.this_machine import machine
from tensorrepo.verbs import transfer
from tensorrepo.verbs.transfer import CloneRequest, Here
from tensorrepo.workspace.state import config_beside

Progress = Callable[[TransferTotals], None]


def clone(
    url: str | Path,
    to: str | Path,
    *,
    mirror: bool = False,
    lazy: bool = False,
    branch: str | None = None,
    depth: int | None = None,
    author: str | None = None,
    log: str | None = None,
    limit_rate: int | str | None = None,
    progress: Progress = lambda _: None,
) -> Repository:
    """Copy a repository, or a bundle, with all its history, and open the copy.

    A clone that was cut off goes on when it is called again. Credentials come from the environment.

    Args:
        url: the origin, which the copy calls ``origin``.
        to: folder or URL of the copy; in Python it gets no workspace.
        mirror: copy the log, too, and take no commits: a backup, which `Repository.fetch` follows.
        lazy: leave data at the origin until it is read.
        branch: the branch that it begins with; None: main.
        depth: so many commits of each branch at most; tags are left out then.
        author: ``Name <email>`` of commits, as for `open`.
        log: the SQL database that the log of the copy is to be in, as for `init`.
        limit_rate: bytes a second at most, such as ``"10MB"``.
        progress: receives the counters of the transfer, on any thread.

    Raises:
        ConflictError: there is another repository already.
        CorruptError: something is damaged at the origin. Nothing of that was stored.

    Example:
        ``tr.clone("s3://bucket/team", "/data/team", lazy=True)``
    """
    here, target = machine(), str(to)
    if mirror and (lazy or branch is not None or depth is not None):
        raise InvalidInputError("a mirror is a whole copy: no lazy=, branch= or depth= with it")
    if mirror and log is not None:
        raise InvalidInputError("a mirror keeps its copy of the log itself: no log= with it")
    depth = None if depth is None else whole("depth", depth, 1)
    place = target if is_url(target) else str(here.path(Path(target).expanduser()))
    request = CloneRequest(
        str(url),
        place,
        workspace=False,
        mirror=mirror,
        lazy=lazy,
        branch=branch,
        depth=depth,
        log=log,
    )
    options = transfer.transfer_options(
        here, author or "somebody", limit_rate=limit_rate, progress=progress
    )
    transfer.clone(here, request, options).core.close()
    return open_repository(place, author=author, log=log)


def here_of(context: Context) -> Here:
    """The repository of a handle, and the settings that name its remotes."""
    return Here(context.machine, context.core, config_beside(context.url))


def fetch(
    context: Context,
    remote: str | None,
    refs: Sequence[str],
    *,
    tags: bool,
    prune: bool,
    depth: int | None,
    unshallow: bool,
    limit_rate: int | str | None,
    progress: Progress,
) -> TransferReport:
    """See `Repository.fetch`."""
    options = _options(context, limit_rate, progress)
    depth = None if depth is None else whole("depth", depth, 1)
    return transfer.fetch(
        here_of(context), remote, options, specs=tuple(refs), tags=tags, prune=prune,
        depth=depth, unshallow=unshallow,
    )  # fmt: skip


def fetch_data(
    context: Context, limit_rate: int | str | None, progress: Progress
) -> TransferTotals:
    """See `Repository.fetch_data`."""
    return transfer.fetch_data(here_of(context), _options(context, limit_rate, progress))


def push(
    context: Context,
    remote: str | None,
    refs: Sequence[str],
    *,
    force: bool,
    lease: bool,
    tags: bool,
    limit_rate: int | str | None,
    progress: Progress,
) -> TransferReport:
    """See `Repository.push`."""
    options = _options(context, limit_rate, progress)
    return transfer.push(
        here_of(context), remote, tuple(refs), options, force=force, lease=lease, tags=tags
    )


def pull(
    context: Context,
    remote: str | None,
    branch: str,
    limit_rate: int | str | None,
    progress: Progress,
) -> MergeOutcome:
    """See `Repository.pull`."""
    options = _options(context, limit_rate, progress)
    branch = text("branch", branch)
    return transfer.pull(here_of(context), remote, branch, options, author=context.author)[1]


def promote(
    context: Context,
    path: str,
    to: str | Path,
    *,
    ref: str,
    named: str | None,
    branch: str,
    message: str | None,
    limit_rate: int | str | None,
) -> Promotion:
    """See `Repository.promote`."""
    _, url = here_of(context).remotes.find(str(to))
    options = transfer.transfer_options(context.machine, context.author, limit_rate=limit_rate)
    return transfer.promote(
        context.core, connect(url, None, context.machine), text("path", path), text("ref", ref),
        options, named=named, branch=branch, message=message,
    )  # fmt: skip


def bundle(
    context: Context, to: str | Path, refs: Sequence[str], *, everything: bool, overwrite: bool
) -> BundleReport:
    """See `Repository.bundle`."""
    wanted, without = transfer.bundle_refs(context.core, refs, everything=everything)
    source, path = HistorySource.of(context.core), context.machine.path(Path(to).expanduser())
    return write_bundle(source, path, wanted, without=without, overwrite=overwrite)


def _options(context: Context, limit_rate: int | str | None, progress: Progress) -> TransferOptions:
    try:
        actor = context.author
    except InvalidInputError:
        actor = "somebody"  # copying needs no name
    return transfer.transfer_options(
        context.machine, actor, limit_rate=limit_rate, progress=progress
    )
