"""Long modules begin first, on all workers, and nothing is lost by that."""

from __future__ import annotations

import pytest

from tests.support.long_first import long_first


@pytest.mark.parametrize("workers", [2, 3, 4, 30])
def test_each_stretch_of_a_worker_begins_with_whole_long_modules(workers: int) -> None:
    items = [f"{module}{number}" for module in "aBcDe" for number in range(4)]
    ordered = long_first(items, workers, is_long=str.isupper, module_of=lambda item: item[0])
    second = len(items) // workers
    assert sorted(ordered) == sorted(items)
    assert ordered[:4] == ["B0", "B1", "B2", "B3"]
    assert ordered[max(second, 4) :][:4] == ["D0", "D1", "D2", "D3"]
    assert [item for item in ordered if item.islower()] == [i for i in items if i.islower()]
