"""Runs are open from the piece that first needs them until nothing known needs them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.order.schedule import OpenRuns

RUNS = 6
PIECE = st.lists(st.tuples(st.integers(0, RUNS - 1), st.booleans()), max_size=9)


@given(st.lists(PIECE, min_size=1, max_size=6))
def test_runs_are_opened_and_closed_as_a_set_would_have_it(
    given_: list[list[tuple[int, bool]]],
) -> None:
    runs = [np.array([run for run, _ in piece], dtype=np.int64) for piece in given_]
    busy = [np.array([busy for _, busy in piece], dtype=np.bool_) for piece in given_]
    uses, open_ = OpenRuns(RUNS), set[int]()
    for run, comes_again, following in zip(runs, busy, [*runs[1:], runs[0][:0]], strict=True):
        names = run.tolist()
        first = [at for at, name in enumerate(names) if name not in {*names[:at], *open_}]
        assert uses.opened(run).tolist() == first
        open_ |= set(names)
        kept = set(following.tolist())
        last = [
            at
            for at, name in enumerate(names)
            if name not in {*names[at + 1 :], *kept} and not comes_again[at]
        ]
        assert uses.closed(run, comes_again, following).tolist() == last
        open_ -= {names[at] for at in last}


def test_runs_that_were_kept_for_others_rows_are_closed_late() -> None:
    uses = OpenRuns(RUNS)
    uses.opened(np.array([4, 2, 3, 5]))
    found = uses.stale([np.array([3, 4]), np.array([4, 2, 1])], np.array([3]), np.array([0]))
    assert found.tolist() == [2, 4]
    assert uses.opened(np.array([2, 3, 4])).tolist() == [0, 2]
