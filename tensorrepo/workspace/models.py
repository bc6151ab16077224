"""How does a verb that makes models of models become a staged entry?

What is made is stored first and staged then: nothing of a workspace changes before all of it is
stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.formats.model.combine.adapter import adapter_of
from tensorrepo.formats.model.combine.make import Made, Placed
from tensorrepo.formats.model.combine.recipe import recipe_of
from tensorrepo.formats.model.read import open_model
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.ids import parse_digest
from tensorrepo.repo.names import check_path
from tensorrepo.repo.objects import Kind
from tensorrepo.workspace.session import find_staged
from tensorrepo.workspace.stage import begin_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tensorrepo.formats.model.combine.recipe import Recipe
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import ObjectSource
    from tensorrepo.repo.trees import Entry
    from tensorrepo.verbs.stage import Stage
    from tensorrepo.workspace.session import Session


@dataclass(frozen=True, slots=True)
class Staged:
    """A model that was made and staged; `changed` False: the name held exactly that already."""

    path: str
    digest: str
    tensors: int
    bytes: int
    changed: bool
    notes: tuple[str, ...]


def find_model(
    session: Session, text: str, objects: ObjectSource | None = None, *, staged: bool = False
) -> Placed:
    """The model that ``[REF:]NAME`` names, with where it is.

    Args:
        session: of the command.
        text: what was typed.
        objects: reads it; None: the repository's.
        staged: as it is staged.

    Raises:
        NotFoundError: no such commit, or no such entry in it.
        InvalidInputError: the entry is no model.
    """
    if staged:
        commit, (path, entry) = None, find_staged(session, text)
    else:
        revision, path, entry = session.find(text)
        commit = revision.digest
    if entry.kind is not Kind.MODEL:
        raise InvalidInputError(f"{path} is a {entry.kind.label}, not a model")
    return Placed(open_model(objects or session.repository.objects, entry), path, commit)


def make_model(
    session: Session, name: str, verb: Callable[[Stage, str], Made], what: str, *, replace: bool
) -> Staged:
    """Make a model and stage it.

    Args:
        session: of the command.
        name: of the new model.
        verb: makes it at a path of a stage.
        what: is shown beside it by `status`.
        replace: the name may be taken.

    Raises:
        ConflictError: the name is taken. Nothing was staged.
    """
    path = check_path(name if name.startswith("models/") else f"models/{name}")
    with begin_stage(session) as stage:
        if stage.entry(path) is not None and not replace:
            raise ConflictError(f"{path} exists: choose another name, or give --replace")
        made = verb(stage, path)
        model = open_model(stage.objects, made.entry)
        stage.describe(path, size_bytes=model.size_bytes, source=what)
        changed = stage.drop_if_unchanged(path)
    return Staged(path, made.entry.digest, len(model), model.size_bytes, changed, made.notes)


def named_in(
    session: Session, recipe: Recipe, source: Placed
) -> tuple[list[Placed], Placed | None]:
    """The models that a recipe names: parents in its order, and the base.

    Each is looked for where the lineage of `source` says, then at all paths of HEAD.

    Raises:
        NotFoundError: one is in neither.
    """
    digests = [*recipe.parents, *([recipe.base] if recipe.base is not None else [])]
    found = [_by_digest(session, digest, source) for digest in digests]
    return found[: len(recipe.parents)], found[-1] if recipe.base is not None else None


def adapter_base(session: Session, adapter: Placed) -> Placed:
    """The model that an adapter was declared to be of, found as `named_in` does.

    Raises:
        InvalidInputError: it is no adapter.
        NotFoundError: its base is nowhere.
    """
    found = adapter_of(adapter.model.lineage)
    if found is None:
        raise InvalidInputError(
            f"{adapter.path} is no adapter, or was added without its base: "
            "`tensorrepo model add PATH NAME --adapter-of BASE`"
        )
    return _by_digest(session, found[0].digest, adapter)


def recipe_named(source: Placed) -> Recipe:
    """The recipe of a model. Raises InvalidInputError for one that was not blended."""
    recipe = recipe_of(source.model.manifest)
    if recipe is None:
        raise InvalidInputError(f"{source.path} was not made by `model merge`: it has no recipe")
    return recipe


def _by_digest(session: Session, digest: str, source: Placed) -> Placed:
    objects = session.repository.objects
    for path, entry, commit in _places(session, digest, source):
        if entry is not None and entry.digest == digest:
            return Placed(open_model(objects, entry), path, commit)
    raise NotFoundError(
        f"model {digest:.12}, of which {source.path} was made, is in no commit that its lineage "
        "names, nor in HEAD"
    )


def _places(
    session: Session, digest: str, source: Placed
) -> Iterable[tuple[str, Entry | None, Digest | None]]:
    """Where a model may be, the likeliest first."""
    repository = session.repository
    for edge in source.model.lineage:
        if edge.digest == digest and edge.commit is not None:
            try:
                tree = session.resolve(edge.commit).commit.tree
            except NotFoundError:
                continue
            yield edge.path, repository.entry(tree, edge.path), parse_digest(edge.commit)
    revision = session.resolve(None)
    for path, entry in repository.entries(revision.commit.tree, "models/"):
        yield path, entry, revision.digest
