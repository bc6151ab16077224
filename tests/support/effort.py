"""Test effort: a sample of the cases in the profile `dev`, all of them in `soak`.

The profile is Hypothesis's (tests/conftest.py registers both), so that one option decides how many
examples a property draws and how many cases a parametrised test has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, TypeVar

import pytest
from hypothesis import settings

DEV_EXAMPLES, SOAK_EXAMPLES = 6, 500
_SOAK_FACTOR = 20  # of numbers that a test names itself

_Case = TypeVar("_Case")


def soaking() -> bool:
    """Whether this session runs the profile `soak`."""
    return settings.get_current_profile_name() == "soak"


def examples(dev: int) -> int:
    """Examples of a property that the profile's number does not fit; 20 times `dev` in `soak`."""
    return dev * _SOAK_FACTOR if soaking() else dev


def sampled(cases: Sequence[_Case], dev: int) -> list[_Case]:
    """All `cases` in `soak`; `dev` of them in `dev`, the first, the last and evenly between.

    For cases of which none is special: seeds, crash points, bytes of a file.
    """
    if soaking() or dev >= len(cases):
        return list(cases)
    last = len(cases) - 1
    return [cases[round(at * last / (dev - 1))] for at in range(dev)] if dev > 1 else [cases[0]]


def sampled_product(names: str, *axes: Iterable[Any], dev: int) -> pytest.MarkDecorator:
    """Parametrise a test by the product of some axes, of which `dev` does `dev` cases.

    For axes of which each value is as good in any combination; `names` as `parametrize` has them.
    """
    return pytest.mark.parametrize(names.split(","), sampled(list(product(*axes)), dev))


def check_each(cases: Iterable[_Case], check: Callable[[_Case], object]) -> None:
    """Check cases of one test; what fails says which. For cases that are known as it runs."""
    checked = 0
    for case in cases:
        checked += 1
        try:
            check(case)
        except BaseException as failed:
            failed.add_note(f"case {case!r}")
            raise
    assert checked, "there were no cases"
