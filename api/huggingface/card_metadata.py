"""Metadata of a card: the YAML in front of it, between lines of three hyphens, as JSON holds it.

Whoever may write a card writes this, and whoever looks at its repository has it parsed. A few
lines of YAML can name more values than memory holds, by aliases and by merge keys, and tags make
PyYAML raise whatever the conversion raises: values are counted, and all the rest is a fault of the
card.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.repo.errors import InvalidInputError, TooLargeError

if TYPE_CHECKING:
    import yaml

CARD: Final = "README.md"
MOST_CHARACTERS: Final = 1 << 20
_MOST_VALUES: Final = 200_000
_MOST_MERGED: Final = 1000  # pairs that merge keys bring into one map
_MOST_INTEGER: Final = 1 << 63
_FAULTS: Final = (
    ValueError,
    RecursionError,
    AttributeError,
    LookupError,
    TypeError,
    ArithmeticError,
)
Json = dict[str, Any]


def card_metadata(text: str) -> Json:
    """What a card says in front; nothing where it says nothing that can be read."""
    try:
        return parse_metadata(text)
    except InvalidInputError:
        return {}


def parse_metadata(text: str, *, most_characters: int = MOST_CHARACTERS) -> Json:
    """What a card says in front, with keys and moments as text; empty where nothing is in front.

    Raises:
        InvalidInputError: it is no YAML, no map, or names too many values.
        TooLargeError: it is longer than `most_characters`.
    """
    front = front_of(text)
    if front is None:
        return {}
    if len(front) > most_characters:
        raise TooLargeError(
            f"the metadata has {len(front):,} characters, {most_characters:,} at most are looked at"
        )
    import yaml  # 20 ms, for the first card

    try:
        found = _Counted().plain(_loader()(front).get_single_data())
    except (yaml.YAMLError, *_FAULTS) as error:
        raise InvalidInputError(f"the metadata is no YAML: {error}"[:500]) from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidInputError("the metadata is no map of names")
    return found


def front_of(text: str) -> str | None:
    """The lines in front of a card; None: it has none."""
    first, _, rest = text.partition("\n")
    front, end, _ = rest.partition("\n---")
    return front if first.strip() == "---" and end else None


class _Counted:
    """YAML as JSON holds it, up to a number of values: an alias is as many as what it names."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def plain(self, value: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"it names more than {_MOST_VALUES:,} values")
        if isinstance(value, dict):
            return {_text(str(key)): self.plain(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.plain(each) for each in value]
        if isinstance(value, int) and not -_MOST_INTEGER <= value < _MOST_INTEGER:
            return str(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        return _text(str(value))


def _text(text: str) -> str:
    """`text` as UTF-8 holds it: YAML can spell halves of characters."""
    return text.encode(errors="replace").decode()


@cache
def _loader() -> type[yaml.SafeLoader]:
    """YAML's safe loader, for which merge keys cannot multiply pairs without end."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            own = len(node.value)
            super().flatten_mapping(node)
            if len(node.value) > own + _MOST_MERGED:
                raise ValueError(f"merge keys bring more than {_MOST_MERGED:,} pairs into a map")

    return Loader
