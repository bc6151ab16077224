"""Dataset schema: an ordered set of named, typed columns.

A schema is a frozen value with a JSON form and an Arrow form. Column types live in `types`; they
are importable from here too.

Source:
    docs/spec/dataset.md, section "Schema".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.arguments import counted, first_names
from tensorrepo.formats.dataset.schema.arrow_forms import (
    form_from_json,
    form_to_json,
    has_form,
    kept_form,
)
from tensorrepo.formats.dataset.schema.arrow_types import (
    TYPE_KEY,
    arrow_type,
    infer_type,
    is_form_of,
)
from tensorrepo.formats.dataset.schema.cells import type_text
from tensorrepo.formats.dataset.schema.types import (
    Bytes,
    ClassLabel,
    ColumnLayout,
    ColumnType,
    Date,
    Decimal,
    Duration,
    Embedding,
    Image,
    Json,
    Link,
    LinkValue,
    List,
    Map,
    Null,
    Scalar,
    Storage,
    Struct,
    Tensor,
    Text,
    Time,
    Timestamp,
    TypeLike,
    as_type,
    storage_of,
    type_from_json,
    type_to_json,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError
from tensorrepo.repo.suggest import did_you_mean
from tensorrepo.repo.tables import Cell, RecordTable, Shown

__all__ = [
    "Bytes",
    "ClassLabel",
    "Column",
    "ColumnBatch",
    "ColumnLayout",
    "ColumnType",
    "Date",
    "Decimal",
    "Duration",
    "Embedding",
    "Image",
    "InputBatch",
    "Json",
    "Link",
    "LinkValue",
    "List",
    "Map",
    "Null",
    "Scalar",
    "Schema",
    "Storage",
    "Struct",
    "Tensor",
    "Text",
    "Time",
    "Timestamp",
    "TypeLike",
    "Values",
    "as_type",
    "storage_of",
    "type_from_json",
    "type_to_json",
]

# The values of one column of a batch, as writers accept them, None standing for null:
#   fixed    ndarray of shape (rows, *row shape), masked where null, or a sequence of rows
#   ragged   sequence of ndarrays
#   binary   sequence of bytes, of str (text, class names), of JSON values (json) or of links
# and any of them as an Arrow array.
Values: TypeAlias = np.ndarray[Any, np.dtype[Any]] | Sequence[Any] | pa.Array | pa.ChunkedArray
ColumnBatch: TypeAlias = Mapping[str, Values]
# What `write_dataset` takes as one batch: columns, Arrow, or a list of rows.
InputBatch: TypeAlias = ColumnBatch | pa.RecordBatch | pa.Table | Sequence[Mapping[str, Any]]

MAX_COLUMNS = 65_535
MAX_NAME_BYTES = 255
# Columns derived from an image column, whatever the rows' header says; null where it says nothing.
IMAGE_FACTS: Final[dict[str, ColumnType]] = {
    "height": Scalar("uint32"),
    "width": Scalar("uint32"),
    "mode": Text(),
}
# And the small picture of one that is progressive "beside": see `Image`.
SMALL_IMAGE: Final = "small"
# In the metadata of a field of lists: that some of the numbers in them are null.
NULL_ELEMENTS_KEY = b"tensorrepo.null_elements"
_ID_KEY, _DEFAULT_KEY = b"tensorrepo.id", b"tensorrepo.default"  # in the metadata of Arrow fields
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Column:
    """One named column.

    Attributes:
        id: 16 hex digits, "" until a dataset with it has been written.
        default: JSON value of rows without a value of their own; None: null, or for a
            column that is not nullable that there is no default.
        derived: (id of the column it is computed from, which fact of its rows), such as "height"
            of an image. Such a column is written along with its source and hidden from users
            unless they ask for it by name.
        arrow: Arrow type in which rows are given out, where it is another form of the type's own,
            such as a dictionary of text. How they are shown; no part of what the column is.
    """

    name: str
    type: ColumnType
    nullable: bool = False
    id: str = ""
    default: Any = None
    derived: tuple[str, str] | None = None
    arrow: pa.DataType | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        object.__setattr__(self, "type", as_type(self.type))  # "int64" is what people write
        if isinstance(self.type, Null):
            object.__setattr__(self, "nullable", True)
        if self.arrow is not None and not is_form_of(self.arrow, self.type):
            object.__setattr__(self, "arrow", None)  # the type became another one
        if self.id and not _ID.fullmatch(self.id):
            raise InvalidInputError(f"column {self.name!r}: id {self.id!r} is not 16 hex digits")

    @property
    def storage(self) -> Storage:
        return storage_of(self.type)

    @property
    def type_text(self) -> str:
        """Its type for people: ``float32[28, ?]``, ``text or null``."""
        return type_text(self.type) + (" or null" if self.nullable else "")

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type in which rows are given out."""
        return arrow_type(self.type) if self.arrow is None else self.arrow


