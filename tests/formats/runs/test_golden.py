"""What version 1 wrote is read, and written alike, for ever; by its specification alone, too."""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import Any

import msgspec
import pytest

from tensorrepo.formats.runs.metrics import decode_points, encode_points
from tensorrepo.formats.runs.run_record import decode_run, encode_run
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind, decode_object
from tests.support.golden.run import GOLDEN, golden_objects

NAMES = ["metrics.bin", "run.bin"]
HERE = Digest("0" * 64)


def payload(name: str) -> bytes:
    return bytes(decode_object((GOLDEN / name).read_bytes()).payload)


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_file_is_what_is_written_today(name: str) -> None:
    assert golden_objects()[name] == (GOLDEN / name).read_bytes()


def test_the_golden_run_and_its_points_are_read_and_written_alike() -> None:
    assert encode_run(decode_run(payload("run.bin"), HERE)) == payload("run.bin")
    assert encode_points(decode_points(payload("metrics.bin"), HERE)) == payload("metrics.bin")


def test_the_run_links_to_its_points_and_to_nothing_else() -> None:
    envelope = decode_object((GOLDEN / "run.bin").read_bytes())
    run = decode_run(envelope.payload, HERE)
    assert [(link.digest, link.kind) for link in envelope.links] == [
        (digest, Kind.METRICS) for digest in run.points_in()
    ]


def read_planes(planes: bytes, form: str) -> list[Any]:
    """As docs/spec/run.md says, without a line of ours."""
    count = len(planes) // 8
    numbers = [bytes(planes[at + count * plane] for plane in range(8)) for at in range(count)]
    return [struct.unpack(form, number)[0] for number in numbers]


def test_a_reader_made_of_the_specification_reads_the_points() -> None:
    read = msgspec.msgpack.decode(payload("metrics.bin"))
    name, count, steps, times, values = read["series"][1]
    assert (name, count) == ("loss", 4)
    assert list(accumulate(read_planes(steps, "<q"))) == [0, 1, 2, 1]
    assert list(accumulate(read_planes(times, "<q")))[-1] == 1_700_000_000_050
    assert repr(read_planes(values, "<d")) == "[2.5, nan, -inf, 0.1]"


def test_a_reader_made_of_the_specification_reads_the_document() -> None:
    read = msgspec.msgpack.decode(payload("run.bin"))
    assert read["status"] == "failed"
    assert read["inputs"][0] == [
        "trained-on", "datasets/x", "1" * 64, "2" * 64, {"position": 4096, "seed": 7},
    ]  # fmt: skip
    assert read["outputs"] == [["models/m", "3" * 64, "4" * 64]]
    assert read["metrics"][1]["min"] == [1, 0.1]
