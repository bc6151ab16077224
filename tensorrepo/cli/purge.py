"""Erasure of rows and columns from all history: `purge`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import RepoCall, WhereOption, complete_entry
from tensorrepo.cli.sdk_handle import handle_of
from tensorrepo.repo.changes.purge import PurgeRecord, purge_records
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.tables import moment_text
from tensorrepo.verbs.purge import PurgePlan, PurgeReport, plan_purge, purge, purge_request

DryRunOption = Annotated[bool, Option("--dry-run", help="Tell what would go, and change nothing.")]


def purge_command(
    call: RepoCall,
    names: Annotated[
        list[str] | None,
        Argument(metavar="[NAME...]", help="Datasets, or models.", autocompletion=complete_entry),
    ] = None,
    where: WhereOption = None,
    row: Annotated[
        list[str] | None, Option("--row", metavar="ID", help="This row; may be repeated.")
    ] = None,
    column: Annotated[
        list[str] | None, Option("--column", metavar="COL", help="This column; may be repeated.")
    ] = None,
    tensor: Annotated[
        list[str] | None,
        Option("--tensor", metavar="TENSOR", help="This tensor of models; may be repeated."),
    ] = None,
    message: Annotated[str | None, Option("-m", "--message", help="Why, for the log.")] = None,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
    list_: Annotated[bool, Option("--list", help="List what was purged, and why.")] = False,
) -> None:
    """Erase rows or columns of datasets, or tensors of models, from all history, for good.

    As when a person asks for it. Rows are found by a condition in every version, also in those that
    deleted them, and go by their ids from all versions, branches, views and stashes. Commits keep
    their names, and show the data without what was purged. Then the old objects are deleted. It
    cannot be taken back. What it does not reach, such as clones and models, is named.

    Examples:
        tensorrepo purge people --where "email = 'ann@example.org'" --dry-run
        tensorrepo purge people --where "email = 'ann@example.org'" -m "request 17"
        tensorrepo purge people --column phone -m "never agreed to" --yes
        tensorrepo purge net --tensor embed.weight -m "learned from request 17" --yes
    """
    if list_:
        _list(call)
        return
    request = purge_request(
        names or (), where=where, rows=row or (), columns=column or (), tensors=tensor or ()
    )
    context = handle_of(call).context
    with output.row_progress("looking", "versions") as advance:
        plan = plan_purge(context, request, progress=lambda _, done, all_: advance(done, all_))
    if dry_run:
        call.answer({**_planned(plan), "dry_run": True}, *_plan_lines(plan))
        return
    if message is None:
        raise InvalidInputError("say why, for the log keeps it: -m TEXT")
    if not yes and not plan.is_empty:
        output.lines(_plan_lines(plan) if not call.as_json else ())
        if not output.confirmed("purge this for good?"):
            raise InvalidInputError("nothing was purged: --yes says that you mean it")
    with output.row_progress("purging", "objects") as advance:
        report = purge(
            context, request, reason=message, progress=lambda _, done, all_: advance(done, all_)
        )
    call.answer(_done(report), *_report_lines(report))


def _list(call: RepoCall) -> None:
    records = list(purge_records(call.session.repository))
    columns = {
        "record": lambda one: one.generation,
        "date": lambda one: moment_text(one.time_ns),
        "actor": lambda one: one.actor,
        "objects": lambda one: len(one.erased),
        "reason": lambda one: one.reason,
    }
    if call.as_json:
        output.json_lines(map(_recorded, records))
    else:
        call.show(records, columns)


def _recorded(record: PurgeRecord) -> dict[str, Any]:
    return {
        "record": record.generation,
        "time": record.time_ns,
        "actor": record.actor,
        "reason": record.reason,
        "objects": len(record.erased),
        "twins": {old: new for old, new in record.erased.items() if new is not None},
        "where": sorted(set(record.where.values())),
    }


def _planned(plan: PurgePlan) -> dict[str, Any]:
    return asdict(plan) | {"versions": dict(plan.versions)}


def _done(report: PurgeReport) -> dict[str, Any]:
    gc = report.gc
    return {
        **_planned(report.plan),
        "dry_run": False,
        "record": None if report.record is None else report.record.generation,
        "objects": 0 if report.record is None else len(report.record.erased),
        "deleted_keys": 0 if gc is None else gc.deleted_keys,
        "cached": report.cached,
    }


def _plan_lines(plan: PurgePlan) -> Iterator[str]:
    yield from plan.to_table().lines


def _report_lines(report: PurgeReport) -> Iterator[str]:
    yield from report.to_table().lines
    if report.gc is not None:
        size = output.bytes_text(report.gc.dead_bytes)
        yield f"deleted {output.counted(report.gc.deleted_keys, 'file')} of {size} in the store"
    if report.cached:
        yield f"and {output.counted(report.cached, 'file')} in caches of this machine"
