"""Streaming of a dataset at the terminal: speed, plan and profile of a training loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import (
    ColumnsOption,
    CommandCall,
    RepoCall,
    WhereOption,
    column_names,
    complete_place,
)
from tensorrepo.connect import world
from tensorrepo.datasets.sql_edit import row_selection
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.streaming.collate.decode import Decode
from tensorrepo.formats.dataset.streaming.options import Ranks, Sampling, StreamOptions
from tensorrepo.formats.dataset.streaming.plan.pages import Shuffle
from tensorrepo.formats.dataset.streaming.profile import SECONDS, Profile, profile
from tensorrepo.formats.dataset.streaming.stream import BatchStream, stream
from tensorrepo.formats.views import live_numbers, open_view
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.workloads import system_cache
from tensorrepo.workspace.session import WorkspaceSession

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

ORDERS: dict[str, Shuffle] = {
    "pages": "pages", "global": "global", "buffer": "buffer", "no": False,
}  # fmt: skip
_WIDTH, _LEFT, _RIGHT, _TOP, _BAR, _GAP = 900, 150, 40, 70, 44, 26
_COLOURS = {"step": "#4c78a8", "prepare": "#f58518", "storage": "#e45756"}
_ROWS = (
    ("synthetic input", ("step",)),
    ("cached input", ("step", "prepare")),
    ("cold input", ("step", "prepare", "storage")),
)
_INK, _PAPER = "#222222", "#ffffff"


def dataset_stream_command(
    call: RepoCall,
    name: Annotated[str, Argument(metavar="[REF:]DATASET", autocompletion=complete_place)],
    batch_size: Annotated[int, Option(min=1, help="Rows of a batch.")] = 256,
    columns: ColumnsOption = None,
    shuffle: Annotated[str, Option(help="The order: pages, global, buffer or no.")] = "pages",
    window: Annotated[str, Option(help="Decoded bytes to shuffle in.")] = "512MB",
    where: WhereOption = None,
    balance: Annotated[
        str | None, Option(help="Classes of this column come equally often.")
    ] = None,
    pack: Annotated[
        int | None, Option(min=1, help="Cut the one column into items of so many elements.")
    ] = None,
    bucket: Annotated[
        str | None, Option(help="Rows of like length in this column come together.")
    ] = None,
    decode: Annotated[
        int | None, Option(min=1, help="Decode images, cut to squares of so many pixels.")
    ] = None,
    scans: Annotated[
        str, Option(help="With --decode: all scans of progressive images, auto, or 1 to 4 bands.")
    ] = "all",
    seed: Annotated[int, Option(help="Of the order.")] = 0,
    epochs: Annotated[int, Option(min=1, help="How often to go through it.")] = 1,
    explain: Annotated[
        bool, Option("--explain", help="Say how it would be read, and read nothing.")
    ] = False,
    profiled: Annotated[
        bool, Option("--profile", help="Say what a loop would wait for: its steps, or the data.")
    ] = False,
    step_ms: Annotated[
        float, Option(min=0, help="With --profile: milliseconds that a training step takes.")
    ] = 0.0,
    seconds: Annotated[
        float, Option(min=0.1, help="With --profile: how long to read from storage.")
    ] = SECONDS,
    picture: Annotated[
        Path | None,
        Option(metavar="FILE", help="With --profile: draw it to this file, such as stalls.png."),
    ] = None,
) -> None:
    """Stream a dataset as training would, verified, and show how fast.

    With --profile the first steps run three times: from storage, again with the data in memory, and
    with one batch over and over. What a pass takes longer than the next is what a loop waits for.

    Examples:
        tensorrepo dataset stream photos
        tensorrepo dataset stream v1:photos --shuffle no --batch-size 1024
        tensorrepo dataset stream photos --explain
        tensorrepo dataset stream photos --where "label == 'cat'" --balance split
        tensorrepo dataset stream texts --columns tokens --pack 2048 --explain
        tensorrepo dataset stream photos --decode 96 --scans auto --explain
        tensorrepo dataset stream photos --decode 224 --profile --step-ms 20 --picture stalls.png
    """
    if shuffle not in ORDERS:
        raise InvalidInputError(f"no order {shuffle!r}: there are {', '.join(ORDERS)}")
    if not profiled and (step_ms or picture is not None):
        raise InvalidInputError("--step-ms and --picture belong to --profile: add it")
    if profiled and explain:
        raise InvalidInputError("--explain reads nothing and --profile reads: give one of them")
    if scans != "all" and decode is None:
        raise InvalidInputError("--scans is about how images are decoded: give --decode SIZE, too")
    session = call.session
    _, path, entry = session.find(name)
    if entry.kind not in (Kind.DATASET, Kind.VIEW):
        raise InvalidInputError(f"{path} is a {entry.kind.label}: datasets and views stream")
    rank, size = world(session.machine.environment)
    dataset, rows = _rows_at(session, entry)
    chosen = None if where is None else row_selection(dataset, where)
    options = StreamOptions(
        batch_size=batch_size,
        columns=column_names(columns),
        shuffle=ORDERS[shuffle],
        seed=seed,
        sampling=Sampling(
            rows=rows, where=chosen, balance=balance, pack=pack, bucket=bucket, window=window
        ),
        ranks=Ranks(rank=rank, world_size=size),
        decode=None if decode is None else Decode(size=decode, scans=_scans(scans)),
    )
    opened = partial(stream, options=options)
    if profiled:
        root = session.repository.objects.backend.local_root
        if root is not None:
            system_cache.drop(root / "objects")
        _profile(call, dataset, opened, path, step_ms / 1e3, seconds, picture)
    elif explain:
        plan = opened(dataset).explain()
        call.answer(asdict(plan), str(plan))
    else:
        reader = opened(dataset)
        if where is not None and not reader.rows and not call.as_json:
            output.line(f"no row of {dataset.rows:,} matches {where}")
            return
        _run(call, reader, path, epochs)


def _scans(given: str) -> Any:
    """As `Decode` takes it, which refuses what it does not know."""
    return int(given) if given.isdecimal() else given


def _rows_at(session: WorkspaceSession, entry: Entry) -> tuple[StoredDataset, Any]:
    """A dataset, and which of its rows are meant: a view's; None: all."""
    objects = session.repository.objects
    if entry.kind is Kind.DATASET:
        return open_dataset(objects, entry.digest, session.outside), None
    view = open_view(objects, entry.digest)
    dataset = open_dataset(objects, view.dataset, session.outside)
    return dataset, live_numbers(dataset, view)


