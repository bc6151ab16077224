"""Memory that is used is not given to others, and copies are what they are copies of."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tensorrepo.formats.model.state.snapshot_buffer import SnapshotBuffer


def test_what_is_held_goes_when_room_is_needed() -> None:
    staging, gone = SnapshotBuffer(100), threading.Event()
    staging.reserve(60)
    staging.hold(60, gone.set)
    staging.reserve(60)
    assert gone.is_set()
    assert staging.staged_bytes == 60


def test_who_needs_the_room_of_what_is_used_waits() -> None:
    staging, gone, reserved = SnapshotBuffer(100), threading.Event(), threading.Event()
    staging.reserve(60)
    staging.hold(60, gone.set)

    def reserve() -> None:
        staging.reserve(60)
        reserved.set()

    waits = threading.Thread(target=reserve, daemon=True)
    with staging.pinned():
        waits.start()
        assert not reserved.wait(0.2)
        assert not gone.is_set()
    assert reserved.wait(30)
    assert gone.is_set()
    assert staging.staged_bytes == 60


def copied(value: Any) -> Any:
    staging = SnapshotBuffer(1 << 20)
    return staging.copies({"value": value})["value"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "uint8", "complex128"])
def test_a_tensor_without_elements_is_copied(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="pip install tensorrepo[torch]")
    found = copied(torch.empty((0, 16), dtype=getattr(torch, dtype)))
    assert (found.shape, found.dtype) == ((0, 16), getattr(torch, dtype))


def test_bools_are_copied_byte_by_byte() -> None:
    torch = pytest.importorskip("torch", reason="pip install tensorrepo[torch]")
    found = copied(torch.arange(256, dtype=torch.uint8).view(torch.bool).reshape(16, 16).T)
    expected = torch.arange(256, dtype=torch.uint8).reshape(16, 16).T
    assert torch.equal(found.view(torch.uint8), expected)


def test_a_tensor_and_its_conjugate_are_two() -> None:
    torch = pytest.importorskip("torch", reason="pip install tensorrepo[torch]")
    one = torch.arange(9) * (1 + 2j)
    found = SnapshotBuffer(1 << 20).copies({"one": one, "other": one.conj()})
    assert torch.equal(found["one"], one)
    assert torch.equal(found["other"], one.conj().resolve_conj())
