"""`model du` and `model similar`: what models take, and which are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, model_path, session_of
from tensorrepo.cli.complete import complete_entry, complete_place, complete_ref
from tensorrepo.formats.model.space.reach import every_tree, models_at
from tensorrepo.formats.model.space.similar import similar_models
from tensorrepo.formats.model.space.usage import measure_usage
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.ids import digest_from_bytes
from tensorrepo.repo.revisions import split_path
from tensorrepo.workspace.models import find_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tensorrepo.formats.model.space.reach import Reached
    from tensorrepo.formats.model.space.similar import Similarity
    from tensorrepo.formats.model.space.usage import Usage
    from tensorrepo.workspace.session import Session

AllOption = Annotated[bool, Option("--all", help="Of every branch, tag and run.")]


def model_du_command(
    context: Context,
    paths: Annotated[
        list[str] | None,
        Argument(metavar="[PATH...]", help="Show these alone.", autocompletion=complete_entry),
    ] = None,
    ref: Annotated[
        str | None, Option("--ref", help="A commit.", autocompletion=complete_ref)
    ] = None,
    every_ref: AllOption = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what models take on disk: shared with others, and theirs alone, by model and codec.

    Unique bytes are those that no other of the models looked at reaches; the bases of deltas count
    for whoever reads through them. Files that came along are not counted.

    Examples:
        tensorrepo model du
        tensorrepo model du net --all
        tensorrepo model du --ref v1 --json
    """
    session = session_of(context, repo)
    with output.working("looking at models"):
        models = _models(session, ref, every_ref=every_ref)
        wanted = [model_path(path) for path in paths or ()]
        _check_there(models, wanted)
        taken = measure_usage(session.repository.objects, models, wanted)
    if as_json:
        output.json_value(taken.to_json())
    elif taken.models:
        # As `model ls` names them; whose commit is told where several are looked at.
        rows = [
            (each.model.text if every_ref else each.model.path, each.usage) for each in taken.models
        ]
        output.show([*rows, ("all", taken.total)], _size_columns("model"), as_json=False)
        output.show(taken.codecs.items(), _size_columns("codec"), as_json=False)


def model_similar_command(
    context: Context,
    name: Annotated[
        str, Argument(metavar="[REF:]NAME", help="A model.", autocompletion=complete_place)
    ],
    every_ref: AllOption = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rank the stored models by how like one they are, and tell what it was encoded against.

    Told are the bits, of 16, that elements of the largest tensors differ by, estimated from samples
    that are stored with them: no tensor is read. Models that share less than half of the names,
    types and shapes are left out.

    Examples:
        tensorrepo model similar net
        tensorrepo model similar v1:net --all
        tensorrepo model similar net --json
    """
    session = session_of(context, repo)
    entry = find_model(session, name).model.entry
    ref, path = split_path(name)
    with output.working("looking at models"):
        models = _models(session, ref if path is not None else None, every_ref=every_ref)
        similarity = similar_models(session.repository.objects, entry, models)
    if as_json:
        output.json_value(similarity.to_json())
        return
    output.lines(_bases(similarity))
    columns = {
        "model": "model.text",
        ">bits of 16": lambda near: f"{near.bits:.2f}",
        "architecture": lambda near: "same" if near.same_architecture else "other",
        "as a base": lambda near: near.base or ("alike" if near.is_alike else ""),
    }
    compared, unlike = similarity.ranking, similarity.unlike
    output.show(compared, columns, as_json=False, empty="")
    output.line(f"{len(compared)} compared; {unlike} not: other names or shapes, or too small")


def _models(session: Session, ref: str | None, *, every_ref: bool) -> tuple[Reached, ...]:
    """The models of one commit, or of every ref."""
    if every_ref:
        return models_at(session.repository, every_tree(session.repository))
    revision = session.resolve(ref)
    return models_at(session.repository, {ref or session.default_ref: revision.commit.tree})


def _check_there(models: Sequence[Reached], wanted: Sequence[str]) -> None:
    for path in wanted:
        if not any(one.is_below([path]) for one in models):
            raise NotFoundError(
                f"no model {path} in the commits looked at. `tensorrepo model ls` lists them; "
                "--all looks at every ref."
            )


def _size_columns(name: str) -> dict[str, Callable[[tuple[str, Usage]], str]]:
    """Columns of pairs of a name and what goes by it."""
    return {
        name: lambda pair: pair[0],
        ">logical": lambda pair: output.bytes_text(pair[1].logical_bytes),
        ">stored": lambda pair: output.bytes_text(pair[1].stored_bytes),
        ">shared": lambda pair: output.bytes_text(pair[1].shared_bytes),
        ">unique": lambda pair: output.bytes_text(pair[1].unique_bytes),
    }


def _bases(similarity: Similarity) -> Iterator[str]:
    """What the model was encoded against, for people."""
    for base in similarity.bases:
        bits = "" if base.bits is None else f", {base.bits:.2f} bits of 16 apart"
        digest = digest_from_bytes(base.model)
        tensors = output.counted(base.tensors, "tensor")
        yield f"{tensors} encoded against {digest:.12}: {base.why}{bits}"
    if not similarity.bases:
        yield "no tensor was encoded against another model's"
