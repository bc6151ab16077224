"""Garbage collection and expiry of history: `gc`, `expire`."""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Option

from tensorrepo import lazy
from tensorrepo.cli import output
from tensorrepo.cli.options import RepoCall, complete_branch
from tensorrepo.repo.changes.expire import (
    Expiry,
    expire,
    expire_kept,
    parse_keep,
    plan_expiry,
    plan_kept,
)
from tensorrepo.repo.changes.gc_collect import (
    CollectionReport,
    CollectionRules,
    PackingReport,
    collect_garbage,
    plan_collection,
)
from tensorrepo.repo.changes.gc_packs import pack_history
from tensorrepo.repo.changes.moments import parse_span
from tensorrepo.repo.errors import CommitOutcomeUnknown, StorageError
from tensorrepo.repo.ids import Digest

if TYPE_CHECKING:
    from tensorrepo.formats.model.maintenance.worn_packs import WornPack
    from tensorrepo.repo.ids import Digest

SHOWN_REFS = 10
SHOWN_EXPIRED = 30  # branches whose rules give up commits
CUT_OFF: Final = (
    "Nothing that is needed is gone: run `tensorrepo gc` again, which ends what this one began"
)
NEEDS_ROOM: Final = (
    "It writes down what goes before it deletes anything: 16 KiB, and 80 bytes for each object. A "
    "try that fails takes some of that, so free 1 MiB or more at once, such as by "
    "`tensorrepo cache trim 0B` where the caches lie on that disk; then run `tensorrepo gc` again"
)
DryRunOption = Annotated[bool, Option("--dry-run", help="Tell what would go, and change nothing.")]
GraceOption = Annotated[
    str, Option("--grace", metavar="SPAN", help="Spare garbage that is younger.")
]
RetentionOption = Annotated[
    str | None,
    Option("--retention", metavar="SPAN", help="Keep dropped refs so long; else the repository's."),
]


def gc_command(
    call: RepoCall,
    dry_run: DryRunOption = False,
    grace: GraceOption = "3d",
    retention: RetentionOption = None,
    close_leases: Annotated[
        bool, Option("--close-leases", help="Close leases that ran out before the grace.")
    ] = False,
    compact: Annotated[
        bool,
        Option("--compact", help="First pack old history, and what is left of packs that few use."),
    ] = False,
) -> None:
    """Delete what no branch, tag or run leads to.

    Safe while others work: whoever needs what is about to go stores it again, or is told. What
    branches and tags named before they were deleted or reset is kept for the retention; what a
    workspace has staged or stashed, as long as its lease is open. SPAN is a number and s, m, h, d
    or w. A collection that was cut off is ended by the next one.

    Where the rule of a branch says what it keeps (`rule set BRANCH --history`), its other commits
    are given up first, as `expire` does.

    A pack of tensors stays as a whole while a model needs any of it. --compact stores models anew
    of whose packs less than half is used, so that the rest goes; and it puts commits and trees that
    are older than the grace together, some ten thousand in a file, and tells how many. Their names
    stay as they are.

    Examples:
        tensorrepo gc --dry-run
        tensorrepo gc
        tensorrepo gc --retention 2d
    """
    rules = CollectionRules(
        grace_seconds=parse_span(grace),
        retention_seconds=None if retention is None else parse_span(retention),
        close_leases=close_leases,
    )
    worn, repacked = lazy.worn_packs(call.session.repository) if compact else (), None
    if worn and not dry_run:
        options = lazy.RepackOptions(call.session.author(), time.time_ns())
        repacked = lazy.repack_worn(call.session.repository, options, time.thread_time)
    core, now = call.session.repository, time.time_ns()
    if dry_run:
        expired = plan_kept(core, now_ns=now)
    else:
        expired = expire_kept(core, actor=call.session.author(), now_ns=now)
    ends = {end for each in expired for end in each.ends}
    packing = _pack(call, rules) if compact and not dry_run else PackingReport()
    report = _collect(call, rules, dry_run=dry_run, ends=ends)
    value = _document(report) | {"expired": [asdict(each) for each in expired]}
    if compact:
        dead = sum(pack.dead_bytes for pack in worn)
        stored = repacked.stored_bytes if repacked is not None else 0
        value["compact"] = {"packs": len(worn), "dead_bytes": dead, "stored_bytes": stored}
        value["compact"] |= {"history": asdict(packing)}
    shown = expired[:SHOWN_EXPIRED]
    given_up = [line for each in shown for line in _expiry_lines(each, dry_run=dry_run)]
    if len(expired) > len(shown):
        given_up.append(f"and {len(expired) - len(shown):,} more branches: --json names them")
    call.answer(value, *_worn_lines(worn), *given_up, *packing.lines(), *_lines(report))


