"""Filters of records as clients of experiment trackers write them, parsed and decided.

    metrics.loss < 0.5 AND params.`layer size` != '128' AND tags.owner LIKE 'a%'
    attributes.run_id IN ('a', 'b') AND tags.done IS NOT NULL

A clause is a field, a comparison and a value; clauses are joined by AND. Words and comparisons are
MLflow's; what it does not know is refused, and the error says what there is.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, TypeVar

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

T = TypeVar("T")
METRIC, PARAM, TAG, ATTRIBUTE, DATASET = "metric", "param", "tag", "attribute", "dataset"
MAX_FILTER_CHARACTERS: Final = 64 << 10
_KINDS: Final[Mapping[str, str]] = {
    "metric": METRIC, "metrics": METRIC,
    "param": PARAM, "params": PARAM, "parameter": PARAM, "parameters": PARAM,
    "tag": TAG, "tags": TAG,
    "attribute": ATTRIBUTE, "attributes": ATTRIBUTE, "attr": ATTRIBUTE, "run": ATTRIBUTE,
    "dataset": DATASET, "datasets": DATASET,
}  # fmt: skip
_NUMBERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
}
_TEXTS: Final = ("=", "!=", "LIKE", "ILIKE")
_LISTS: Final = ("IN", "NOT IN")
_ABSENCE: Final = ("IS NULL", "IS NOT NULL")
_QUOTED: Final = r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\""
_CLAUSE: Final = re.compile(
    rf"""\s*
    (?P<field>(?:`[^`]+`|"[^"]+"|[^\s`"'=<>!()]+)(?:\s*(?<=\.)(?:`[^`]+`|"[^"]+"|'[^']+'))?)
    \s*
    (?:
        (?P<absence>IS\s+NOT\s+NULL|IS\s+NULL)
      | (?P<sign>>=|<=|!=|=|>|<|NOT\s+ILIKE|NOT\s+LIKE|ILIKE\b|LIKE\b|NOT\s+IN\b|IN\b)
        \s*
        (?P<value>{_QUOTED}|-?\d[\w.+-]*|-?\.\d[\w.+-]*|\((?:{_QUOTED}|[^'"()])*\))
    )
    \s*(?P<end>\Z|\bAND\b|;\s*\Z)""",
    re.VERBOSE | re.IGNORECASE,
)
_LIST_ITEM: Final = re.compile(rf"\s*({_QUOTED})\s*(,|\Z)")
_ORDER: Final = re.compile(
    r"\s*(?P<field>(?:[^\s`\"']|`[^`]*`|\"[^\"]*\"|'[^']*')+)(?:\s+(?P<way>asc|desc))?\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FilterFields:
    """Fields that records of one kind have.

    Attributes:
        texts: attributes that are texts.
        numbers: attributes that are numbers.
        kinds: what else there is by name: `METRIC`, `PARAM`, `TAG`, `DATASET`.
        lists: attributes that may be compared with a list.
        aliases: other names of attributes.
    """

    texts: frozenset[str]
    numbers: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)

    def named(self, text: str) -> tuple[str, str]:
        """Kind and key of a field as it was written. Raises InvalidInputError."""
        head, dot, rest = text.partition(".")
        kind = _KINDS.get(_bare(head).lower()) if dot else ATTRIBUTE
        key = _bare(rest if dot else text)
        if kind is None or (kind != ATTRIBUTE and kind not in self.kinds):
            known = ", ".join([ATTRIBUTE, *sorted(self.kinds)])
            raise InvalidInputError(f"Invalid entity type '{head:.80}'. Valid values are {known}")
        key = self.aliases.get(key, key) if kind == ATTRIBUTE else key
        if kind == ATTRIBUTE and key not in self.texts | self.numbers:
            known = ", ".join(sorted(self.texts | self.numbers))
            raise InvalidInputError(
                f"Invalid attribute key '{key:.80}' specified. Valid keys are {known}"
            )
        return kind, key


@dataclass(frozen=True, slots=True)
class FilterClause:
    """One clause; `value` is a number, a text, a set of texts, or None for absence."""

    kind: str
    key: str
    sign: str
    value: Any

    def fits(self, found: object) -> bool:
        """Whether what a record has there fits; of a list, whether any of it does."""
        if isinstance(found, list):
            return any(self.fits(one) for one in found)
        if self.sign in _ABSENCE:
            return (found is None) == (self.sign == "IS NULL")
        if found is None:
            return False
        if self.sign in _LISTS:
            return (found in self.value) == (self.sign == "IN")
        if self.sign in {"LIKE", "ILIKE"}:
            return _is_like(str(found), self.value, any_case=self.sign == "ILIKE")
        return _NUMBERS[self.sign](found, self.value)


Lookup = Callable[[str, str], object]  # of a record: kind and key -> value, None where it has none


def parse_filter(text: str, fields: FilterFields) -> list[FilterClause]:
    """The clauses of a filter, none of an empty one. Raises InvalidInputError."""
    if len(text) > MAX_FILTER_CHARACTERS:
        raise InvalidInputError(f"a filter of {len(text)} characters is too long")
    clauses, at = [], 0
    while text[at:].strip():
        match = _CLAUSE.match(text, at)
        if match is None:
            raise InvalidInputError(
                f"Invalid clause(s) in filter string: '{text[at:].strip():.200}'"
            )
        clauses.append(_clause(match, fields))
        at = match.end()
        if match["end"].upper() == "AND" and not text[at:].strip():
            raise InvalidInputError("Invalid filter: nothing follows its last AND")
    return clauses


def fits_all(clauses: Iterable[FilterClause], lookup: Lookup) -> bool:
    return all(clause.fits(lookup(clause.kind, clause.key)) for clause in clauses)


def sort_records(
    records: Iterable[T],
    order_by: Sequence[str],
    fields: FilterFields,
    lookup: Callable[[T], Lookup],
) -> list[T]:
    """Records ordered by ``metrics.loss DESC`` and the like, the first of these counting most.

    What has no such value comes last, and NaN before that, whichever way.
    """
    found = list(records)
    for text in reversed(order_by):
        kind, key, ascending = parse_order(text, fields)
        known = [(_sorted_as(lookup(one)(kind, key)), one) for one in found]
        having = [pair for pair in known if not pair[0][0]]
        lacking = [pair for pair in known if pair[0][0]]
        having.sort(key=lambda pair: pair[0][1], reverse=not ascending)
        lacking.sort(key=lambda pair: pair[0][0])
        found = [one for _, one in (*having, *lacking)]
    return found


def parse_order(text: str, fields: FilterFields) -> tuple[str, str, bool]:
    """Kind, key, and whether it ascends, of ``metrics.loss DESC``. Raises InvalidInputError."""
    match = _ORDER.fullmatch(text)
    if match is None:
        raise InvalidInputError(f"Invalid order_by clause '{text:.200}'. Could not be parsed.")
    kind, key = fields.named(match["field"])
    return kind, key, (match["way"] or "asc").lower() == "asc"


def _clause(match: re.Match[str], fields: FilterFields) -> FilterClause:
    kind, key = fields.named(match["field"])
    if match["absence"]:
        if kind not in {TAG, PARAM}:
            raise InvalidInputError(f"IS NULL is for tags and params, not for {kind} '{key:.80}'")
        return FilterClause(kind, key, _one_space(match["absence"]), None)
    sign = _one_space(match["sign"])
    is_number = kind == METRIC or (kind == ATTRIBUTE and key in fields.numbers)
    takes_list = kind == DATASET or (kind == ATTRIBUTE and key in fields.lists)
    allowed = (*_NUMBERS,) if is_number else (*_TEXTS, *(_LISTS if takes_list else ()))
    if sign not in allowed:
        known = ", ".join(allowed)
        raise InvalidInputError(
            f"Invalid comparator '{sign}' of {kind} '{key:.80}': expected one of {known}"
        )
    return FilterClause(
        kind, key, sign, _value(match["value"], kind, key, sign, is_number=is_number)
    )


def _value(text: str, kind: str, key: str, sign: str, *, is_number: bool) -> Any:
    if is_number:
        try:
            return float(text)
        except ValueError:
            raise InvalidInputError(
                f"Expected numeric value type for {kind} '{key:.80}'. Found {text:.80}"
            ) from None
    if sign in _LISTS:
        return _list_of(text, kind, key)
    if text[0] not in "'\"":
        raise InvalidInputError(
            f"Expected a quoted string value for {kind} '{key:.80}' (e.g. 'my-value'). "
            f"Got value {text:.80}"
        )
    return _bare(text)


def _list_of(text: str, kind: str, key: str) -> frozenset[str]:
    inner, at, items = text[1:-1], 0, []
    if text[0] == "(":
        while match := _LIST_ITEM.match(inner, at):
            items.append(_bare(match[1]))
            at = match.end()
    if not items or at < len(inner):
        raise InvalidInputError(
            f"Expected a list of quoted string values for {kind} '{key:.80}', such as "
            f"('a', 'b'). Got value {text:.80}"
        )
    return frozenset(items)


def _bare(text: str) -> str:
    """A text without its quotes."""
    mark = text[:1]
    if mark in {"'", '"', "`"} and len(text) > 1 and text[-1] == mark:
        return text[1:-1].replace(mark * 2, mark)
    return text


def _one_space(text: str) -> str:
    return " ".join(text.upper().split())


def _is_like(text: str, pattern: str, *, any_case: bool) -> bool:
    """Whether a text fits a pattern of SQL, in time that is their product at most."""
    if any_case:
        text, pattern = text.lower(), pattern.lower()
    at = place = kept = 0
    star = -1  # where the last % of the pattern is; what it stands for ends before `kept`
    while at < len(text):
        if place < len(pattern) and pattern[place] == "%":
            star, kept, place = place, at, place + 1
        elif place < len(pattern) and pattern[place] in {"_", text[at]}:
            at, place = at + 1, place + 1
        elif star >= 0:
            kept += 1
            at, place = kept, star + 1
        else:
            return False
    return not pattern[place:].strip("%")


def _sorted_as(value: object) -> tuple[int, Any]:
    """Order of a value: 0 for one, 1 for NaN, 2 for none."""
    if value is None:
        return 2, None
    if isinstance(value, float) and math.isnan(value):
        return 1, None
    return 0, value
