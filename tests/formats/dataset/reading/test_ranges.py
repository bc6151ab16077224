"""Reading rows by themselves has a price in requests."""

from __future__ import annotations

import numpy as np

from tensorrepo.formats.dataset.reading.exact_read import cost_of_rows
from tensorrepo.repo.ranges import GAP_BYTES


def test_rows_close_together_cost_less_than_requests_of_their_own() -> None:
    rows = np.array([0, 1, 500, 900, 5000])
    cost = cost_of_rows(rows, np.array([0, 3]), np.array([1000.0, 10.0]))
    assert cost.tolist() == [2 * GAP_BYTES + 3000.0, GAP_BYTES + 10.0 + 41_000.0]
