"""Disk usage, of entries and of tensors by codec: `du`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import RepoCall, complete_place
from tensorrepo.formats.common.summaries import decoded_bytes
from tensorrepo.formats.model.maintenance.usage import (
    DiskUsage,
    every_tree,
    measure_usage,
    models_at,
)
from tensorrepo.repo.changes.disk_usage import USAGE_COLUMNS, measure_trees
from tensorrepo.repo.changes.owner_usage import OWNER_COLUMNS, Owners, measure_owners
from tensorrepo.repo.changes.revisions import split_path
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.workspace.session import WorkspaceSession


def du_command(
    call: RepoCall,
    what: Annotated[
        str | None,
        Argument(metavar="[NAME|REF[:PATH]]", help="Only this.", autocompletion=complete_place),
    ] = None,
    every_ref: Annotated[bool, Option("--all", help="Of every branch, tag and run.")] = False,
    codecs: Annotated[
        bool, Option("--codecs", help="Tensors of models instead, also by codec.")
    ] = False,
    by: Annotated[
        Owners | None, Option("--by", help="Whole refs, datasets or models, with their history.")
    ] = None,
) -> None:
    """Show what entries take in the store: shared with others, theirs alone, and older versions.

    Unique bytes are those that no other of the entries looked at reaches. History is what only
    older commits need, under the same path. Bytes count as they lie in the store, compressed. With
    --codecs they are those of tensors, and of the bases that deltas are read through.

    --by tells of all refs, or of all versions of datasets or models that any commit has: bytes when
    decoded, bytes in the store, and what `gc` would delete if one of them were gone.

    Examples:
        tensorrepo du
        tensorrepo du photos
        tensorrepo du v1:models --all
        tensorrepo du --codecs
        tensorrepo du --by ref
    """
    session = call.session
    if by is not None:
        if what is not None or every_ref or codecs:
            raise InvalidInputError("--by counts all of the repository: give nothing beside it")
        _show_owners(call, by)
        return
    trees, path = _meant(session, what, every_ref=every_ref)
    if codecs:
        _show_codecs(call, session, trees, path)
        return
    with output.row_progress("counting", "objects") as advance:
        taken = measure_trees(session.repository, trees, path, advance)
    if call.as_json:
        output.json_value(taken.to_json())
        return
    named = {"path": lambda one: f"{one.ref}:{one.path}"} if every_ref else {}
    output.show(taken.entries, {**USAGE_COLUMNS, **named}, empty="")
    if not path:
        output.lines(["", *taken.part_lines()])


def _show_owners(call: RepoCall, by: Owners) -> None:
    """Storage of refs, datasets or models."""
    with output.row_progress("counting", "objects") as advance:
        taken = measure_owners(call.session.repository, by, decoded_bytes, advance)
    if call.as_json:
        output.json_value(taken.to_json())
        return
    output.show(taken.owners, {by.value: "owner", **OWNER_COLUMNS}, empty=f"no {by} is there")
    output.lines(["", *taken.part_lines()])


def _meant(
    session: WorkspaceSession, what: str | None, *, every_ref: bool
) -> tuple[dict[str, bytes], str]:
    """Trees by name of their ref, and the path in them that is meant; "": all of them."""
    name, path = session.default_ref, ""
    if what is not None:
        ref, inside = split_path(what)
        if inside is not None:
            name = name if what.startswith(":") else ref
            path = _path_at(session, name, inside)
        else:
            try:
                path = _path_at(session, name, what)
            except NotFoundError as no_entry:
                try:
                    session.resolve(what)
                except NotFoundError:
                    raise no_entry from None
                name = what
    if every_ref:
        return every_tree(session.repository), path
    return {name: session.resolve(name).commit.tree}, path


def _path_at(session: WorkspaceSession, ref: str, inside: str) -> str:
    """The path that is meant: of an entry by its name, or of a folder."""
    wanted = inside.strip("/")
    tree = session.resolve(ref).commit.tree
    if not wanted or next(iter(session.repository.entries(tree, f"{wanted}/")), None):
        return wanted
    return session.find(f"{ref}:{wanted}")[1]


def _show_codecs(
    call: RepoCall, session: WorkspaceSession, trees: dict[str, bytes], path: str
) -> None:
    """What tensors take, by model and by codec."""
    models = models_at(session.repository, trees)
    wanted = [path] if path else []
    if path and not any(model.is_below(wanted) for model in models):
        raise InvalidInputError(f"{path} is no model: --codecs tells of models alone")
    with output.row_progress("counting", "models") as advance:
        taken = measure_usage(
            session.repository.objects, models, wanted, lambda done: advance(done, len(models))
        )
    if call.as_json:
        output.json_value(taken.to_json())
        return
    rows = [
        (each.model.text if len(trees) > 1 else each.model.path, each.usage)
        for each in taken.models
    ]
    output.show([*rows, ("all", taken.total)], _size_columns("model"))
    output.show(taken.codecs.items(), _size_columns("codec"))


def _size_columns(name: str) -> dict[str, Callable[[tuple[str, DiskUsage]], str]]:
    """Columns of pairs of a name and what goes by it."""
    return {
        name: lambda pair: pair[0],
        ">logical": lambda pair: output.bytes_text(pair[1].logical_bytes),
        ">stored": lambda pair: output.bytes_text(pair[1].stored_bytes),
        ">shared": lambda pair: output.bytes_text(pair[1].shared_bytes),
        ">unique": lambda pair: output.bytes_text(pair[1].unique_bytes),
    }
