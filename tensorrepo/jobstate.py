"""What is the state of a job, put together of what torch took apart on its ranks?

Torch flattens a state: a tensor's name is its path, in which every key is text, and dicts that hold
nothing are gone. An optimizer's state has numbers as keys, and is no such state without an empty
`state`. So each rank says which keys were no text, and where nothing was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.formats.model.training.statetree import put_together, take_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Path = tuple[str | int, ...]  # as torch writes it: numbers are places in lists
_KEYS: Final = (bool, int, float, bytes, type(None))  # other keys that are no text become text


@dataclass(frozen=True, slots=True)
class Untold:
    """What the paths of a state do not tell.

    `keys` are those that are no text, by the paths that end in them; `empty` are the paths of
    dicts that hold nothing.
    """

    keys: dict[Path, Any] = field(default_factory=dict)
    empty: dict[Path, None] = field(default_factory=dict)


def untold(state: Mapping[Any, Any]) -> Untold:
    """What is lost when torch flattens a state."""
    found = Untold()
    _look(state, (), found)
    return found


def join_state(
    paths: Mapping[str, Path],
    texts: Mapping[str, Any],
    told: Iterable[Untold],
    stand_in: Callable[[], Any],
) -> Any:
    """The skeleton of a state, as `take_apart` makes it.

    Args:
        paths: of all that was flattened, by flat name.
        texts: the JSON of what is no tensor, by flat name.
        told: by each rank.
        stand_in: makes a torch tensor that stands for one that is stored.
    """
    keys: dict[Path, Any] = {}
    state: dict[Any, Any] = {}
    told = list(told)
    for one in told:
        keys |= one.keys
    for path in (path for one in told for path in one.empty):
        _place(state, path, {}, keys)
    names: dict[int, str] = {}
    for name, path in paths.items():
        value = put_together(texts[name], {}) if name in texts else stand_in()
        if name not in texts:
            names[id(value)] = name
        _place(state, path, value, keys)
    apart = take_apart(state)
    return _named(apart.skeleton, {one: names[id(it)] for one, it in apart.tensors.items()})


def replace_at(state: Any, path: Path, value: Any) -> None:
    """Put a value where a flattened path leads, in a state that has this place."""
    for part in path[:-1]:
        state = state[_key(state, part)]
    state[_key(state, path[-1])] = value


def _look(value: Any, path: Path, found: Untold) -> None:
    """Walks as torch does: through dicts and lists, and not through tuples."""
    if isinstance(value, Mapping):
        if not value and path:
            found.empty[path] = None
        for key, item in value.items():
            inside = (*path, str(key))
            if isinstance(key, _KEYS):
                found.keys[inside] = key
            _look(item, inside, found)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _look(item, (*path, at), found)


def _place(state: Any, path: Path, value: Any, keys: Mapping[Path, Any]) -> None:
    """Put a value into a state that grows with it."""
    for at, part in enumerate(path[:-1], 1):
        state = _at(state, keys.get(path[:at], part), [] if isinstance(path[at], int) else {})
    last = keys.get(path, path[-1])
    _at(state, last, value)
    state[last] = value


def _at(container: Any, key: Any, fresh: Any) -> Any:
    """What lies at a key; `fresh`, where nothing does."""
    if isinstance(container, dict):
        return container.setdefault(key, fresh)
    container += [None] * (key + 1 - len(container))
    if container[key] is None:
        container[key] = fresh
    return container[key]


def _key(container: Any, part: str | int) -> Any:
    """The key that torch wrote as this part of a path."""
    if not isinstance(container, Mapping) or part in container:
        return part
    return next((key for key in container if str(key) == part), part)


def _named(node: Any, names: Mapping[str, str]) -> Any:
    """A skeleton that names tensors otherwise."""
    if isinstance(node, list):
        return [_named(one, names) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        key: names[one] if key == "$tensor" else _named(one, names) for key, one in node.items()
    }
