"""Patterns of nodes, and what operations are called."""

from __future__ import annotations

import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.query.architecture import fitting
from tensorrepo.query.dql.patterns import (
    filled,
    glob_regex,
    groups_of,
    like_regex,
    normal_operation,
    operation_regex,
    settings_fit,
)
from tensorrepo.query.dql.statements import Operation
from tensorrepo.repo.errors import InvalidInputError

WORDS = ["conv1", "conv2", "conv3", "conv10", "features.conv1", "fc7", "a*b", "pool[1]", "ünï"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("conv[1,3]", {"conv1", "conv3"}),
        ("conv[1-2]", {"conv1", "conv2"}),
        ("conv[!1]", {"conv2", "conv3"}),
        ("conv?", {"conv1", "conv2", "conv3"}),
        ("conv*", {"conv1", "conv2", "conv3", "conv10"}),
        ("*conv1", {"conv1", "features.conv1"}),
        ("conv[10, 3]", {"conv10", "conv3"}),
        ("fc7", {"fc7"}),
        ("ün?", {"ünï"}),
        ("conv", set()),
        ("", set()),
    ],
)
def test_globs_fit_whole_names(pattern: str, expected: set[str]) -> None:
    assert fitting(WORDS, glob_regex(pattern)) == expected


PIECES = st.lists(st.sampled_from(["a", "b", "*", "?", ".", "\\", "+", "(", "é", "$"]), max_size=6)


@given(PIECES.map("".join), st.lists(st.text("ab.\\+(é$\n", max_size=5), max_size=5))
def test_globs_fit_what_fnmatch_says(pattern: str, words: list[str]) -> None:
    plain = [word for word in words if "\n" not in word]
    expected = {word for word in plain if fnmatch.fnmatchcase(word, pattern)}
    assert fitting(plain, glob_regex(pattern)) == expected


def test_like_has_its_two_signs_and_nothing_else() -> None:
    words = ["alexnet_v1", "alexnet-v1", "alexnet", "a\nb", "a.b"]
    assert fitting(words, like_regex("alexnet_%")) == {"alexnet_v1", "alexnet-v1"}
    assert fitting(words, like_regex("a_b")) == {"a\nb", "a.b"}
    assert fitting(words, like_regex("a.b")) == {"a.b"}


def test_groups_stand_for_what_their_stars_fit() -> None:
    found = groups_of(["conv1_3x3", "conv2_5x5", "fc"], "conv*($1)_*($2)")
    assert found == {"conv1_3x3": {"1": "1", "2": "3x3"}, "conv2_5x5": {"1": "2", "2": "5x5"}}
    assert filled("relu$1/$2", found["conv2_5x5"], "") == "relu2/5x5"
    with pytest.raises(InvalidInputError, match=r"has no \$3"):
        filled("relu$3", found["conv2_5x5"], "conv*($1)_*($2)")


@pytest.mark.parametrize("pattern", ["a[]", "a[(]", "*($1)*($1)", "a[z-a]", "x" * 501])
def test_patterns_that_are_none_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidInputError):
        fitting(["a"], glob_regex(pattern))


def test_an_open_bracket_stands_for_itself() -> None:
    assert fitting(["a[", "a"], glob_regex("a[")) == {"a["}


def test_no_pattern_takes_long() -> None:
    began = time.perf_counter()
    assert groups_of(["a" * 5000 + "b"], "*($1)*($2)*($3)a*a*a*a*a*c") == {}
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    ("operation", "fits", "others"),
    [
        (
            Operation("POOL", "MAX"),
            ["aten.max_pool2d.default", "MaxPool", "MaxPool2d"],
            ["AvgPool"],
        ),
        (Operation("POOL"), ["MaxPool", "AvgPool2d"], ["Conv"]),
        (Operation("CONV"), ["conv2d", "aten.conv2d.default", "Conv", "Conv2d"], ["linear"]),
        (Operation("FULL"), ["linear", "Gemm", "aten.linear.default", "MatMul"], ["conv2d"]),
        (
            Operation("RELU"),
            ["relu", "Relu", "functional.relu", "aten.relu.default"],
            ["LeakyRelu"],
        ),
        (Operation("BN"), ["batch_norm", "BatchNormalization"], ["norm"]),
        (Operation("Erf"), ["Erf", "aten.erf.default"], ["Erfc"]),
    ],
)
def test_operations_are_known_by_what_papers_call_them(
    operation: Operation, fits: list[str], others: list[str]
) -> None:
    words = [normal_operation(op) for op in [*fits, *others]]
    found = fitting(words, operation_regex(operation))
    assert found == {normal_operation(op) for op in fits}


def test_settings_are_compared_as_json() -> None:
    asked = Operation("CONV", None, (("kernel_size", (3, 3)), ("bias", True)))
    assert settings_fit(asked, {"kernel_size": [3, 3], "bias": True, "x": 1})
    assert not settings_fit(asked, {"kernel_size": [3, 3], "bias": 1})
    assert not settings_fit(asked, {"kernel_size": [3, 3]})
