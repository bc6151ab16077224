"""Arguments: each wrong one is named, with what was expected and what was found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.arguments import whole
from tensorrepo.repo.errors import InvalidInputError


@pytest.mark.parametrize("value", [7, np.int64(7), np.uint8(7), np.array(7)])
def test_whole_numbers_of_any_kind_come_out_as_pythons(value: Any) -> None:
    assert type(whole("n", value)) is int
    assert whole("n", value) == 7


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, -1, 1 << 62, [1], np.float32(1)])
def test_what_is_no_such_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^n is a whole number, at least 0"):
        whole("n", value)
