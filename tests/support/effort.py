"""Test effort: a sample of the cases in the profile `dev`, all of them in `soak`.

The profile is Hypothesis's (tests/conftest.py registers both), so that one option decides how many
examples a property draws and how many cases a parametrised test has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from hypothesis import settings

DEV_EXAMPLES, SOAK_EXAMPLES = 25, 500

_Case = TypeVar("_Case")


def soaking() -> bool:
    """Whether this session runs the profile `soak`."""
    return settings.get_current_profile_name() == "soak"


def examples(dev: int) -> int:
    """Examples of a property too expensive for the profile's number; 20 times `dev` in `soak`."""
    return dev * settings().max_examples // DEV_EXAMPLES


def sampled(cases: Sequence[_Case], dev: int) -> list[_Case]:
    """All `cases` in `soak`; `dev` of them in `dev`, the first, the last and evenly between.

    For cases of which none is special: seeds, crash points, bytes of a file.
    """
    if soaking() or dev >= len(cases):
        return list(cases)
    last = len(cases) - 1
    return [cases[round(at * last / (dev - 1))] for at in range(dev)] if dev > 1 else [cases[0]]


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
