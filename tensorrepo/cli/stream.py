"""`stream`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, session_of
from tensorrepo.cli.complete import complete_place
from tensorrepo.connect import parse_size, world
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.dataset.stream import stream
from tensorrepo.formats.dataset.streaming.ordering.plan import Shuffle
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects import Kind

ORDERS: dict[str, Shuffle] = {
    "pages": "pages", "global": "global", "buffer": "buffer", "no": False,
}  # fmt: skip


def stream_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[REF:]DATASET", autocompletion=complete_place)],
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 256,
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="Only this column; may be repeated.")
    ] = None,
    shuffle: Annotated[str, typer.Option(help="The order: pages, global, buffer or no.")] = "pages",
    window: Annotated[str, typer.Option(help="Decoded bytes to shuffle in.")] = "512MB",
    seed: Annotated[int, typer.Option(help="Of the order.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="How often to go through it.")] = 1,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say how it would be read, and read nothing.")
    ] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stream a dataset as training would, verified, and show how fast.

    Examples:
        tensorrepo stream photos
        tensorrepo stream v1:photos --shuffle no --batch-size 1024
        tensorrepo stream photos --explain
    """
    if shuffle not in ORDERS:
        raise InvalidInputError(f"no order {shuffle!r}: there are {', '.join(ORDERS)}")
    session = session_of(context, repo)
    _, path, entry = session.find(name)
    if entry.kind is not Kind.DATASET:
        raise InvalidInputError(f"{path} is a {entry.kind.label}: only datasets stream")
    rank, size = world(session.machine.environment)
    dataset = open_dataset(session.repository.objects, entry.digest, session.outside)
    reader = stream(
        dataset,
        batch_size=batch_size,
        columns=columns or None,
        shuffle=ORDERS[shuffle],
        window_bytes=parse_size(window),
        seed=seed,
        rank=rank,
        world=size,
    )
    if explain:
        told = reader.explain()
        output.json_value(asdict(told)) if as_json else output.line(str(told))
        return
    rows = 0
    begun = time.perf_counter()
    with output.working(f"streaming {path}"):
        for epoch in range(epochs):
            reader.set_epoch(epoch)
            for batch in reader:
                rows += len(batch.rows)
    seconds = time.perf_counter() - begun
    if as_json:
        output.json_value({"rows": rows, "seconds": seconds, "stats": asdict(reader.stats())})
        return
    output.line(f"{rows:,} rows in {seconds:.2f} s, {rows / max(seconds, 1e-9):,.0f} rows/s")
    found = reader.stats()
    output.line(
        f"planned {found.plan_seconds:.2f} s, fetched {found.fetch_seconds:.2f} s, gathered "
        f"{found.gather_seconds:.2f} s, waited {found.waited_seconds:.2f} s"
    )
