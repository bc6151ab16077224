"""Bundles of commits in one file: `bundle create`, `verify` and `unbundle`."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import CommandCall, RepoCall, complete_ref
from tensorrepo.cli.remotes import LimitRate, here, report_moves, somebody
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.transfer.bundle import Bundle, BundleReport, write_bundle
from tensorrepo.repo.transfer.pace import TransferTotals
from tensorrepo.repo.transfer.receive import HistorySource
from tensorrepo.verbs import transfer

FileArgument = Annotated[str, Argument(metavar="FILE", help="The bundle.")]


def bundle_create_command(
    call: RepoCall,
    file: FileArgument,
    refs: Annotated[
        list[str] | None,
        Argument(
            metavar="REF|A..B|^REF",
            help="Branches and tags; else main. ^REF: the receiver has it.",
            autocompletion=complete_ref,
        ),
    ] = None,
    everything: Annotated[
        bool, Option("--all", help="All branches, tags, runs and registered versions.")
    ] = False,
    force: Annotated[bool, Option("--force", help="Overwrite FILE.")] = False,
    limit_rate: LimitRate = None,
) -> None:
    """Write commits, and all data that they lead to, to one file.

    For machines that no network joins, and for archives: `clone` and `fetch` read it as they read a
    repository. A..B leaves out what A has.

    Examples:
        tensorrepo bundle create team.bundle
        tensorrepo bundle create whole.bundle --all
        tensorrepo bundle create week.bundle v1..main
    """
    session, path = call.session, call.path(file)
    core = session.repository
    wanted, without = transfer.bundle_refs(
        core, refs or (), everything=everything, head=session.head
    )
    with output.progress(f"writing {path.name}") as advance:

        def progress(totals: TransferTotals) -> None:
            advance(totals.bytes, totals.known_bytes)

        made = write_bundle(
            HistorySource.of(core), path, wanted, without=without, overwrite=force,
            limit=transfer.rate_limit(limit_rate), progress=progress,
        )  # fmt: skip
    _report(call, made, "Wrote")


def bundle_verify_command(call: CommandCall, file: FileArgument) -> None:
    """Read all of a bundle, and check every object and what it leads to.

    Examples:
        tensorrepo bundle verify team.bundle
    """
    bundle = Bundle(call.path(file))
    try:
        with output.progress(f"reading {bundle.path.name}") as advance:
            found = bundle.verify(lambda done: advance(done, bundle.path.stat().st_size))
    finally:
        bundle.close()
    _report(call, found, "Whole:")


def bundle_unbundle_command(
    call: RepoCall,
    file: FileArgument,
    named: Annotated[
        str | None,
        Option("--as", metavar="NAME", help="What its branches are called: NAME/BRANCH."),
    ] = None,
    everything: Annotated[
        bool, Option("--all", help="All branches, tags, runs and registered versions.")
    ] = False,
    limit_rate: LimitRate = None,
) -> None:
    """Bring what is in a bundle here; its branches are then called NAME/BRANCH.

    NAME is that of the file, if none is given. `tensorrepo merge NAME/main` brings it into yours.
    --all brings all refs under their own names: into an empty repository, or an older copy.

    Examples:
        tensorrepo bundle unbundle week.bundle
        tensorrepo bundle unbundle /mnt/stick/week.bundle --as week
        tensorrepo bundle unbundle whole.bundle --all
    """
    if everything and named is not None:
        raise InvalidInputError("--all brings refs under their own names: no --as with it")
    at, path = here(call), call.path(file)
    with output.progress(f"reading {path.name}") as advance:

        def progress(totals: TransferTotals) -> None:
            advance(totals.bytes, totals.known_bytes)

        options = transfer.transfer_options(
            call.machine, somebody(call), limit_rate=limit_rate, progress=progress
        )
        report = transfer.unbundle(at, path, options, named=named, everything=everything)
    report_moves(call, report, "Nothing new")


def _report(call: CommandCall, made: BundleReport, what: str) -> None:
    value: dict[str, Any] = {
        "file": str(made.path),
        "refs": made.contents.refs,
        "needs": made.contents.needs,
        "objects": made.objects,
        "bytes": made.bytes,
    }
    size = output.bytes_text(made.bytes)
    lines = [f"{what} {made.path}: {output.counted(made.objects, 'object')}, {size}."]
    lines += [f"  {ref} {commit:.12}" for ref, commit in made.contents.refs.items()]
    if made.contents.needs:
        needs = ", ".join(f"{commit:.12}" for commit in made.contents.needs)
        lines.append(f"It needs what the receiver has: {needs}.")
    call.answer(value, *lines)
