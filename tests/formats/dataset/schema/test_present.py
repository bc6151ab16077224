"""Values as users see them."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from PIL import EpsImagePlugin
from PIL import Image as Pillow

from tensorrepo.formats.dataset.schema.convert import decode_image
from tensorrepo.formats.dataset.schema.schema import (
    Column,
    ColumnType,
    Image,
    Json,
    Schema,
    Tensor,
    Timestamp,
)
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects


def _column(kind: ColumnType, values: Any, *, nullable: bool = False) -> Any:
    schema = Schema((Column("c", kind, nullable),))
    return stored(MemoryObjects(), schema, [{"c": values}])["c"]


def _encoded(mode: str, size: tuple[int, int], form: str) -> bytes:
    buffer = io.BytesIO()
    Pillow.new(mode, size, 7 if mode in ("L", "P") else (1, 2, 3)).save(buffer, form)
    return buffer.getvalue()


def test_images_stay_the_bytes_that_came() -> None:
    encoded = [_encoded("L", (3, 2), "PNG"), _encoded("RGB", (2, 2), "JPEG")]
    assert _column(Image(), encoded)[:] == encoded


@pytest.mark.parametrize(
    ("mode", "form", "shape"),
    [("L", "PNG", (2, 3)), ("RGB", "JPEG", (2, 3, 3)), ("P", "PNG", (2, 3, 3))],
)
def test_an_image_is_decoded_on_demand(mode: str, form: str, shape: tuple[int, ...]) -> None:
    found = decode_image(_encoded(mode, (3, 2), form))
    assert (found.dtype, found.shape) == (np.uint8, shape)
    assert found.flags.writeable


@pytest.mark.parametrize("data", [b"", b"\x89PNG", _encoded("L", (3, 2), "PNG")[:40]])
def test_what_is_no_image_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError, match="are no image"):
        decode_image(data)


def test_bytes_that_are_a_program_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **_: started.append(args))
    with pytest.raises(CorruptError, match="are no image"):
        decode_image(_encoded("RGB", (3, 2), "EPS"))
    assert started == []


@pytest.mark.parametrize(
    ("unit", "given", "expected"),
    [
        ("s", [date(2026, 1, 2)], "2026-01-02T00:00:00"),
        ("ms", [datetime(2026, 1, 2, 3, 4, 5)], "2026-01-02T03:04:05.000"),  # noqa: DTZ001  # taken as UTC
        ("us", [datetime(2026, 1, 2, tzinfo=UTC)], "2026-01-02T00:00:00.000000"),
        (
            "us",
            [datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=2)))],
            "2026-01-01T22:00:00.000000",
        ),
        ("ns", np.array(["2026-01-02"], "datetime64[D]"), "2026-01-02T00:00:00.000000000"),
        ("s", [5], "1970-01-01T00:00:05"),
    ],
)
def test_moments_come_back_as_datetime64(unit: Any, given: Any, expected: str) -> None:
    found = _column(Timestamp(unit), given)[:]
    assert found.dtype == f"<M8[{unit}]"
    assert str(found[0]) == expected


def test_a_moment_that_is_none_is_null() -> None:
    column = _column(Timestamp("s"), np.array([5, "NaT"], "datetime64[s]"), nullable=True)
    assert column[1] is None
    assert np.ma.getmaskarray(column[:]).tolist() == [False, True]


@pytest.mark.parametrize("moment", ["2026-01-02T00:00:00.5", "9999-01-01T00:00:00"])
def test_a_moment_that_the_unit_cannot_hold_is_refused(moment: str) -> None:
    unit: Any = "s" if "." in moment else "ns"
    array = np.array([moment], "datetime64[ms]")
    with pytest.raises(InvalidInputError, match=r"row 0, column 'c': expected a moment in whole"):
        _column(Timestamp(unit), array)


def test_json_values_come_back_as_python_values() -> None:
    values = [{"b": 1, "a": [None, True]}, "text", 7, None]
    assert _column(Json(), values, nullable=True)[:] == values


def test_nullable_tensors_are_masked_row_by_row() -> None:
    column = _column(Tensor("float32", (2,)), [[1, 2], None], nullable=True)
    assert np.ma.getmaskarray(column[:]).tolist() == [[False, False], [True, True]]
    assert column[1] is None
