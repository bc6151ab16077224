"""Column choice: which columns of a source become columns of a dataset, and of what types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, TypeVar

import pyarrow as pa

from tensorrepo.formats.common.damage import together
from tensorrepo.formats.dataset.schema.coerce import LastingBatch
from tensorrepo.formats.dataset.schema.schema import (
    Column,
    InputBatch,
    Schema,
    TypeLike,
    as_type,
)
from tensorrepo.formats.exchange.base import FormatOption, OpenedSource, parse_names
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError

Made = TypeVar("Made")
EXCLUDE = FormatOption("exclude", "all columns but these", parse_names)


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """What a caller wants of the columns of a source.

    Attributes:
        names: only these, in this order; None: all that there are.
        exclude: columns that are left out.
        types: types of columns whose inferred type is not what is meant, by name.
    """

    names: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    types: Mapping[str, TypeLike | Column] = field(default_factory=dict)

    def of(self, there: Collection[str], hidden: Collection[str] = ()) -> list[str]:
        """The chosen ones of the columns that are `there`; `hidden` ones only if they are named.

        Raises:
            NotFoundError: columns that are not there; names all of them.
        """
        wanted = [*(self.names or ()), *self.exclude, *self.types]
        if absent := [name for name in dict.fromkeys(wanted) if name not in there]:
            listed = ", ".join(map(repr, absent))
            raise NotFoundError(
                f"holds no column{'s' if len(absent) > 1 else ''} {listed}; "
                f"there are {', '.join(map(repr, there))}"
            )
        if self.names is None:
            shown = [name for name in there if name not in hidden or name in self.types]
        else:
            shown = list(self.names)
        chosen = [name for name in shown if name not in self.exclude]
        if there and not chosen:
            raise InvalidInputError("leaves no column: all are excluded")
        return chosen

    def wants(self, name: str) -> bool:
        """Whether a column of this name is chosen, if it is there."""
        return (self.names is None or name in self.names) and name not in self.exclude

    def declared(self, name: str, *, nullable: bool = True) -> Column | None:
        """The column that the caller says it is; None where its type is to be inferred."""
        told = self.types.get(name)
        if told is None or isinstance(told, Column):
            return told
        return Column(name, as_type(told), nullable)


def typed(source: OpenedSource, types: Mapping[str, TypeLike | Column]) -> OpenedSource:
    """A source some of whose columns have other types: the writer converts their values.

    Raises:
        NotFoundError: columns that the source has not.
    """
    choice = ColumnChoice(types=types)
    choice.of(source.schema.names)
    columns = (
        choice.declared(column.name, nullable=column.nullable) or column
        for column in source.schema.columns
    )
    return replace(source, schema=Schema(tuple(columns)))


def without(source: OpenedSource, exclude: tuple[str, ...]) -> OpenedSource:
    """A source without some of its columns."""
    if not exclude:
        return source
    names = ColumnChoice(exclude=exclude).of(source.schema.names)
    return replace(
        source,
        schema=source.schema.select(names),
        batches=_narrowed(source.batches, names),
        key=source.key if set(source.key) <= set(names) else (),
    )


def _narrowed(batches: Iterable[InputBatch], names: list[str]) -> Iterator[InputBatch]:
    for batch in batches:
        if isinstance(batch, pa.RecordBatch | pa.Table):
            yield batch.select(names)
        elif isinstance(batch, Mapping):
            kept: dict[str, Any] = {name: batch[name] for name in names if name in batch}
            yield LastingBatch(kept) if isinstance(batch, LastingBatch) else kept
        else:
            yield [{name: row[name] for name in names if name in row} for row in batch]


def each_column(
    names: Iterable[str], make: Callable[[str], Made], *, can_cast: bool = True
) -> list[Made]:
    """What `make` gives for each column. What it refuses is refused for all columns at once.

    `can_cast` says whether whoever has the source may give them another type.

    Raises:
        InvalidInputError, UnsupportedError: names every column that was refused.
    """
    made, problems = [], {}
    for name in names:
        try:
            made.append(make(name))
        except (InvalidInputError, UnsupportedError) as problem:
            problems[name] = problem
    if problems:
        told = [
            type(problem)(str(problem).partition(" Cast it, or leave it out")[0])
            for problem in problems.values()
        ]
        them = "them" if len(problems) > 1 else "it"
        advice = f"Cast {them}, or leave {them} out" if can_cast else f"Leave {them} out"
        raise together(told, "columns cannot be stored", f"{advice}: exclude={','.join(problems)}")
    return made
