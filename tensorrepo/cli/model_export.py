"""`model export`."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorrepo.cli import output
from tensorrepo.cli.checkout import show_written
from tensorrepo.cli.common import JsonOption, RepoOption, place, session_of
from tensorrepo.cli.complete import complete_entry
from tensorrepo.workspace.checkout import export


def model_export_command(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME[@REF]", help="A model.", autocompletion=complete_entry),
    ],
    out: Annotated[str, typer.Option("--out", metavar="PATH", help="Where to write it.")],
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="safetensors, gguf, onnx, torch, npz, npy, hf or snapshot; "
            "else told by PATH's suffix.",
        ),
    ] = None,
    shard_bytes: Annotated[
        int | None,
        typer.Option("--shard-bytes", metavar="N", help="Of hf: begin a new file of weights at N."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is at PATH.")] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model in a foreign format.

    What came as a file of that format is given back byte for byte.

    Examples:
        tensorrepo model export net --out net.safetensors
        tensorrepo model export net@v1 --format gguf --out /tmp/net.gguf
        tensorrepo model export net --format hf --shard-bytes 5000000000 --out net-hf
    """
    session = session_of(context, repo)
    target = place(context, out)
    options = {} if shard_bytes is None else {"shard_bytes": shard_bytes}
    with output.working(f"writing {name}"):
        written = export(session, name, target, format_name, force=force, options=options)
    show_written(session, [written], as_json=as_json)
