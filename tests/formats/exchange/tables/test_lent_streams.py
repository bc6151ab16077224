"""No thread of Arrow has anything of ours once a reader is given back."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pc
import pytest

from tensorrepo.formats.exchange.tables import csv
from tensorrepo.formats.exchange.tables.csv import LentReader

if TYPE_CHECKING:
    from tensorrepo.formats.exchange.tables.csv import Handler, LentStream

BLOCK = 1 << 10
ROWS = b"a,b\n" + b"1,2\n" * 30_000


class Lender:
    """Opens readers and remembers what was lent for them, without holding it."""

    def __init__(self) -> None:
        self.lent: list[weakref.ref[Any]] = []

    def __call__(self, stream: LentStream, handler: Handler | None) -> pc.CSVStreamingReader:
        self.lent += [weakref.ref(each) for each in (stream, handler) if each is not None]
        return pc.open_csv(
            stream,
            pc.ReadOptions(use_threads=False, block_size=BLOCK),
            pc.ParseOptions(invalid_row_handler=handler),
        )

    @property
    def held(self) -> int:
        return sum(each() is not None for each in self.lent)


@pytest.fixture(autouse=True)
def _without_collecting() -> Any:
    """What is gone is gone at once, not when garbage is collected."""
    gc.disable()
    yield
    gc.enable()


def skipped(_: Any) -> str:
    return "skip"


@pytest.mark.parametrize("handler", [None, skipped])
def test_everything_is_given_back_at_the_end(handler: Handler | None) -> None:
    lender = Lender()
    with LentReader(io.BytesIO(ROWS), lender, handler) as reader:
        assert reader.schema.names == ["a", "b"]
        assert sum(batch.num_rows for batch in reader) == 30_000
        assert lender.held
    assert lender.held == 0


@pytest.mark.parametrize("handler", [None, skipped])
def test_everything_is_given_back_when_nobody_asks_for_more(handler: Handler | None) -> None:
    lender = Lender()
    with LentReader(io.BytesIO(ROWS), lender, handler) as reader:
        assert next(iter(reader)).num_rows
    assert lender.held == 0


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b'a,b\n"' + b"x" * 100 * BLOCK, id="when it is opened"),
        pytest.param(ROWS + b"x,2\n" + ROWS[4:], id="in a later row"),
    ],
)
def test_everything_is_given_back_when_the_text_is_refused(text: bytes) -> None:
    lender = Lender()
    with (
        pytest.raises(pa.ArrowInvalid) as caught,
        LentReader(io.BytesIO(text), lender, skipped) as reader,
    ):
        list(reader)
    assert lender.held == 0, caught.value


def test_an_error_of_the_stream_itself_comes_through() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 10 * BLOCK:
                raise OSError(5, "the disk fails")
            return super().read(size)

    lender = Lender()
    with (
        pytest.raises(OSError, match="the disk fails"),
        LentReader(Broken(ROWS), lender) as reader,
    ):
        list(reader)
    assert lender.held == 0


@pytest.mark.parametrize("rows", [b"a,b\n1,2\n", ROWS])
@pytest.mark.parametrize("handler", [None, skipped])
def test_a_reader_in_garbage_is_given_back_without_waiting(
    rows: bytes, handler: Handler | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv, "_PATIENCE_SECONDS", 1e9)  # else it ends, too, only late
    lender = Lender()

    def batches() -> Iterator[Any]:
        with LentReader(io.BytesIO(rows), lender, handler) as reader:
            yield from reader
            yield None

    for read in (1, 2):
        garbage: list[Any] = [batches()]
        garbage.append(garbage)
        for _ in range(read):
            next(garbage[0])
        del garbage
        gc.collect()
        assert lender.held == 0
