"""Size and mode of images are columns of their own, hidden and computed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from tensorrepo.formats.dataset.schema.coerce import coerce_batch
from tensorrepo.formats.dataset.schema.convert import present
from tensorrepo.formats.dataset.schema.schema import Bytes, Column, Image, Scalar, Schema, Text
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

IMAGE_ID = "00112233aabbccdd"


def _schema(*others: Column, image: str = "image", nullable: bool = True) -> Schema:
    return Schema((Column(image, Image(), nullable, IMAGE_ID), *others)).with_derived()


def _encoded(mode: str, form: str = "PNG", size: tuple[int, int] = (5, 3)) -> bytes:
    buffer = io.BytesIO()
    Pillow.new(mode, size).save(buffer, form)
    return buffer.getvalue()


def _coerced(schema: Schema, batch: Any) -> dict[str, Any]:
    found = coerce_batch(schema, batch)
    return {c.name: present(c, v) for c, v in zip(schema.columns, found, strict=True)}


def test_every_image_column_gets_three_hidden_ones() -> None:
    schema = _schema(Column("label", Scalar("int8")))
    assert schema.names == ("image", "label", "image.height", "image.width", "image.mode")
    assert schema.visible.names == schema.select(None).names == ("image", "label")
    assert schema.column("image.height") == Column(
        "image.height", Scalar("uint32"), nullable=True, derived=(IMAGE_ID, "height")
    )


def test_a_hidden_column_is_shown_when_it_is_asked_for() -> None:
    (column,) = _schema().select(["image.mode"]).columns
    assert column == Column("image.mode", Text(), nullable=True)


def test_columns_are_derived_once() -> None:
    schema = _schema()
    assert schema.with_derived() == schema


def test_a_users_column_keeps_its_name() -> None:
    schema = _schema(Column("image.height", Scalar("int64")))
    assert schema.names == ("image", "image.height", "image.width", "image.mode")
    assert schema.visible.names == ("image", "image.height")


def test_a_name_that_would_be_too_long_is_left_out() -> None:
    name = "a" * 250
    assert _schema(image=name).names == (name, f"{name}.mode")


def test_schemas_with_hidden_columns_survive_json() -> None:
    schema = _schema()
    assert Schema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize("form", [[], ["x", "height"], [IMAGE_ID], [IMAGE_ID, 7], "height"])
def test_what_is_no_derivation_is_refused(form: Any) -> None:
    column = {"name": "a", "type": {"type": "text"}, "derived": form}
    with pytest.raises(InvalidInputError, match="not what a column is derived from"):
        Schema.from_json({"columns": [column]})


def test_hidden_columns_are_computed_from_the_images() -> None:
    images = [_encoded("L"), None, b"no image", _encoded("RGB", "JPEG", (2, 7)), b""]
    found = _coerced(_schema(), {"image": images})
    assert found["image.height"].tolist() == [3, None, None, 7, None]
    assert found["image.width"].tolist() == [5, None, None, 2, None]
    assert found["image.mode"] == ["L", None, None, "RGB", None]


def test_rows_have_their_hidden_columns_too() -> None:
    schema = _schema(Column("n", Scalar("int8")))
    found = _coerced(schema, [{"image": _encoded("RGBA"), "n": 1}])
    assert (found["image.height"].tolist(), found["image.mode"]) == ([3], ["RGBA"])


def test_a_batch_must_not_bring_hidden_columns() -> None:
    with pytest.raises(InvalidInputError, match=r"unexpected column 'image.height'"):
        coerce_batch(_schema(), {"image": [_encoded("L")], "image.height": [7]})


@pytest.mark.parametrize("derived", [(IMAGE_ID, "colour"), ("0" * 16, "height")])
def test_what_cannot_be_computed_is_refused(derived: tuple[str, str]) -> None:
    hidden = Column("image.x", Text(), nullable=True, derived=derived)
    schema = Schema((Column("image", Image(), id=IMAGE_ID), hidden))
    with pytest.raises(UnsupportedError):
        coerce_batch(schema, {"image": [_encoded("L")]})


def test_other_columns_have_no_hidden_ones() -> None:
    schema = Schema((Column("a", Bytes(), id=IMAGE_ID), Column("b", Image())))
    assert schema.with_derived() == schema


def test_a_batch_may_leave_out_columns_with_a_default() -> None:
    schema = Schema(
        (Column("a", Scalar("int8")), Column("b", Text(), default="x"), Column("c", Text(), True))
    )
    assert _coerced(schema, {"a": [1, 2]})["b"] == ["x", "x"]
    found = _coerced(schema, [{"a": 1, "b": "y"}, {"a": 2}])
    assert (found["b"], found["c"]) == (["y", "x"], [None, None])
    with pytest.raises(InvalidInputError, match="row 0, column 'b'"):
        coerce_batch(schema, [{"a": 1, "b": None}])
    with pytest.raises(InvalidInputError, match="column 'a' is missing"):
        coerce_batch(schema, {"b": ["y"]})


def test_sizes_are_32_bit_numbers() -> None:
    found = _coerced(_schema(), {"image": [_encoded("L")]})
    assert found["image.height"].dtype == np.dtype("uint32")
