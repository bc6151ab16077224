"""`model ls`: the commands that tell of models. Those that make models are in `model_make`."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, session_of
from tensorrepo.cli.complete import complete_ref
from tensorrepo.formats.model.read import open_model


def model_ls_command(
    context: typer.Context,
    ref: Annotated[
        str | None,
        typer.Argument(metavar="[REF]", help="A commit.", autocompletion=complete_ref),
    ] = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the models of a commit: tensors, parameters, bytes and metrics.

    Examples:
        tensorrepo model ls
        tensorrepo model ls v1
        tensorrepo model ls --repo s3://bucket/team --json
    """
    session = session_of(context, repo)
    tree = session.resolve(ref).commit.tree
    found = [
        (path, open_model(session.repository.objects, entry))
        for path, entry in session.repository.entries(tree, "models/")
    ]
    if as_json:
        output.json_value(
            [
                {
                    "path": path,
                    "digest": model.entry.digest,
                    "tensors": len(model),
                    "bytes": model.size_bytes,
                    "metrics": dict(model.metrics),
                }
                for path, model in found
            ]
        )
        return
    rows = [
        (
            path,
            f"{len(model):,}",
            output.bytes_text(model.size_bytes),
            ", ".join(f"{name} = {value}" for name, value in model.metrics.items()),
            f"{model.entry.digest:.12}",
        )
        for path, model in found
    ]
    if rows:
        output.table(("path", ">tensors", ">bytes", "metrics", "digest"), rows)