SCHEMA_COLUMNS: Final[Mapping[str, Cell]] = {
    "column": "name",
    "type": lambda column: type_text(column.type),
    "null": lambda column: "yes" if column.nullable else "",
}


@dataclass(frozen=True, slots=True, repr=False)
class Schema(Shown):
    """The columns of a dataset, in order, names unique."""

    columns: tuple[Column, ...]
    _by_name: dict[str, Column] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not 1 <= len(names) <= MAX_COLUMNS:
            raise InvalidInputError(f"a schema has 1 to {MAX_COLUMNS} columns, got {len(names)}")
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInputError(f"column {twice!r} is there twice")
        object.__setattr__(self, "_by_name", {column.name: column for column in self.columns})

    @classmethod
    def of(cls, columns: Mapping[str, TypeLike]) -> Schema:
        """Columns without nulls: ``Schema.of({"image": Image("png"), "label": "int64"})``."""
        return cls(tuple(Column(name, as_type(kind)) for name, kind in columns.items()))

    def to_table(self) -> RecordTable:
        """A row for each column that a user gave."""
        shown = self.visible.columns
        return RecordTable.of(shown, SCHEMA_COLUMNS, f"schema of {counted(len(shown), 'column')}")

    def __repr__(self) -> str:
        return f"<schema of {first_names(self.visible.names, 8)}>"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Column:
        """The column of that name, as `column`: ``schema["label"].type``."""
        return self.column(name)

    def __iter__(self) -> Iterator[str]:
        """Names of the columns, as of a mapping."""
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.columns)

    def column(self, name: str) -> Column:
        """The column of that name, or NotFoundError that lists what there is."""
        column = self._by_name.get(name)
        if column is None:
            there = ", ".join(map(repr, self.names))
            hint = did_you_mean(name, self.names, shown=repr)
            raise NotFoundError(f"no column {name!r}; there are {there}{'.' if hint else ''}{hint}")
        return column

    def select(self, names: Iterable[str] | None) -> Schema:
        """Only these columns, in the order asked for; None: those that are not hidden.

        A derived column that is asked for is shown like any other.
        """
        if names is None:
            return self.visible
        return Schema(tuple(replace(self.column(name), derived=None) for name in names))

    def projected(self, names: Iterable[str]) -> Schema:
        """`select`, with what is derived from these columns, hidden as before."""
        chosen = self.select(names).columns
        ids = {column.id for column in chosen}
        hidden = (
            column
            for column in self.columns
            if column.derived is not None and column.derived[0] in ids and column.id not in ids
        )
        return Schema((*chosen, *hidden))

    @property
    def visible(self) -> Schema:
        """The columns that a user gave."""
        shown = tuple(column for column in self.columns if column.derived is None)
        return self if len(shown) == len(self.columns) else Schema(shown)

    def with_derived(self) -> Schema:
        """These columns, which have ids, and hidden ones with the facts of every image.

        They are called ``<image>.height``, ``.width`` and ``.mode``, and ``.small`` where small
        pictures are stored beside, come after the others and have no ids yet. One whose name is
        taken is left out.
        """
        known = {column.derived for column in self.columns}
        names, hidden = set(self.names), []
        for column in self.columns:
            if not isinstance(column.type, Image) or not column.id or column.derived:
                continue
            facts = dict(IMAGE_FACTS)
            if column.type.progressive == "beside":
                facts[SMALL_IMAGE] = Image(progressive=True)
            for fact, kind in facts.items():
                name, derived = f"{column.name}.{fact}", (column.id, fact)
                fits = len(name.encode()) <= MAX_NAME_BYTES
                if fits and derived not in known and name not in names:
                    names.add(name)
                    hidden.append(Column(name, kind, nullable=True, derived=derived))
        return Schema((*self.columns, *hidden[: MAX_COLUMNS - len(self.columns)]))

    def without_ids(self) -> Schema:
        """The visible columns as nobody wrote them yet: for comparing what schemas mean."""
        return Schema(tuple(replace(column, id="") for column in self.visible.columns))

    def without_forms(self) -> Schema:
        """The columns in the usual Arrow type of each, whichever their source had."""
        return Schema(tuple(replace(column, arrow=None) for column in self.columns))

    def to_json(self) -> dict[str, Any]:
        """``{"columns": [{"name", "type": {...}, "nullable", "id", "default", ...}, ...]}``.

        "default", "derived" and "arrow" only where there are such.
        """
        return {"columns": [_column_to_json(column) for column in self.columns]}

    @classmethod
    def from_json(cls, form: object) -> Schema:
        """The schema that `to_json` wrote. `nullable` and `id` may be left out.

        Raises:
            InvalidInputError: not the form of a schema.
            UnsupportedError: a column type that this version does not know.
        """
        columns = form.get("columns") if isinstance(form, dict) else None
        if not isinstance(columns, list | tuple):
            raise InvalidInputError(f"a schema is {{'columns': [...]}}, got {form!r:.80}")
        return cls(tuple(_column_from_json(column) for column in columns))

    def to_arrow(self) -> pa.Schema:
        """The Arrow schema in which rows are given out; `from_arrow` restores this one from it.

        What is derived from what stays at home: in Arrow all columns are alike.
        """
        return pa.schema([_to_field(column) for column in self.columns])

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> Schema:
        """The schema of Arrow data: exact when `to_arrow` made it, else inferred.

        Raises:
            UnsupportedError: names all fields that no column type holds.
        """
        columns, refused = columns_of_arrow(schema)
        if refused:
            raise UnsupportedError(" ".join(refused.values()))
        return cls(tuple(columns))


