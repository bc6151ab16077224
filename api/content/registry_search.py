"""Search of registered models: by name, words, labels, aliases, and metrics of newest versions.

Names, labels and aliases are looked up in memory; metrics stand in models, which are read once and
kept. A page looks at a bounded number of names: it may have fewer items than were asked for, and
more behind it.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import field
from math import isfinite
from typing import Final

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.content.registry import (
    RegisteredModelInfo,
    memory_of,
    model_info,
    reads_card,
    seen,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.registry.versions import Registered

MOST_LOOKED_AT: Final = 5000  # names, for one page
MOST_READ: Final = 1000  # models, for one page
_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_METRIC = re.compile(r"(?P<name>[^<>=!]{1,256}?)\s*(?P<sign>>=|<=|!=|>|<|=)\s*(?P<value>\S{1,40})")


@dataclass(frozen=True, slots=True)
class MetricFilter:
    """``accuracy>=0.9``, of the newest version."""

    name: str
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> MetricFilter:
        """Raises InvalidInputError."""
        parts = _METRIC.fullmatch(text.strip())
        try:
            value = float(parts["value"]) if parts else float("nan")
        except ValueError:
            value = float("nan")
        if parts is None or not isfinite(value):
            raise InvalidInputError(
                f"metric filter {text!r:.120}: expected a name, one of >= <= != > < =, and a "
                "number, such as 'accuracy>=0.9'"
            )
        return cls(parts["name"].strip(), parts["sign"], value)

    def fits(self, metrics: Mapping[str, object]) -> bool:
        value = metrics.get(self.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return _COMPARE[self.sign](value, self.value)


@dataclass(frozen=True, slots=True)
class RegistrySearch:
    """What is searched for; all of it must fit.

    Attributes:
        text: part of the name or of the description, whatever the case.
        labels: labels that the model or its newest version has; None: of any value.
        alias: alias that the model has.
        metrics: filters on metrics of the newest version.
    """

    text: str = ""
    labels: Mapping[str, str | None] = field(default_factory=dict)
    alias: str | None = None
    metrics: tuple[MetricFilter, ...] = ()


def parse_label(text: str) -> tuple[str, str | None]:
    """``task=segmentation``, or ``task`` of any value."""
    name, sign, value = text.partition("=")
    return name, value if sign else None


def list_registered(
    access: RepositoryAccess,
    search: RegistrySearch = RegistrySearch(),
    *,
    after: str | None = None,
    limit: int = 100,
) -> tuple[list[RegisteredModelInfo], str | None]:
    """Registered models by name, behind `after`, that the caller may see and that fit.

    Returns:
        At most `limit` of them, and the name behind which the next page begins; None: there is
        none. Where much was looked at and little fits, a page may have fewer, or none, and more
        follow.
    """
    view = access.view
    memory = memory_of(access)
    known = memory.index.at(view)
    described = memory.described(access.core, view)
    names = sorted(known.keys() | described.keys())
    found: list[RegisteredModelInfo] = []
    looked, read = 0, 0
    for name in names[0 if after is None else bisect_right(names, after) :]:
        if len(found) == limit or looked == MOST_LOOKED_AT or read >= MOST_READ:
            return found, after
        after, looked = name, looked + 1
        one = seen(access, name, known.get(name))
        entry = described.get(name)
        card = None
        if entry is not None and reads_card(access, name, one):
            card = memory.card_at(access.core, entry)
        if one is None and card is None:
            continue
        info = model_info(view, name, one or Registered(), card)
        newest = {} if card is None or info.latest is None else card.of(info.latest).labels
        if not _fits(search, info, newest):
            continue
        if search.metrics:
            if one is None or info.latest is None:
                continue
            read += memory.known_facts(one.versions[info.latest]) is None
            facts = memory.facts_of(access.core, name, info.latest, one)
            if not all(one.fits(facts.metrics) for one in search.metrics):
                continue
        found.append(info)
    return found, None


def _fits(search: RegistrySearch, info: RegisteredModelInfo, newest: Mapping[str, str]) -> bool:
    text = search.text.lower()
    if text and text not in info.name.lower() and text not in info.description.lower():
        return False
    if search.alias is not None and search.alias not in info.aliases:
        return False
    labels = {**newest, **info.labels}
    return all(
        name in labels and value in (None, labels[name]) for name, value in search.labels.items()
    )
