"""Plan of an input pipeline at the terminal: which of its steps pay offline, measured here."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import (
    ColumnsOption,
    RepoCall,
    WhereOption,
    column_names,
    complete_place,
)
from tensorrepo.cli.sdk_handle import streamed_handle
from tensorrepo.formats.dataset.streaming.collate.decode import Decode
from tensorrepo.formats.dataset.streaming.options import Ranks, Sampling
from tensorrepo.formats.dataset.streaming.pipeline_plan import SECONDS
from tensorrepo.repo.errors import InvalidInputError


def plan_pipeline_command(
    call: RepoCall,
    entry: Annotated[
        str,
        Argument(metavar="[REF:]DATASET", help="A dataset or view.", autocompletion=complete_place),
    ],
    columns: ColumnsOption = None,
    where: WhereOption = None,
    decode: Annotated[
        int | None, Option(min=1, help="Decode images, cut to squares of so many pixels.")
    ] = None,
    random_cuts: Annotated[
        bool, Option("--random", help="With --decode: cut at random places, as for training.")
    ] = False,
    batch_size: Annotated[int, Option(min=1, help="Rows of a batch.")] = 256,
    step_ms: Annotated[
        float, Option(min=0, help="Milliseconds that a training step takes; 0: as fast as it goes.")
    ] = 0.0,
    link: Annotated[
        str | None,
        Option(metavar="SIZE", help="What storage will bring a second: 500MB; else measured."),
    ] = None,
    cores: Annotated[
        int | None, Option(min=1, help="Cores that will decode; else those of this machine.")
    ] = None,
    seconds: Annotated[float, Option(min=0.1, help="How long to measure the link.")] = SECONDS,
) -> None:
    """Say which steps of a training's input would pay if they were done once, before it.

    A sample of rows is read, decoded, and stored in other ways: smaller pictures, decoded ones,
    pictures compressed anew. For each way the table has bytes and processor time of a row, and the
    rows a second that a loop would get from them. What a transform in Python costs tells
    `stream.plan_pipeline()`.

    Examples:
        tensorrepo plan-pipeline photos --decode 224
        tensorrepo plan-pipeline v1:photos --decode 224 --random --step-ms 120 --link 200MB
    """
    if random_cuts and decode is None:
        raise InvalidInputError("--random says where pictures are cut: give --decode SIZE with it")
    how = None
    if decode is not None:
        how = Decode(size=decode, fit="random" if random_cuts else "crop", flip=random_cuts)
    stream = streamed_handle(call, entry).stream(
        batch_size=batch_size,
        columns=column_names(columns),
        sampling=Sampling(where=where),
        ranks=Ranks(rank=0, world_size=1),
        decode=how,
    )
    with output.working(f"measuring {entry}"):
        plan = stream.plan_pipeline(
            step_seconds=step_ms / 1e3, link=link, cores=cores, seconds=seconds
        )
    call.answer(plan.to_dict(), str(plan))
