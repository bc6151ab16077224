"""Merged cases: all cases of a parametrised test as one item of pytest, with ``--merge-cases``.

Each item costs pytest five milliseconds beside what it tests, and each worker of pytest-xdist
collects all of them: with 20,000 items two minutes of a processor. `make test` merges; one file
that somebody runs, and a soak, have an item for each case, which can be chosen by its name.

All cases run whatever becomes of the others; each that fails is named, and some that are skipped
beside others are told as a warning. Merged are those that share nothing that pytest makes anew for
each case, but for a folder, of which each has its own; and those of tests that are marked
`together`, which change nothing that they are given.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

NOT_MERGED = {"xfail", "usefixtures"}  # marks of tests

_Case = Mapping[str, Any]


def merged_items(
    module: pytest.Module, name: str, test: Callable[..., None]
) -> list[pytest.Item] | None:
    """One item for all cases of a test; None where it needs one for each, or has just one."""
    cases = cases_of(test)
    if cases is None or len(cases) == 1 or any(module.iter_markers("parametrize")):
        return None
    merged = merge(test, cases)
    manager = module.session._fixturemanager  # no public part of pytest tells scopes of fixtures
    fixtures = manager.getfixtureinfo(module, merged, None)
    made = fixtures.name2fixturedefs
    if "request" in inspect.signature(merged).parameters:
        return None
    if not _is_together(test) and not _can_share(merged, made):
        return None
    setattr(module.obj, name, merged)  # pytest looks there, and makes one for each form of fixtures
    items = module.ihook.pytest_pycollect_makeitem(collector=module, name=name, obj=merged)
    return list(items)


def cases_of(test: Callable[..., None]) -> list[_Case] | None:
    """What a test is called with, case by case, without those of a soak; None: do not merge it."""
    marks = getattr(test, "pytestmark", [])
    axes = [mark for mark in marks if mark.name == "parametrize"]
    if not axes or hasattr(test, "hypothesis") or any(mark.name in NOT_MERGED for mark in marks):
        return None
    if any(mark.kwargs.keys() - {"ids"} for mark in axes):
        return None  # "indirect" and "scope" are pytest's own matter
    values = [_axis(*mark.args) for mark in axes]
    if not all(values):
        return None
    parts = itertools.product(*(value for value in values if value is not None))
    return [{name: of for part in case for name, of in part.items()} for case in parts]


def merge(test: Callable[..., None], cases: Sequence[_Case]) -> Callable[..., None]:
    """A test without parameters that calls another one with the arguments of each case."""

    def merged(**fixtures: Any) -> None:
        failed = list(_failures(test, cases, fixtures))
        if len(failed) == 1:
            raise failed[0]
        if failed:
            raise ExceptionGroup(f"{len(failed)} of {len(cases)} cases failed", failed)

    parameters = inspect.signature(test).parameters.items()
    wanted = [parameter for name, parameter in parameters if name not in cases[0]]
    merged.__name__, merged.__doc__ = test.__name__, test.__doc__
    merged.__wrapped__ = test  # type: ignore[attr-defined]  # pytest says where that one is
    merged.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined]
    marks = getattr(test, "pytestmark", [])
    merged.pytestmark = [  # type: ignore[attr-defined]
        mark for mark in marks if mark.name != "parametrize"
    ]
    return merged


def _failures(
    test: Callable[..., None], cases: Sequence[_Case], fixtures: Mapping[str, Any]
) -> Iterator[Exception]:
    skipped = []
    for at, case in enumerate(cases):
        own = {}
        if "tmp_path" in fixtures and not _is_together(test):
            own["tmp_path"] = Path(fixtures["tmp_path"]) / str(at)
            own["tmp_path"].mkdir()
        try:
            test(**{**fixtures, **own, **case})
        except pytest.skip.Exception as skip:
            skipped.append(skip)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # the next ones too
            yield _named(error, case)
    if len(skipped) == len(cases):
        raise skipped[0]
    if skipped:  # the item has passed, and its summary would say nothing of them
        told = f"{len(skipped)} of {len(cases)} cases were skipped: {skipped[0].msg}"
        warnings.warn(pytest.PytestWarning(told), stacklevel=2)


def _named(error: BaseException, case: _Case) -> Exception:
    said = ", ".join(f"{name}={value!r:.100}" for name, value in case.items())
    error.add_note(f"in the case {said}")
    if isinstance(error, Exception):
        return error
    failed = AssertionError(str(error))  # `pytest.fail`, which no group of errors may hold
    failed.add_note(error.__notes__[-1])
    return failed


def _axis(names: str | Sequence[str], values: Any) -> list[dict[str, Any]] | None:
    """Arguments for each value of one `parametrize`; None where pytest itself has to see them."""
    if not hasattr(values, "__len__"):
        return None
    keys = names.split(",") if isinstance(names, str) else list(names)
    keys = [key.strip() for key in keys if key.strip()]
    axis = []
    for value in values:
        arguments = (value,) if len(keys) == 1 else value
        if isinstance(value, type(pytest.param())):
            marks = [mark for mark in value.marks if not _says_nothing(mark)]
            if [mark.name for mark in marks] == ["soak"]:
                continue
            if marks:
                return None
            arguments = value.values
        axis.append(dict(zip(keys, arguments, strict=True)))
    return axis


def _says_nothing(mark: Any) -> bool:
    """Whether a case is not skipped by a `skipif` after all: kernels are compiled here."""
    return getattr(mark, "name", "") == "skipif" and mark.args == (False,)


def _is_together(test: Callable[..., None]) -> bool:
    return any(mark.name == "together" for mark in getattr(test, "pytestmark", []))


def _can_share(merged: Callable[..., None], fixtures: Mapping[str, Sequence[Any]]) -> bool:
    """Whether all cases may have the same fixtures: of modules or wider, and a folder.

    Those that are used by themselves may be for each test, where they change what is in memory
    and look at no case: a constant that is patched, threads that are counted.
    """
    asked = inspect.signature(merged).parameters
    anew = {name for name, made in fixtures.items() if made and made[-1].scope == "function"}
    if not anew.intersection(asked) <= {"tmp_path"}:
        return False
    by_themselves = anew - {"tmp_path", "monkeypatch"}
    needs = {need for name in by_themselves for need in fixtures[name][-1].argnames}
    return not needs.intersection({*anew, "request"} - {"monkeypatch"})
