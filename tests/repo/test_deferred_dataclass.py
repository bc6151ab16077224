"""Dataclasses whose methods are made late: told from the library's by when they are made alone."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import InitVar, field, fields, replace
from typing import Any, ClassVar

import pytest

from tensorrepo.repo import deferred_dataclass

Decorator = Callable[..., Any]
OURS, LIBRARYS = vars(deferred_dataclass)["dataclass"], dataclasses.dataclass
NAN = float("nan")
Count = int  # a name of this module, by which others resolve an annotation


def _record(dataclass: Decorator, **asked: bool) -> Any:
    @dataclass(**asked)
    class Record:
        number: Count
        weight: float = 0.5
        words: list[str] = field(default_factory=list)
        secret: str = field(default="", repr=False, compare=False)
        note: str = field(default="", kw_only=True)
        LIMIT: ClassVar[int] = 3

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError(f"{self.number} is negative")

    return Record


def _single(dataclass: Decorator, **asked: bool) -> Any:
    @dataclass(**asked)
    class Single:
        """One value."""

        self: float

    return Single


def _own(dataclass: Decorator, **asked: bool) -> Any:
    @dataclass(**asked)
    class Own:  # noqa: PLW1641 - the decorator decides on its hash
        number: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "own"

    return Own


def _derived(dataclass: Decorator, **asked: bool) -> Any:
    @dataclass(**asked)
    class Derived(_record(dataclass, **asked)):  # type: ignore[misc]
        more: int = 7

    return Derived


def _unusual(dataclass: Decorator, **asked: bool) -> Any:
    @dataclass(order=True, **asked)
    class Unusual:
        number: int
        start: InitVar[int] = 3
        total: int = field(init=False)

        def __post_init__(self, start: int) -> None:
            object.__setattr__(self, "total", start + self.number)

    return Unusual


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - what is compared
        return type(error), str(error)


def _behavior(cls: Any) -> list[Any]:
    """What a caller can see of a class and its instances."""
    ones = [_outcome(lambda args=args: cls(*args)) for args in ((1,), (1, 2), (2,), (NAN,), ())]
    ones += [_outcome(lambda: cls(-1)), _outcome(lambda: cls(1, note="x")), copy.copy(ones[0])]
    return [
        [re.sub("0x[0-9a-f]+", "", repr(one)) for one in ones],
        [[_outcome(lambda a=a, b=b: a == b) for a in ones] for b in ones],
        [_outcome(lambda one=one: isinstance(hash(one), int)) for one in ones],
        [_outcome(lambda one=one: replace(one, note="y").note) for one in ones],
        _outcome(lambda: setattr(ones[0], fields(cls)[0].name, 5)),
        _outcome(lambda: delattr(ones[0], fields(cls)[0].name)),
        _outcome(lambda: ones[0] < ones[1]),
        [(one.name, one.type, one.init, one.repr, one.compare) for one in fields(cls)],
        str(inspect.signature(cls)),
        _outcome(lambda: str(inspect.signature(cls, eval_str=True))),
        repr(cls.__dataclass_params__),
        (cls.__match_args__, cls.__init__.__qualname__, cls.__hash__ is None),
    ]


@pytest.mark.parametrize("asked", [
    {}, {"frozen": True}, {"slots": True}, {"frozen": True, "slots": True}, {"eq": False},
    {"repr": False, "frozen": True}, {"kw_only": True}, {"unsafe_hash": True},
])  # fmt: skip
@pytest.mark.parametrize("make", [_record, _single, _own, _derived, _unusual])
def test_a_class_behaves_as_the_librarys(make: Callable[..., Any], asked: dict[str, bool]) -> None:
    made, expected = (
        _outcome(lambda which=which: make(which, **asked)) for which in (OURS, LIBRARYS)
    )
    assert _outcome(lambda: _behavior(made)) == _outcome(lambda: _behavior(expected))


@pytest.mark.parametrize("slots", [False, True])
def test_pickled_frozen_records_come_back(slots: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = _record(OURS, frozen=True, slots=slots)
    cls.__qualname__ = "Record"
    monkeypatch.setattr(sys.modules[__name__], "Record", cls, raising=False)
    one = cls(1, words=["a"], note="b")
    assert pickle.loads(pickle.dumps(one)) == one
    assert copy.deepcopy(one) == one


def test_no_init_is_compiled_before_an_instance_is_made() -> None:
    cls = _record(OURS, frozen=True)
    before = type(cls.__dict__["__init__"]).__name__
    cls(1)
    assert (before, inspect.isfunction(cls.__dict__["__init__"])) == ("_Deferred", True)


def test_a_class_of_the_librarys_decorator_derives_from_one_of_ours() -> None:
    @LIBRARYS(frozen=True)
    class Derived(_record(OURS, frozen=True)):  # type: ignore[misc]
        more: int = 7

    assert repr(Derived(1, more=2)).endswith(
        "Derived(number=1, weight=0.5, words=[], note='', more=2)"
    )
