"""Types are prepared once, however many threads decode them first at the same time."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from tensorrepo.repo.typed_decoding import from_json, from_msgpack, from_plain

# A type that was never decoded for each of many turns: in a process of its own, for it may die.
SCRIPT = """
import sys, threading, msgspec
from tensorrepo.repo.typed_decoding import from_msgpack
sys.setswitchinterval(1e-6)
data = msgspec.msgpack.encode({"x": 1, "inner": {"y": [1, 2]}})
for turn in range(300):
    names = {"Inner": msgspec.defstruct("Inner", [("y", "list[int]")])}
    kind = msgspec.defstruct("Outer", [("x", "int"), ("inner", "Inner")], namespace={})
    sys.modules[kind.__module__].Inner = names["Inner"]
    barrier, found = threading.Barrier(8), []
    def decode():
        barrier.wait()
        found.append(from_msgpack(data, kind))
    threads = [threading.Thread(target=decode) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found) == 8 and found[0].inner.y == [1, 2]
"""


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


def test_threads_that_decode_a_type_first_do_not_meet_half_done_work() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_values_come_as_the_type_that_was_asked_for() -> None:
    point = Point(1, 2.0)
    assert from_msgpack(msgspec.msgpack.encode(point), Point) == point
    assert from_json(b'{"x": 1, "y": 2.0}', Point) == point
    assert from_plain({"x": 1, "y": 2.0}, Point) == point
    assert from_json(b'{"a": 1}', dict[str, int]) == {"a": 1}


def test_what_is_of_another_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        from_msgpack(msgspec.msgpack.encode({"x": "one"}), Point)
    with pytest.raises(msgspec.ValidationError):
        from_json(b'{"x": "one"}', Point)
    with pytest.raises(msgspec.ValidationError):
        from_plain({"x": "one"}, Point)


@pytest.mark.parametrize("data", [b'{"a": "\xff"}', b"[" * 100_000])
def test_what_is_no_text_or_nests_too_deep_is_refused_alike(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        from_json(data, object)
    packed = b"\xa1\xff" if b"\xff" in data else b"\x91" * 100_000
    with pytest.raises(msgspec.DecodeError):
        from_msgpack(packed, object)
