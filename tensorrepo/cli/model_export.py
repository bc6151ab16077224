"""`model export`."""

from __future__ import annotations

from typing import Annotated

from typer import Context, Option

from tensorrepo.cli import output
from tensorrepo.cli.checkout import show_written
from tensorrepo.cli.common import JsonOption, RepoOption, resolve_path, session_of
from tensorrepo.cli.model import StoredModelArgument
from tensorrepo.workspace.checkout import export
from tensorrepo.workspace.models import find_model


def model_export_command(
    context: Context,
    name: StoredModelArgument,
    out: Annotated[str, Option("--out", metavar="PATH", help="Where to write it.")],
    format_name: Annotated[
        str | None,
        Option(
            "--format",
            help="safetensors, gguf, onnx, torch, npz, npy, hf or snapshot; "
            "else told by PATH's suffix.",
        ),
    ] = None,
    shard_bytes: Annotated[
        int | None,
        Option("--shard-bytes", metavar="N", help="Of hf: begin a new file of weights at N."),
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite what is at PATH.")] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model in a foreign format.

    What came as a file of that format is given back byte for byte.

    Examples:
        tensorrepo model export net --out net.safetensors
        tensorrepo model export v1:net --format gguf --out /tmp/net.gguf
        tensorrepo model export net --format hf --shard-bytes 5000000000 --out net-hf
    """
    session = session_of(context, repo)
    model = find_model(session, name)
    target = resolve_path(context, out)
    options = {} if shard_bytes is None else {"shard_bytes": shard_bytes}
    with output.working(f"writing {name}"):
        pinned = f"{model.path}@{model.commit}"
        written = export(session, pinned, target, format_name, force=force, options=options)
    show_written(session, [written], as_json=as_json)