def expire_command(
    call: RepoCall,
    branch: Annotated[
        str, Argument(metavar="BRANCH", help="The branch.", autocompletion=complete_branch)
    ],
    keep: Annotated[
        str | None,
        Argument(
            metavar="KEEP",
            help="What stays: an age, a number of commits, or both; else what its rule says.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    grace: GraceOption = "3d",
) -> None:
    """Give up the old commits of a branch for good, and collect what only they led to.

    KEEP says what stays: `30d` commits of the last 30 days, `100` the newest hundred, `30d,100`
    both. What other branches and tags lead to stays as well. Nobody can look at, merge from or
    go back to a commit that was given up. `rule set BRANCH --history` says it for good, so that
    each `gc` gives up what is older.

    Examples:
        tensorrepo expire main 30d,100 --dry-run
        tensorrepo expire main 30d,100
    """
    core, now = call.session.repository, time.time_ns()
    rule = None if keep is None else parse_keep(keep)
    rules = CollectionRules(grace_seconds=parse_span(grace))
    if dry_run:
        expiry = plan_expiry(core, branch, rule, now_ns=now)
        call.answer({**asdict(expiry), "dry_run": True}, *_expiry_lines(expiry, dry_run=True))
        return
    expiry = expire(core, branch, rule, actor=call.session.author(), now_ns=now)
    report = _collect(call, rules, dry_run=False) if expiry.ends else None
    value = {**asdict(expiry), "dry_run": False, "gc": report and _document(report)}
    call.answer(value, *_expiry_lines(expiry), *(_lines(report) if report else ()))


def _worn_lines(worn: tuple[WornPack, ...]) -> Iterator[str]:
    if worn:
        dead = output.bytes_text(sum(pack.dead_bytes for pack in worn))
        packs = output.counted(len(worn), "pack")
        yield f"{packs} used by less than half, {dead} of no use"


def _pack(call: RepoCall, rules: CollectionRules) -> PackingReport:
    author = call.session.author()
    with output.row_progress("packing", "objects") as advance, _resumable():
        return pack_history(
            call.session.repository,
            actor=author,
            rules=rules,
            progress=lambda what, done, total: advance(done, total or done, f"{what} objects"),
        )


def _collect(
    call: RepoCall, rules: CollectionRules, *, dry_run: bool, ends: Collection[Digest] = ()
) -> CollectionReport:
    core = call.session.repository
    with output.row_progress("collecting", "objects") as advance:

        def progress(what: str, done: int, total: int) -> None:
            advance(done, total or done, f"{what} objects")

        if dry_run:
            return plan_collection(core, rules=rules, progress=progress, ends=ends)
        author = call.session.author()
        with _resumable():
            return collect_garbage(core, actor=author, rules=rules, progress=progress)


@contextmanager
def _resumable() -> Iterator[None]:
    """Say what to do about a collection that is cut off."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(CUT_OFF) from None
    except CommitOutcomeUnknown as unknown:
        if isinstance(unknown.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt(CUT_OFF) from None
        raise
    except StorageError as error:
        cause = error.__cause__
        is_full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
        output.note(f"the collection was cut off. {NEEDS_ROOM if is_full else CUT_OFF}")
        raise


def _document(report: CollectionReport) -> dict[str, Any]:
    told = asdict(report)
    del told["packing"]  # which stands under "compact", with what became of models
    return told | {"refs": dict(report.refs), "kinds": dict(report.kinds)}


def _lines(report: CollectionReport) -> Iterator[str]:
    size = output.bytes_text
    verb = "would delete" if report.dry_run else "deleted"
    yield f"{verb} {output.counted(report.dead_objects, 'object')} of {size(report.dead_bytes)}"
    for kind, count in report.kinds.items():
        yield f"  {kind:<14} {size(count):>10}"
    yield f"kept {output.counted(report.live_objects, 'object')} of {size(report.live_bytes)}"
    if report.young_objects:
        young = output.counted(report.young_objects, "object")
        yield f"  for the grace  {size(report.young_bytes):>10}, {young}"
    if report.retained:
        yield f"  for the retention: {output.counted(report.retained, 'dropped commit')}"
    held = [(ref, count) for ref, count in report.refs.items() if count]
    if held:
        yield "held by one alone:"
        for ref, count in held[:SHOWN_REFS]:
            yield f"  {size(count):>10}  {ref}"
        if len(held) > SHOWN_REFS:
            yield f"  and {len(held) - SHOWN_REFS:,} more with --json"
    for name in report.closed_leases:
        yield f"closed lease {name}, which ran out"
    if report.foreign_count:
        others = output.counted(report.foreign_count, "file")
        yield f"{others} among the objects are not tensorrepo's, and kept: {report.foreign[0]}"


def _expiry_lines(expiry: Expiry, *, dry_run: bool = False) -> Iterator[str]:
    kept = output.counted(expiry.kept, "commit")
    if not expiry.ends:
        yield f"{expiry.branch} keeps all of its {kept}"
        return
    would = "would keep {}, and give up {:,}" if dry_run else "keeps {}, and gives up {:,}"
    yield f"{expiry.branch} {would.format(kept, expiry.given_up)}"
    if expiry.shortens:
        others = ", ".join(expiry.shortens[:SHOWN_REFS])
        more = len(expiry.shortens) - SHOWN_REFS
        yield f"  their history ends there, too: {others}{f' and {more:,} more' * (more > 0)}"