def _run(call: CommandCall, reader: BatchStream, path: str, epochs: int) -> None:
    rows = 0
    begun = time.perf_counter()
    with output.working(f"streaming {path}"):
        for epoch in range(epochs):
            reader.set_epoch(epoch)
            for batch in reader:
                rows += len(batch.rows)
    seconds = time.perf_counter() - begun
    if call.as_json:
        output.json_value({"rows": rows, "seconds": seconds, "stats": asdict(reader.stats())})
        return
    output.line(
        f"{output.counted(rows, 'row')} in {seconds:.2f} s, {rows / max(seconds, 1e-9):,.0f} rows/s"
    )
    result = reader.stats()
    output.line(
        f"planned {result.plan_seconds:.2f} s, fetched {result.fetch_seconds:.2f} s, gathered "
        f"{result.gather_seconds:.2f} s, waited {result.waited_seconds:.2f} s"
    )
    output.line(str(reader.tuning))


def _profile(
    call: CommandCall,
    dataset: StoredDataset,
    opened: Callable[[StoredDataset], BatchStream],
    path: str,
    step_seconds: float,
    seconds: float,
    picture: Path | None,
) -> None:
    step = (lambda _: time.sleep(step_seconds)) if step_seconds else None
    with output.working(f"profiling {path}"):
        result = profile(dataset, opened, step=step, seconds=seconds)
    if picture is not None:
        _draw(result, path, picture)
    call.answer(result.to_dict(), str(result))


def _draw(result: Profile, path: str, picture: Path) -> None:
    """Three bars of milliseconds a step: the step alone, with preparing batches, with storage."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise UnsupportedError(
            "drawing a profile needs Pillow: pip install 'tensorrepo[images]'. The table and the "
            "bars in the terminal need nothing."
        ) from error
    height = _TOP + len(_ROWS) * (_BAR + _GAP) + 60
    image = Image.new("RGB", (_WIDTH, height), _PAPER)
    pen = ImageDraw.Draw(image)
    pen.font = ImageFont.load_default(16)
    pen.text((20, 20), f"{path}: milliseconds a step", _INK)
    _bars(pen, result.stalls)
    _legend(pen, result, height - 40)
    try:
        image.save(picture)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInputError(
            f"cannot draw to {picture}: {why}. Name a file that ends in .png, in a folder that "
            "is there."
        ) from error
    output.note(f"drew {picture}")


def _bars(pen: ImageDraw, stalls: dict[str, float]) -> None:
    scale = (_WIDTH - _LEFT - _RIGHT - 90) / (sum(stalls.values()) or 1.0)
    for row, (name, parts) in enumerate(_ROWS):
        top = _TOP + row * (_BAR + _GAP)
        pen.text((20, top + 12), name, _INK)
        x = float(_LEFT)
        for part in parts:
            end = x + stalls[part] * scale
            pen.rectangle((x, top, max(end, x + 1), top + _BAR), _COLOURS[part])
            x = end
        milliseconds = sum(stalls[part] for part in parts) * 1e3
        pen.text((x + 8, top + 12), f"{milliseconds:.2f} ms", _INK)


def _legend(pen: ImageDraw, profile: Profile, top: int) -> None:
    x = 20
    for part, times in profile.faster.items():
        pen.rectangle((x, top, x + 16, top + 16), _COLOURS[part])
        pen.text((x + 24, top - 2), f"{part}: without it {times:.2f}x as fast", _INK)
        x += 285
