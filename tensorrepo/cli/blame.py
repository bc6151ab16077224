"""`blame`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from tensorrepo.blame import Blame, Origin, blame
from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, session_of
from tensorrepo.cli.complete import complete_place
from tensorrepo.formats.dataset.columns.types import ClassLabel, Layout, Text
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.columns.schema import Column, Schema


def blame_command(
    context: Context,
    name: Annotated[str, Argument(metavar="[REF:]DATASET", autocompletion=complete_place)],
    row: Annotated[int | None, Option("--row", help="The row's number.")] = None,
    row_id: Annotated[
        str | None, Option("--row-id", metavar="ID", help="Its lasting id, as diff shows it.")
    ] = None,
    key: Annotated[
        list[str] | None,
        Option("--key", metavar="COL=VALUE", help="What names it; may be repeated."),
    ] = None,
    columns: Annotated[
        list[str] | None, Option("--column", help="Only this column; may be repeated.")
    ] = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which commits gave a row its values: who, when, and with what message.

    A row is found by its number, its id or its key. By id also one that was deleted: then it says
    which commit deleted it, and shows the values that it had.

    Examples:
        tensorrepo blame photos --row 7
        tensorrepo blame v1:photos --key name=cat.png
        tensorrepo blame photos --row-id 629f6fbed82c07cd:3 --column label
    """
    session = session_of(context, repo)
    revision, path, entry = session.find(name)
    if entry.kind is not Kind.DATASET:
        raise InvalidInputError(f"{path} is a {entry.kind.label}: only rows of datasets have blame")
    objects = session.repository.objects
    schema = open_dataset(objects, entry.digest).schema
    answer = blame(
        objects,
        path,
        revision.digest,
        row=row,
        row_id=row_id,
        key=_keys(schema, key) if key else None,
        columns=columns,
        outside=session.outside,
    )
    if as_json:
        output.json_value(answer.to_json())
    else:
        _show(answer)


def _keys(schema: Schema, texts: list[str]) -> dict[str, Any]:
    """``COL=VALUE`` texts as values of their columns."""
    keys: dict[str, Any] = {}
    for each in texts:
        name, equals, text = each.partition("=")
        if not equals:
            raise InvalidInputError(f"--key is COL=VALUE, got {each!r}")
        keys[name] = _key_value(schema.column(name), text)
    return keys


def _key_value(column: Column, text: str) -> Any:
    """What a user typed, as a value of the column."""
    if isinstance(column.type, Text | ClassLabel):
        return text
    if column.storage.layout is not Layout.FIXED or column.storage.shape:
        return text.encode()
    try:
        return column.storage.element.type(text).item()
    except ValueError as error:
        raise InvalidInputError(
            f"--key {column.name}: {text!r} is no {column.storage.dtype}"
        ) from error


def _show(answer: Blame) -> None:
    row = f"row {answer.row}" if answer.row is not None else "a deleted row"
    output.line(f"{answer.path}, {row}, id {answer.row_id}")
    output.line(f"added in {_shown(answer.added)}")
    if answer.deleted is not None:
        output.line(f"deleted in {_shown(answer.deleted)}")
    output.table(("column", "value", "commit", "author", "date", "message"), answer.rows())


def _shown(origin: Origin) -> str:
    author = origin.commit.author.partition(" <")[0]
    return f"{origin.digest:.12} by {author}, {origin.time[:10]}: {origin.subject}"
