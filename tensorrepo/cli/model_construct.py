"""`model construct`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from tensorrepo.blueprint import read_architecture
from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, resolve_path, session_of
from tensorrepo.cli.complete import complete_place
from tensorrepo.cli.model_make import AsOption, ReplaceOption, stage_made
from tensorrepo.formats.model.combine.fill import RULES
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.verbs.models import construct
from tensorrepo.workspace.models import find_model

if TYPE_CHECKING:
    from tensorrepo.formats.model.combine.make import Made
    from tensorrepo.verbs.stage import Stage


def model_construct_command(
    context: Context,
    new: AsOption,
    target: Annotated[
        str | None, Argument(metavar="[PATH]", help="JSON: types and shapes, or a graph.")
    ] = None,
    like: Annotated[
        str | None,
        Option(
            "--like",
            metavar="[REF:]NAME",
            help="The architecture of this model.",
            autocompletion=complete_place,
        ),
    ] = None,
    donors: Annotated[
        list[str] | None,
        Option(
            "--from",
            metavar="[REF:]NAME",
            help="Take tensors from this model; may be repeated.",
            autocompletion=complete_place,
        ),
    ] = None,
    rule: Annotated[
        str | None, Option("--init", help=f"For what nobody has: {', '.join(RULES)}; else refuse.")
    ] = None,
    seed: Annotated[int, Option("--seed", help="Of rules that draw numbers.")] = 0,
    replace: ReplaceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Stage a model of a new architecture that shares all tensors with others that fit.

    The architecture is a JSON file, as `model desc NAME --graph --json` prints one, or types and
    shapes by name; or --like a model. Tensors come from the first model given with --from that has
    one of that name, type and shape, else at that place of the common prefix of both graphs.

    Examples:
        tensorrepo model construct wider.json --from bert --init default --as wider
        tensorrepo model construct --like v2:net --from v1:net --init zeros --as net2
        tensorrepo model construct net.json --as net3 --init zeros
    """
    session = session_of(context)
    if (target is None) == (like is None):
        raise InvalidInputError("give the architecture: a JSON file, or --like a model")
    wanted: Any = (
        find_model(session, like).model
        if like is not None
        else read_architecture(resolve_path(context, target or ""))
    )
    sources = [find_model(session, name) for name in donors or ()]

    def verb(stage: Stage, path: str) -> Made:
        return construct(stage, path, wanted, sources, rule=rule, seed=seed)

    with output.working(f"building {new}"):
        made = (session, new, verb, f"built of {', '.join(one.path for one in sources) or rule}")
        stage_made(*made, replace=replace, as_json=as_json)
