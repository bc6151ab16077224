"""A state that is taken apart and put together is the same state, and nothing else gets in."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.model.state.state_dict import MAX_NESTING, put_together, take_apart
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.json_rules import check_json

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
KEYS = st.text() | st.integers() | st.tuples(st.text(), st.integers())
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


def through(state: dict[str, Any]) -> Any:
    """Apart, as JSON in MessagePack as a manifest keeps it, and together again."""
    apart = take_apart(state)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(apart.skeleton, order="sorted"))
    return put_together(stored, apart.tensors)


@given(st.dictionaries(st.text(), VALUES, max_size=5))
def test_plain_values_come_back(state: dict[str, Any]) -> None:
    found = through(state)
    assert found == state
    assert list(found) == list(state)


def test_tensors_come_back_where_they_were() -> None:
    array, scalar = np.arange(3, dtype=np.int16), np.float16(0.5)
    state = {"a.b": array, "a": {"b": np.ones(2)}, "list": [scalar, {0: np.zeros(1)}]}
    found = through(state)
    assert found["a.b"] is array
    assert (found["a"]["b"].tolist(), found["list"][1][0].tolist()) == ([1, 1], [0])
    assert (found["list"][0], type(found["list"][0])) == (scalar, np.float16)


def test_names_are_paths_and_never_clash() -> None:
    names = list(take_apart({"a.b": np.ones(1), "a": {"b": np.ones(1)}}).tensors)
    assert names == ["a.b", "a.b#2"]


@pytest.mark.parametrize("value", [object(), {1, 2}, len, np.array([object()])[0]])
def test_what_is_no_plain_value_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"optimizer\.0 is of type"):
        take_apart({"optimizer": [value]})


def test_a_state_is_a_dict_with_names() -> None:
    with pytest.raises(InvalidInputError, match="names as keys"):
        take_apart({1: 2})  # type: ignore[dict-item]  # what is refused


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("a\ud800", "half a surrogate pair"),
        ({"\udc00": 1}, "half a surrogate pair"),
        ({1: {"\udc00": 1}}, "half a surrogate pair"),
        ({"x" * 5000: np.zeros(1)}, "5002 bytes, expected 1 to 4096"),
        (10**4096, "an integer of 13,607 bits"),
        (-(10**4095), "an integer of 13,604 bits"),
        (10**9999, "an integer of 33,216 bits"),
    ],
    ids=["value", "key", "key of pairs", "name", "4097 digits", "sign", "10,000 digits"],
)
def test_what_a_manifest_has_no_room_for_is_refused_at_once(value: Any, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        take_apart({"s": value})


def test_a_tensor_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="0 bytes, expected 1 to 4096"):
        take_apart({"": np.zeros(1)})


def test_the_longest_integer_comes_back() -> None:
    assert through({"a": 10**4095})["a"] == 10**4095


class Phase(str, enum.Enum):  # noqa: UP042  whose str() is another text
    WARM = "warm"


@pytest.mark.parametrize("text", [np.str_("warm"), Phase.WARM])
def test_text_is_text_of_whatever_class(text: str) -> None:
    found = through({"phase": text, "by": {np.str_("key"): text}})
    assert found == {"phase": "warm", "by": {"key": "warm"}}
    assert {type(found["phase"]), *map(type, found["by"])} == {str}


def nested(wrapper: Callable[[Any], Any], levels: int, value: Any = 1) -> Any:
    for _ in range(levels):
        value = wrapper(value)
    return {"a": value}


def is_taken(state: dict[str, Any]) -> bool:
    try:
        take_apart(state)
    except InvalidInputError:
        return False
    return True


WRAPPERS = [lambda value: [value], lambda value: (value,), lambda value: {0: value},
            lambda value: {"b": 1, "a": value}, lambda value: {(1,): value},
            lambda value: {"k": value}]  # fmt: skip


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("value", [1, np.zeros(1), 1j, 1 << 70])
def test_what_is_taken_apart_fits_into_a_manifest(
    wrapper: Callable[[Any], Any], value: Any
) -> None:
    deepest = next(at for at in range(18, 64) if not is_taken(nested(wrapper, at + 1, value)))
    check_json({"state": take_apart(nested(wrapper, deepest, value)).skeleton}, "metadata")
    assert through(nested(wrapper, deepest, value)) == nested(wrapper, deepest, value)


def test_endless_nesting_is_refused() -> None:
    nested: Any = 1
    for _ in range(MAX_NESTING + 1):
        nested = [nested]
    with pytest.raises(InvalidInputError, match="nested deeper"):
        take_apart({"a": nested})


@pytest.mark.parametrize(
    "skeleton",
    [
        {"$tensor": "missing"},
        {"$tensor": []},
        {"$code": "print()"},
        {"$int": "9" * 5000},
        {"$int": "one"},
        {"$bytes": "?"},
        {"$dict": [[[], 1]]},
        {"$dict": 7},
        {"$tuple": 7},
        {"$complex": [1]},
    ],
)
def test_a_damaged_state_is_refused(skeleton: Any) -> None:
    with pytest.raises(CorruptError, match="training state"):
        put_together(skeleton, {})
