"""Pickles as descriptions: plain values are read, everything else is refused, nothing is run."""

from __future__ import annotations

import os
import pickle
import struct
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.exchange.checkpoints.torch import Function, PickleRecord, load_pickle
from tensorrepo.repo.errors import InvalidInputError

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 200), 1 << 200)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner, inner)
        | st.dictionaries(st.text(st.characters(codec="utf-8")) | st.integers(), inner, max_size=4)
    ),
)


def refuse(module: str, name: str) -> object:
    raise InvalidInputError(f"{module}.{name} is refused")


def load(data: bytes, **globals_: Any) -> Any:
    def find(module: str, name: str) -> object:
        known = globals_.get(f"{module}_{name}")
        return known if known is not None else refuse(module, name)

    return load_pickle(data, find, lambda key: ("storage", key))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@given(PLAIN)
def test_plain_values_are_what_pickle_says_they_are(protocol: int, value: Any) -> None:
    assert load(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("value", [b"", b"abc", bytes(300)])
def test_bytes_are_values(protocol: int, value: bytes) -> None:
    assert load(pickle.dumps(value, protocol)) == value


def test_a_shared_value_stays_shared_and_a_cycle_is_a_cycle() -> None:
    inner: list[Any] = [1]
    shared = load(pickle.dumps([inner, inner], 2))
    assert shared[0] is shared[1]
    inner.append(inner)
    cycle = load(pickle.dumps(inner, 2))
    assert cycle[1] is cycle


def test_a_known_function_is_called_with_its_arguments() -> None:
    data = b"\x80\x02cmy\nadd\nK\x01K\x02\x86R."
    assert load(data, my_add=Function(lambda a, b: a + b)) == 3


def test_the_caller_says_what_a_persistent_id_stands_for() -> None:
    assert load(b"\x80\x02K\x07Q.") == ("storage", 7)


def test_attributes_of_an_ordered_dict_are_passed_over() -> None:
    made = OrderedDict(a=1)
    made.note = "x"  # type: ignore[attr-defined]  # as torch notes a state dict's versions
    globals_ = {"collections_OrderedDict": Function(PickleRecord)}
    assert load(pickle.dumps(made, 2), **globals_) == {"a": 1}


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("function", [eval, exec, os.system, getattr, __import__, open])
def test_every_other_global_is_refused_by_name(protocol: int, function: Any) -> None:
    data = pickle.dumps(Evil(function, ("print(1)",)), protocol)
    name = function.__name__ if protocol >= 2 else "opcode|refused"
    with pytest.raises(InvalidInputError, match=name):
        load(data)


PROGRAMS = {
    "nothing": b"",
    "no end": b"\x80\x02N",
    "nothing left": b"\x80\x02.",
    "two values left": b"\x80\x02NN.",
    "a mark left": b"\x80\x02N(.",
    "a mark alone": b"\x80\x02(.",
    "pop of nothing": b"\x80\x020.",
    "a tuple of nothing": b"\x80\x02\x85.",
    "a tuple over a mark": b"\x80\x02(N\x86.",
    "no mark": b"\x80\x02Nt.",
    "an item without a list": b"\x80\x02NNa.",
    "items of a tuple": b"\x80\x02)(Ne.",
    "a dict with half an item": b"\x80\x02}(Nu.",
    "a list as a key": b"\x80\x02}]Ns.",
    "a tuple as a key": b"\x80\x02})Ns.",
    "a memo that was never made": b"\x80\x02h\x07.",
    "a memo of nothing": b"\x80\x02q\x00.",
    "a memo of a mark": b"\x80\x02(q\x00N.",
    "a text longer than the pickle": b"\x80\x02X\xff\xff\xff\xffabc.",
    "a text of 2^63 bytes": b"\x80\x02\x8d" + struct.pack("<Q", 1 << 63) + b".",
    "bytes longer than the pickle": b"\x80\x02B\xff\xff\xff\x7fabc.",
    "a negative length": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "an endless integer": b"\x80\x02\x8a\xff" + bytes(255) + b".",
    "text that is no UTF-8": b"\x80\x02X\x01\x00\x00\x00\xff.",
    "a name without end": b"\x80\x02c" + b"a" * 5000,
    "a global whose name is a number": b"\x80\x04K\x01K\x02\x93.",
    "a call of a value": b"\x80\x02N)R.",
    "a call with a list": b"\x80\x02cmy\nf\n]R.",
    "a call with too many arguments": b"\x80\x02cmy\nf\nN\x85R.",
    "attributes of a dict": b"\x80\x02}}b.",
    "an instance": b"\x80\x02cmy\nf\n)\x81.",
    "the old way to make an instance": b"\x80\x02(imy\nf\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "an out-of-band buffer": b"\x80\x05\x97.",
}


@pytest.mark.parametrize("fault", PROGRAMS)
def test_a_program_that_makes_no_plain_value_is_refused(fault: str) -> None:
    with pytest.raises(InvalidInputError):
        load(PROGRAMS[fault], my_f=Function(lambda: None))


def test_a_value_nested_very_deep_does_no_harm() -> None:
    value = load(b"\x80\x02)" + b"\x85" * 200_000 + b".")
    assert len(value) == 1


@given(st.binary(max_size=60))
def test_random_programs_end_in_a_value_or_a_refusal(data: bytes) -> None:
    try:
        load(b"\x80\x02" + data, my_f=Function(lambda: None))
    except InvalidInputError:
        return
    assert data.find(b".") >= 0
