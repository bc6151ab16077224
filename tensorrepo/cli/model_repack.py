"""`model repack`."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Exit, Option

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, model_path, session_of
from tensorrepo.cli.complete import complete_entry
from tensorrepo.cli.exits import NOTHING_TO_DO
from tensorrepo.formats.model.repack.run import ALPHA, DEPTH, Wishes, repack_models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorrepo.formats.model.repack.run import Repacked


def model_repack_command(
    context: Context,
    paths: Annotated[
        list[str] | None,
        Argument(metavar="[PATH...]", help="These alone.", autocompletion=complete_entry),
    ] = None,
    alpha: Annotated[
        float, Option("--alpha", help="What a read may cost, of what a whole one costs.")
    ] = ALPHA,
    depth: Annotated[
        int, Option("--depth", help="How many bases a read may pass through.")
    ] = DEPTH,
    dry_run: Annotated[bool, Option("--dry-run", help="Measure and tell; store nothing.")] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store models anew in the fewest bytes such that reads stay quick; commits do not change.

    Models of all commits that a ref leads to are looked at. The old packs stay where they are, and
    become reclaimable where nothing else reaches them.

    Examples:
        tensorrepo model repack --dry-run
        tensorrepo model repack
        tensorrepo model repack net --alpha 3 --depth 4
    """
    session = session_of(context, repo)
    wishes = Wishes(
        session.author(),
        time.time_ns(),
        alpha=alpha,
        depth=depth,
        paths=tuple(map(model_path, paths or ())),
        dry_run=dry_run,
    )
    with ExitStack() as bars:
        # Time that this thread works: what runs beside it on the machine changes no plan.
        done = repack_models(session.repository, wishes, time.thread_time, _bar_each(bars))
    figures = output.fields(
        "models", "tensors", "present_bytes", "planned_bytes", "stored_bytes", "superseded",
        "reclaimable", "reclaimable_bytes",
    )  # fmt: skip
    output.answer(
        figures(done) | {"dry_run": dry_run}, *_repack_lines(done, dry_run=dry_run), as_json=as_json
    )
    if not done.changed and not dry_run:
        raise Exit(NOTHING_TO_DO)


def _bar_each(bars: ExitStack) -> Callable[[str, int, int], None]:
    """A bar for each step, one after the other."""
    shown: dict[str, Callable[[int], None]] = {}

    def advance(what: str, done: int, size: int) -> None:
        if what not in shown:
            bars.close()
            shown[what] = bars.enter_context(output.progress(f"{what} tensors", size))
        shown[what](done)

    return advance


def _repack_lines(done: Repacked, *, dry_run: bool) -> Iterator[str]:
    """What was done, for people."""
    looked = f"{output.counted(done.models, 'model')}, {output.counted(done.tensors, 'tensor')}"
    present, planned = (output.bytes_text(one) for one in (done.present_bytes, done.planned_bytes))
    if dry_run:
        yield f"{looked}: {present} that nothing else reaches could be about {planned}"
    elif not done.changed:
        yield f"{looked}: nothing to save; {present} would be about {planned}"
    else:
        yield f"{looked}: {output.bytes_text(done.stored_bytes)} in place of {present}"
        freed = output.bytes_text(done.reclaimable_bytes)
        packs = output.counted(len(done.reclaimable), "pack")
        yield f"{freed} in {packs} are reached by nothing any more"
