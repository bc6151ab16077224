"""Merge of schemas and properties, column by column id.

What one side changed is taken from it: a name, a type, a default, a column more or less. What both
changed differently is a clash, which a preferred side decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import methodcaller
from typing import Any, TypeVar

from tensorrepo.formats.dataset.metadata.tree_write import Groups
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.widen import can_widen
from tensorrepo.formats.dataset.versions.conflicts import (
    Clash,
    SideName,
    column_clash,
    property_clash,
)
from tensorrepo.repo.deferred_dataclass import dataclass

_Value = TypeVar("_Value")
_ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class Three:
    """The same thing in three versions. `onto` is what the changes of `other` are put on.

    `names` are what users call these two; `prefer` decides what they contradict each other in.
    """

    base: Any
    onto: Any
    other: Any
    names: tuple[SideName, SideName] = ("ours", "theirs")
    prefer: SideName | None = None

    def of(self, get: Callable[[Any], Any]) -> Three:
        """Something of each version."""
        return replace(self, base=get(self.base), onto=get(self.onto), other=get(self.other))

    @property
    def changed(self) -> tuple[bool, bool]:
        """Whether `onto` and `other` differ from the base."""
        return self.onto != self.base, self.other != self.base

    @property
    def is_contested(self) -> bool:
        """Whether both changed it, differently."""
        return all(self.changed) and self.onto != self.other

    @property
    def result(self) -> Any:
        """What it becomes; where it is contested, that of the preferred side."""
        if self.is_contested:
            return self.other if self.prefer == self.names[1] else self.onto
        return self.onto if self.changed[0] else self.other

    @property
    def for_users(self) -> tuple[Any, Any, Any]:
        """Base, ours, theirs."""
        if self.names[0] == "ours":
            return self.base, self.onto, self.other
        return self.base, self.other, self.onto


@dataclass(frozen=True, slots=True)
class MergedSchema:
    """The columns of a merge.

    Attributes:
        schema: columns in the order of `onto`, then those that `other` has more.
        brought: ids of those that `onto` has not, and `other` brings.
        unlike: ids of those whose types do not go together.
        clashes: contradictions that no side was preferred for.
    """

    schema: Schema
    brought: frozenset[str]
    unlike: frozenset[str]
    clashes: tuple[Clash, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MergedRoot:
    """What the merged version is, beside its rows; `brought` are ids of columns of `other`."""

    schema: Schema
    groups: Groups
    brought: frozenset[str]
    properties: Mapping[str, Any]
    lineage: tuple[Mapping[str, Any], ...]


def merge_schemas(versions: Three, updated: tuple[frozenset[str], frozenset[str]]) -> MergedSchema:
    """The columns that two versions have together.

    `updated` are ids of the columns of which `onto`, and `other`, changed cells.
    """
    return _Merge(versions, updated).result()


class _Merge:
    def __init__(self, versions: Three, updated: tuple[frozenset[str], frozenset[str]]) -> None:
        self._versions = versions
        self._updated = updated
        self._by_id = versions.of(lambda schema: {each.id: each for each in schema.columns})
        self._clashes: list[Clash] = []
        self._unlike: set[str] = set()

    def result(self) -> MergedSchema:
        order = list(dict.fromkeys([*self._by_id.onto, *self._by_id.other]))
        merged = [column for each in order if (column := self._column(each)) is not None]
        unique = self._unique_names(merged)
        ids = {column.id for column in unique}  # a hidden column goes with its source
        kept = [each for each in unique if each.derived is None or each.derived[0] in ids]
        if not kept:
            self._clashes.append(column_clash("*", "the sides together drop all columns"))
            kept = list(self._versions.onto.columns)
        brought = frozenset(each.id for each in kept) - self._by_id.onto.keys()
        return MergedSchema(
            Schema(tuple(kept)), brought, frozenset(self._unlike), tuple(self._clashes)
        )

    def _column(self, column_id: str) -> Column | None:
        versions = self._by_id.of(lambda columns: columns.get(column_id))
        base: Column | None = versions.base
        onto: Column | None = versions.onto
        other: Column | None = versions.other
        if base is None and (onto is None or other is None):
            return onto or other
        if base is not None and (onto is None or other is None):
            return self._dropped(versions)
        return self._changed(versions) if base is not None else self._added_twice(versions)

    def _added_twice(self, versions: Three) -> Column:
        """Both sides picked one addition from elsewhere."""
        if versions.onto != versions.other and versions.prefer is None:
            why = "added on both sides, with other names, types or defaults"
            self._clashes.append(column_clash(versions.onto.name, why))
        found: Column = versions.result
        return found

    def _dropped(self, versions: Three) -> Column | None:
        """One side dropped the column, or both."""
        kept: Column | None = versions.onto or versions.other
        if kept is None:
            return None
        at = 0 if versions.onto is not None else 1
        changed = kept != versions.base or kept.id in self._updated[at]
        if not changed or kept.derived is not None:
            return None
        keeper, dropper = versions.names[at], versions.names[1 - at]
        if versions.prefer is None:
            why = f"dropped in {dropper}, changed in {keeper}"
            self._clashes.append(column_clash(versions.base.name, why))
        return kept if versions.prefer == keeper else None

    def _changed(self, versions: Three) -> Column:
        """The column as both sides together have it."""
        name = self._agreed(versions, lambda column: column.name, "renamed to")
        default = self._agreed(versions, lambda column: column.default, "its default is")
        kind, nullable = self._type(versions)
        onto: Column = versions.onto
        return replace(onto, name=name, type=kind, nullable=nullable, default=default)

    def _agreed(self, versions: Three, get: Callable[[Column], _Value], what: str) -> _Value:
        three = versions.of(get)
        if three.is_contested and three.prefer is None and versions.base.derived is None:
            _, ours, theirs = three.for_users
            why = f"{what} {ours!r} in ours, {theirs!r} in theirs"
            self._clashes.append(column_clash(versions.base.name, why))
        found: _Value = three.result
        return found

    def _type(self, versions: Three) -> tuple[Any, bool]:
        """Type and nullability: what holds the values of both sides, where there is such."""
        nullable = versions.onto.nullable or versions.other.nullable
        three = versions.of(lambda column: column.type)
        if not three.is_contested:
            return three.result, nullable
        onto, other = (replace(each, nullable=nullable) for each in (versions.onto, versions.other))
        if can_widen(onto, other) is None:
            return other.type, nullable
        if can_widen(other, onto) is None:
            return onto.type, nullable
        _, ours, theirs = versions.for_users
        why = (
            f"{ours.type_text} in ours, {theirs.type_text} in theirs, and neither holds "
            "the values of the other"
        )
        self._unlike.add(versions.base.id)
        # No preference helps: pages of the other side could not be read.
        self._clashes.append(column_clash(versions.base.name, why))
        return three.result, nullable

    def _unique_names(self, columns: Sequence[Column]) -> list[Column]:
        """The columns, of two with one name only the one that is preferred."""
        by_name: dict[str, Column] = {}
        for column in columns:
            known = by_name.get(column.name)
            if known is None:
                by_name[column.name] = column
            elif known.derived is not None or column.derived is not None:
                by_name[column.name] = known if column.derived is not None else column
            else:
                by_name[column.name] = self._chosen(known, column)
        return list(by_name.values())

    def _chosen(self, known: Column, column: Column) -> Column:
        """Of two columns of one name: the first is there in `onto`, the second in `other`."""
        if self._versions.prefer is None:
            why = "a column of that name came on both sides; rename one of them first"
            self._clashes.append(column_clash(column.name, why))
        return column if self._versions.prefer == self._versions.names[1] else known


def merge_properties(versions: Three) -> tuple[dict[str, Any], tuple[Clash, ...]]:
    """The properties that two versions have together, key by key, and what they clash in."""
    merged: dict[str, Any] = {}
    clashes = []
    for name in dict.fromkeys([*versions.onto, *versions.other]):
        three = versions.of(methodcaller("get", name, _ABSENT))
        if three.is_contested and three.prefer is None:
            values = [None if each is _ABSENT else each for each in three.for_users]
            clashes.append(property_clash(name, (values[0], values[1], values[2])))
        if three.result is not _ABSENT:
            merged[name] = three.result
    return merged, tuple(clashes)


def merge_lineage(versions: Three) -> tuple[Mapping[str, Any], ...]:
    """The lineage of both sides, what `other` has more behind."""
    known = [*versions.base, *versions.onto]
    return (*versions.onto, *(each for each in versions.other if each not in known))


def merge_groups(groups: tuple[Groups, Groups], schema: Schema) -> Groups:
    """The column groups of a merge: those of the first, then those that the second has more."""
    ids = {column.id for column in schema.columns}
    kept = [group for group in groups[0] if ids & set(group)]
    grouped = {column for group in kept for column in group}
    more = [tuple(each for each in group if each in ids - grouped) for group in groups[1]]
    kept += [group for group in more if group]
    grouped = {column for group in kept for column in group}
    alone = [(column.id,) for column in schema.columns if column.id not in grouped]
    return (*kept, *alone)
