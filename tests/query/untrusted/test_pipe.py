"""Frames arrive as they were sent, and what was made to break their reader is refused."""

from __future__ import annotations

import os
from random import Random
from threading import Thread

import pyarrow as pa
import pytest

import tensorrepo as tr
from tensorrepo.query.untrusted.pipe import SIZES, Pipe, packed, unpacked
from tests.support.effort import sampled

BATCH = pa.record_batch(
    {
        "text": ["x", None],
        "lists": [[1, 2], []],
        "structs": [{"a": 1.5}, None],
        "nothing": pa.nulls(2),
    }
)
BODY = packed([BATCH, BATCH], BATCH.schema).to_pybytes()


def _pipes() -> tuple[Pipe, Pipe]:
    (here_in, there_out), (there_in, here_out) = os.pipe(), os.pipe()
    return Pipe(here_in, here_out, 1000), Pipe(there_in, there_out)


def test_frames_arrive_as_they_were_sent() -> None:
    here, there = _pipes()
    there.send({"kind": "scan"}, b"body")
    assert here.receive() == ({"kind": "scan"}, b"body")
    sender = Thread(target=there.send, args=({}, bytes(900)))
    sender.start()
    assert here.receive() == ({}, bytes(900))
    sender.join()


def test_frames_beyond_the_bound_are_refused_before_they_are_read() -> None:
    incoming, outgoing = os.pipe()
    os.write(outgoing, SIZES.pack(2, 1 << 60))
    with pytest.raises(tr.InvalidInputError, match="at most"):
        Pipe(incoming, outgoing).receive()


def test_a_pipe_that_ends_says_so() -> None:
    incoming, outgoing = os.pipe()
    os.write(outgoing, b"\0\0")
    os.close(outgoing)
    with pytest.raises(EOFError):
        Pipe(incoming, incoming).receive()


def test_a_pipe_whose_end_was_told_to_go_is_not_waited_for() -> None:
    incoming, outgoing = os.pipe()
    with pytest.raises(EOFError, match="told to go"):
        Pipe(incoming, outgoing, is_over=lambda: True).receive()


@pytest.mark.parametrize(
    "head", [b"", b"[]", b"1", b"{", b"\xff", b'{"a":' * 50_000, b"[" * 50_000, b"9" * 5_000]
)
def test_heads_that_are_no_objects_are_refused(head: bytes) -> None:
    incoming, outgoing = os.pipe()
    writer = Thread(target=os.write, args=(outgoing, SIZES.pack(len(head), 0) + head))
    writer.start()
    with pytest.raises(tr.InvalidInputError, match="no JSON"):
        Pipe(incoming, outgoing).receive()
    writer.join()


# ------------------------------------------------------------------------------ bodies


def test_bodies_are_what_was_packed() -> None:
    found = unpacked(BODY, BATCH.schema)
    assert found.batches == [BATCH, BATCH]
    assert found.values == 2 * (2 + 2 + 2 + 2 + 2 + 2)


def test_bodies_of_other_columns_are_refused() -> None:
    with pytest.raises(tr.InvalidInputError, match="other columns"):
        unpacked(BODY, pa.schema([("x", pa.int64())]))


@pytest.mark.parametrize("kept", sampled(range(0, len(BODY) - 16, 13), 16))
def test_bodies_that_are_cut_short_hold_nothing_that_was_not_sent(kept: int) -> None:
    try:
        found = unpacked(BODY[:kept])
    except tr.InvalidInputError:
        return
    assert all(batch == BATCH for batch in found.batches)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_bodies_that_are_compressed_are_refused(codec: str) -> None:
    """Their sizes once decompressed are what somebody claims."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    batch = pa.record_batch({"zeros": pa.array([0] * 100_000)})
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    with pytest.raises(tr.InvalidInputError, match="compressed"):
        unpacked(sink.getvalue())


def test_values_that_take_no_bytes_are_counted() -> None:
    many = 1 << 30
    lists = pa.ListArray.from_arrays(pa.array([0, many], pa.int32()), pa.nulls(many))
    batch = pa.record_batch({"lists": lists})
    assert unpacked(packed([batch], batch.schema)).values == many + 1


def test_buffers_that_share_bytes_are_refused() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": [3, 4]})
    body = bytearray(packed([batch], batch.schema).to_pybytes())
    second = (16).to_bytes(8, "little") * 2  # where the values of b lie, and their bytes
    at = body.rindex(second)
    body[at : at + 8] = bytes(8)
    with pytest.raises(tr.InvalidInputError, match="share bytes"):
        unpacked(bytes(body))


def test_types_of_extensions_are_refused() -> None:
    schema = pa.schema([("x", pa.uuid())])
    with pytest.raises(tr.InvalidInputError, match="extensions"):
        unpacked(packed([], schema))


@pytest.mark.parametrize("seed", sampled(range(40), 8))
def test_no_change_of_a_body_breaks_its_reader(seed: int) -> None:
    """Each either is refused, or holds values that Python can be shown."""
    chance = Random(seed)
    for _ in range(50):
        _read(_changed(BODY, chance))


def _read(body: bytes) -> None:
    try:
        found = unpacked(body)
    except tr.InvalidInputError:
        return
    if found.values < 10_000:
        assert [batch.num_rows for batch in found.batches] == [
            len(batch.to_struct_array()) for batch in found.batches
        ]


def _changed(body: bytes, chance: Random) -> bytes:
    changed = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed))
        word = chance.choice(
            [b"\0", b"\xff", bytes(8), b"\xff" * 8, bytes([chance.randrange(256)])]
        )
        changed[at : at + len(word)] = word
    return bytes(changed[: chance.choice([len(changed), chance.randrange(len(changed))])])
