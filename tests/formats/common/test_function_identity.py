"""A function is known again by what it computes."""

from __future__ import annotations

import enum
import functools
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from tensorrepo.formats.common import function_identity
from tensorrepo.formats.common.function_identity import identify
from tensorrepo.repo.errors import InvalidInputError


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass(frozen=True)
class Scale:
    factor: Any

    def __call__(self, batch: Any) -> Any:
        return np.sqrt(batch) * self.factor


def closing_over(value: Any) -> Callable[[Any], Any]:
    return lambda batch: (batch, value)


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Callable[..., ModuleType]]:
    """Modules of a project, written and loaded anew each time."""
    loaded: list[str] = []

    def load(number: int, **sources: str) -> ModuleType:
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, source in sources.items():
            (folder / f"{name}.py").write_text(source)
            spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
            assert spec is not None
            assert spec.loader is not None
            made = importlib.util.module_from_spec(spec)
            sys.modules[name] = made
            loaded.append(name)
            spec.loader.exec_module(made)
        return made

    yield load
    for name in loaded:
        sys.modules.pop(name, None)


HELPERS = "SIZE = {size}\ndef crop(x):\n    return x[:SIZE]{more}\n"
USER = "import project_helpers\ndef function(batch):\n    return project_helpers.crop(batch)\n"
OTHER = (
    "from project_helpers import crop\ndef function(batch):\n    return [crop(x) for x in batch]"
)


@pytest.mark.parametrize("user", [USER, OTHER])
@pytest.mark.parametrize(
    "changed", [{"size": 4, "more": ""}, {"size": 3, "more": " or 1"}], ids=["global", "source"]
)
def test_what_a_helper_does_counts(
    module: Callable[..., ModuleType], user: str, changed: dict[str, Any]
) -> None:
    first, again, other = (
        identify(module(at, project_helpers=helpers, project_user=user).function).digest
        for at, helpers in enumerate(
            [HELPERS.format(size=3, more="")] * 2 + [HELPERS.format(**changed)]
        )
    )
    assert first == again != other


def test_what_a_module_has_beside_it_does_not_count(module: Callable[..., ModuleType]) -> None:
    helpers = HELPERS.format(size=3, more="")
    first, other = (
        identify(module(at, project_helpers=helpers + more, project_user=USER).function).digest
        for at, more in enumerate(["", "def other():\n    return 1\n"])
    )
    assert first == other


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (3, 4),
        (1, True),
        ("a", b"a"),
        (0.0, -0.0),
        ([1, 2], (1, 2)),
        ([[1], 2], [1, [2]]),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
        (np.arange(3), np.arange(3, dtype="i4")),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.float32(1), np.float64(1)),
        (Color.RED, Color.BLUE),
        (Path("a"), Path("b")),
        (Scale(1), Scale(2)),
        (Color, Point),
        (Point(1), Point(2)),
        (math.sin, math.cos),
        (np.sin, np.cos),
        (functools.partial(Scale, 1), functools.partial(Scale, 2)),
        (json.dumps, json.loads),
        (int, float),
        (list[int], list[str]),
    ],
)
def test_values_that_differ_make_functions_that_differ(one: Any, two: Any) -> None:
    assert identify(closing_over(one)).digest == identify(closing_over(one)).digest
    assert identify(closing_over(one)).digest != identify(closing_over(two)).digest


def test_lambdas_of_one_line_differ() -> None:
    one, two = (lambda batch: batch + 1), (lambda batch: batch + 2)
    assert identify(one).digest != identify(two).digest


def test_callable_objects_partials_and_methods_are_functions() -> None:
    scale = Scale(2)
    partials = functools.partial(math.pow, 2), functools.partial(math.pow, 3)
    found = [scale, Scale(3), scale.__call__, *partials]
    assert len({identify(each).digest for each in found}) == len(found)


def test_packages_are_told_with_their_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = Scale(2)
    found = identify(scale)
    assert found.packages["numpy"] == np.__version__
    assert found.name == f"{__name__}.Scale"

    monkeypatch.setattr(function_identity, "_version_of", lambda _package: "999")
    assert identify(scale).digest != found.digest


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "a builtins.object has no content"),
        (np.random.default_rng(1), "no content that can be hashed"),
        (np.zeros(1 << 20), "more than 1 MiB"),
        ("x" * (1 << 21), "more than 1 MiB"),
        (np.array([object()]), "no content that can be hashed"),
    ],
)
def test_what_cannot_be_hashed_needs_a_version(value: Any, why: str) -> None:
    function = closing_over(value)
    with pytest.raises(InvalidInputError, match=why) as refused:
        identify(function)
    assert "closes over 'value'" in str(refused.value)
    assert "version='1'" in str(refused.value)
    one, two = (identify(function, version).digest for version in ("1", "2"))
    assert one != two
    assert identify(function, "1").digest == one


def test_a_function_without_source_needs_a_version() -> None:
    space: dict[str, Any] = {}
    exec("def typed(batch): return batch", space)
    with pytest.raises(InvalidInputError, match="source cannot be read"):
        identify(space["typed"])


def test_what_refers_to_itself_has_an_end() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert identify(closing_over(loop)).digest
    assert identify(_recursive).digest == identify(_recursive).digest


def _recursive(batch: Any) -> Any:
    return _recursive(batch[1:]) if batch else batch
