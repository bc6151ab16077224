"""`adopt`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Argument, Context, Option

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, session_of
from tensorrepo.cli.complete import complete_entry
from tensorrepo.formats.exchange.base import parse_names
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.verbs.adopt import Wish
from tensorrepo.workspace.add import adopt_and_stage
from tensorrepo.workspace.request import Mode


def adopt_command(
    context: Context,
    paths: Annotated[
        list[str], Argument(metavar="PATH_OR_URL...", help="Files, or folders of them.")
    ],
    dataset: Annotated[
        str, Option(metavar="NAME", help="The dataset.", autocompletion=complete_entry)
    ],
    append: Annotated[bool, Option("--append", help="Put the rows behind NAME's.")] = False,
    replace: Annotated[bool, Option("--replace", help="Start NAME anew.")] = False,
    format_name: Annotated[
        str | None,
        Option("--format", help="parquet, tar, npy or safetensors; else told by content."),
    ] = None,
    columns: Annotated[str | None, Option(metavar="A,B", help="Only these, in this order.")] = None,
    hashed: Annotated[
        bool | None,
        Option(
            "--hash/--no-hash",
            help="Read the files once, so that copies of them are known; else only those here.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Stage a dataset whose rows stay in the files that they are in.

    Nothing is copied: Parquet files, WebDataset's tar archives, npy and safetensors files are
    described, and read where they lie. Whoever reads the dataset needs them, and must allow it:
    --allow-outside, or `tensorrepo config outside.allow`.

    Examples:
        tensorrepo adopt /data/train.parquet --dataset train
        tensorrepo adopt shards/ --dataset photos --no-hash
        tensorrepo adopt s3://bucket/000.tar s3://bucket/001.tar --dataset photos --append
    """
    session = session_of(context)
    if append and replace:
        raise InvalidInputError("give one of --append and --replace")
    mode = Mode.APPEND if append else Mode.REPLACE if replace else Mode.NEW
    names = parse_names(columns) if columns is not None else None
    request = Wish(tuple(paths), format_name, names, hashed)
    name = dataset.removeprefix("datasets/")
    with session.here.locked(), output.progress(f"adopting {name}", None) as advance:
        added = adopt_and_stage(session, name, mode, request, advance)
    size = output.bytes_text(added.bytes)
    text = f"staged {added.path} ({added.rows:,} rows, {size} stay where they are)"
    output.answer(asdict(added), text, as_json=as_json)