def columns_of_arrow(schema: pa.Schema) -> tuple[list[Column], dict[str, str]]:
    """The columns of Arrow data, and what is wrong with each field that no column type holds."""
    columns, refused = [], {}
    for each in schema:
        try:
            columns.append(_from_field(each))
        except UnsupportedError as error:
            refused[each.name] = str(error)
    return columns, refused


def settable_column(schema: Schema, name: str) -> Column:
    """The column of that name, unless it is a hidden one: these follow others."""
    column = schema.column(name)
    if column.derived is not None:
        raise InvalidInputError(f"column {name!r} follows another one and cannot be changed")
    return column


def check_name(name: str) -> str:
    """`name` if a column may be called that: 1 to 255 bytes of UTF-8, no control characters."""
    if not isinstance(name, str):
        raise InvalidInputError(f"a column name is text, got {name!r:.80}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"column name {name!r} is not valid unicode") from error
    if not 1 <= size <= MAX_NAME_BYTES:
        raise InvalidInputError(f"a column name has 1 to {MAX_NAME_BYTES} bytes, got {size}")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        raise InvalidInputError(f"column name {name!r} has control characters")
    return name


def _to_field(column: Column) -> pa.Field:
    metadata = {TYPE_KEY: json.dumps(type_to_json(column.type)).encode()}
    if column.id:
        metadata[_ID_KEY] = column.id.encode()
    if column.default is not None:
        metadata[_DEFAULT_KEY] = json.dumps(column.default).encode()
    return pa.field(column.name, column.arrow_type, nullable=column.nullable, metadata=metadata)


def _from_field(field: pa.Field) -> Column:
    """What `_to_field` noted; of a field of foreign origin the type is inferred."""
    metadata = field.metadata or {}
    if TYPE_KEY in metadata:
        kind = type_from_json(_parse(metadata[TYPE_KEY], field.name))
        # A tool that casts a column may keep the metadata: then the data's own type counts.
        if is_form_of(field.type, kind):
            column_id = metadata.get(_ID_KEY, b"").decode("ascii", "replace")
            default = _parse(metadata.get(_DEFAULT_KEY, b"null"), field.name)
            return formed(Column(field.name, kind, field.nullable, column_id, default), field.type)
    null_elements = NULL_ELEMENTS_KEY in metadata
    kind = infer_type(field.type, field.name, null_elements=null_elements)
    return formed(Column(field.name, kind, field.nullable), field.type)


def formed(column: Column, arrow: pa.DataType) -> Column:
    """The column as it came in an Arrow type: one that is not the usual one is kept."""
    if arrow == arrow_type(column.type) or not has_form(arrow):
        return column
    return replace(column, arrow=kept_form(arrow))


def _parse(text: bytes, name: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"column {name!r}: metadata {text!r:.80} is not JSON") from error


def _column_to_json(column: Column) -> dict[str, Any]:
    form: dict[str, Any] = {
        "name": column.name,
        "type": type_to_json(column.type),
        "nullable": column.nullable,
        "id": column.id,
    }
    if column.default is not None:
        form["default"] = column.default
    if column.derived is not None:
        form["derived"] = list(column.derived)
    if column.arrow is not None:
        form["arrow"] = form_to_json(column.arrow)
    return form


def _column_from_json(form: object) -> Column:
    if not isinstance(form, dict) or not {"name", "type"} <= form.keys() <= _COLUMN_KEYS:
        raise InvalidInputError(f"not a column of a schema: {form!r:.120}")
    nullable, column_id = form.get("nullable", False), form.get("id", "")
    if not isinstance(nullable, bool) or not isinstance(column_id, str):
        raise InvalidInputError(f"not a column of a schema: {form!r:.120}")
    kind = type_from_json(form["type"])
    derived = _derived_from_json(form.get("derived"))
    arrow = form_from_json(form["arrow"]) if "arrow" in form else None
    return Column(form["name"], kind, nullable, column_id, form.get("default"), derived, arrow)


def _derived_from_json(form: object) -> tuple[str, str] | None:
    match form:
        case None:
            return None
        case [str(source), str(fact)] if _ID.fullmatch(source):
            return source, fact
        case _:
            raise InvalidInputError(f"not what a column is derived from: {form!r:.120}")


_COLUMN_KEYS = {"name", "type", "nullable", "id", "default", "derived", "arrow"}
