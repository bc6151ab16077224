"""Arguments: each wrong one is named, with what was expected and what was found."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.arguments import encodable, flag, real, whole
from tensorrepo.repo.errors import InvalidInputError


@pytest.mark.parametrize("value", [7, np.int64(7), np.uint8(7), np.array(7)])
def test_whole_numbers_of_any_kind_come_out_as_pythons(value: Any) -> None:
    assert type(whole("n", value)) is int
    assert whole("n", value) == 7


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, -1, 1 << 62, [1], np.float32(1)])
def test_what_is_no_such_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^n is a whole number, at least 0"):
        whole("n", value)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), np.array(2)])
def test_numbers_of_any_kind_come_out_as_pythons_floats(value: Any) -> None:
    assert type(real("n", value, 1)) is float
    assert real("n", value, 1, 2) == 2


@pytest.mark.parametrize(
    "value", [True, None, "2", b"2", nan, inf, -inf, 0.5, 10**400, [2, 3], {}, object()]
)
def test_what_is_no_such_real_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^n is a finite number, at least 1, got"):
        real("n", value, 1)
    with pytest.raises(InvalidInputError, match=r"at least 1 and at most 1\.5, got 2"):
        real("n", 2, 1, 1.5)


@pytest.mark.parametrize("value", [True, np.True_])
def test_truth_of_any_kind_comes_out_as_pythons(value: Any) -> None:
    assert flag("f", value) is True


@pytest.mark.parametrize("value", [None, 1, 0, "yes", [], np.zeros(3)])
def test_what_is_no_truth_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^f is True or False, got"):
        flag("f", value)


def test_text_is_what_utf_8_holds() -> None:
    assert encodable("t", "é") == "é"
    with pytest.raises(InvalidInputError, match=r"^t is text that UTF-8 can hold"):
        encodable("t", "\ud800")
    with pytest.raises(InvalidInputError, match=r"^t is text, got 5"):
        encodable("t", 5)
