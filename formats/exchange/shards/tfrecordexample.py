"""What does a `tf.train.Example` say, and which columns do its features become?

An example is a map from names to lists of bytes, of float32 or of int64, and nothing says which
lists are tensors or what bytes mean. The first examples tell: always one value is a scalar, always
as many a tensor, sometimes more a ragged one; bytes that all begin like images are images, bytes
that are all text are text. A later example that disagrees is an error; options say it outright.

Source:
    tensorflow/core/example/example.proto and feature.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.damage import damage
from tensorrepo.formats.dataset.columns.schema import (
    Bytes,
    Column,
    ColumnType,
    Image,
    Json,
    Scalar,
    Tensor,
    Text,
)
from tensorrepo.formats.exchange.records.messages import parse_message
from tensorrepo.formats.exchange.shards.records import check_image, check_text, image_type, is_text
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
WORDS = ("bytes", "text", "image", "json", "scalar", "ragged")
MAX_BYTES_VALUES = 1 << 20  # two bytes may stand for one that takes forty in memory
_DTYPES = {FLOAT_LIST: "float32", INT64_LIST: "int64"}
_KIND_NAMES = {BYTES_LIST: "bytes", FLOAT_LIST: "float", INT64_LIST: "int64"}


@dataclass(frozen=True, slots=True)
class Feature:
    """One list: `kind` is the field of `tf.train.Feature`, 0 where none is set."""

    kind: int
    values: NDArray[Any] | list[bytes]

    def __len__(self) -> int:
        return len(self.values)


_NONE = Feature(0, [])
Example = dict[str, Feature]


@dataclass(frozen=True, slots=True)
class FeatureColumn:
    """The column that a feature becomes, and the kind of list that it must be."""

    column: Column
    kind: int


# ------------------------------------------------------------------------------ one example


def parse_example(record: bytes, where: str) -> Example:
    """The features of a serialised `tf.train.Example`.

    Raises:
        InvalidInputError: another message, or a damaged one.
    """
    example: Example = {}
    message = parse_message("Example", record, where, "tf.train.Example (a SequenceExample?)")
    for entry in message.features.feature:
        name = check_text(entry.key, f"{where}, name of a feature")
        example[name] = _feature(entry.value, f"{where}, feature {name!r}")
    return example


def _feature(message: Any, where: str) -> Feature:
    match message.WhichOneof("kind"):
        case "bytes_list":
            values = message.bytes_list.value
            if len(values) > MAX_BYTES_VALUES:
                raise damage(where, f"has more than {MAX_BYTES_VALUES} values of bytes")
            return Feature(BYTES_LIST, list(values))
        case "float_list":
            return Feature(FLOAT_LIST, np.array(message.float_list.value, "<f4"))
        case "int64_list":
            return Feature(INT64_LIST, np.array(message.int64_list.value, "<i8"))
        case _:
            return _NONE


# ------------------------------------------------------------------------------ columns


def infer_columns(
    examples: Sequence[Example],
    words: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
) -> dict[str, FeatureColumn]:
    """The column of each feature of the first examples.

    Args:
        examples: at least one.
        words: what features are, of `WORDS`, where that shall not be inferred.
        shapes: of tensors, whose lists are flat.
        where: names the source in messages.

    Raises:
        InvalidInputError: a feature that no column holds, an unknown word or feature.
    """
    names = dict.fromkeys(name for example in examples for name in example)
    for name in (*words, *shapes):
        if name not in names:
            there = ", ".join(map(repr, names))
            raise damage(where, f"has no feature {name!r}; there are {there}")
    found = {}
    for name in names:
        features = [example.get(name, _NONE) for example in examples]
        spot = f"{where}, feature {name!r}"
        found[name] = _infer(name, features, words.get(name), shapes.get(name), spot)
    return found


def _infer(
    name: str,
    features: Sequence[Feature],
    word: str | None,
    shape: tuple[int, ...] | None,
    where: str,
) -> FeatureColumn:
    kinds = {feature.kind for feature in features if feature.kind}
    if len(kinds) > 1:
        listed = " and ".join(sorted(_KIND_NAMES[kind] for kind in kinds))
        raise damage(where, f"is a list of {listed} in one file. Leave it out: columns=...")
    if not kinds:
        raise damage(
            where, "is empty in the first examples. Look at more, samples=N, or choose others"
        )
    (kind,) = kinds
    lengths = {len(feature) for feature in features if feature.kind}
    if kind == BYTES_LIST:
        values = [value for feature in features for value in feature.values]
        found = _bytes_type(values, max(lengths), word, where)
    else:
        found = _number_type(_DTYPES[kind], lengths, word, shape, where)
    missing = any(not feature.kind for feature in features)
    empty = 0 in lengths and not isinstance(found, Json | Tensor)
    return FeatureColumn(Column(name, found, nullable=missing or empty), kind)


def _number_type(
    dtype: str, lengths: set[int], word: str | None, shape: tuple[int, ...] | None, where: str
) -> ColumnType:
    if word not in (None, "scalar", "ragged"):
        raise damage(where, f"holds numbers; it can be scalar or ragged, not {word!r}")
    if shape is not None:
        return Tensor(dtype, shape)
    if word == "scalar" or (word is None and lengths == {1}):
        return Scalar(dtype)
    constant = len(lengths) == 1 and 0 not in lengths and word is None
    return Tensor(dtype, tuple(lengths) if constant else (None,))


def _bytes_type(values: list[Any], most: int, word: str | None, where: str) -> ColumnType:
    """`most` is the largest number of values that one example has."""
    if word == "json" or (word is None and most > 1):
        return _texts_type(values, where)
    if word in ("scalar", "ragged") or most > 1:
        raise damage(where, f"holds bytes, up to {most} values an example; it cannot be {word!r}")
    image = image_type(values)
    if word in (None, "image") and image is not None:
        return image
    known: dict[str, ColumnType] = {"bytes": Bytes(), "text": Text(), "image": Image()}
    if word is not None:
        return known[word]
    return Text() if values and all(map(is_text, values)) else Bytes()


def _texts_type(values: list[Any], where: str) -> ColumnType:
    if not all(map(is_text, values)):
        raise damage(
            where,
            "holds several values of bytes in one example; only lists of text are read, as JSON. "
            "Leave it out: columns=...",
        )
    return Json()


def value_of(part: FeatureColumn, feature: Feature | None, where: str) -> Any:
    """What a feature says in its column; None where the example lacks it.

    Raises:
        InvalidInputError: another kind of list, or another length, than the column's.
    """
    column = part.column
    if feature is None or not feature.kind:
        return _missing(column, where)
    if feature.kind != part.kind:
        found, expected = _KIND_NAMES[feature.kind], _KIND_NAMES[part.kind]
        raise damage(where, f"is a list of {found}; the first examples have one of {expected}")
    if not len(feature) and not isinstance(column.type, Json | Tensor):
        return _missing(column, where)
    if part.kind == BYTES_LIST:
        return _bytes_value(column, feature, where)
    values = np.asarray(feature.values)
    wanted = column.type.shape if isinstance(column.type, Tensor) else ()
    if None in wanted:
        return values
    if len(values) != prod(dim for dim in wanted if dim is not None):
        raise _other_length(column.name, len(values), f"shape {wanted}", where, "ragged")
    return values.reshape(wanted)


def _bytes_value(column: Column, feature: Feature, where: str) -> Any:
    if isinstance(column.type, Json):
        return [check_text(value, where) for value in feature.values]
    if len(feature) != 1:
        raise _other_length(column.name, len(feature), "one", where, "json")
    (value,) = feature.values
    try:
        if isinstance(column.type, Image):
            return check_image(column.type, value, where)
        return check_text(value, where) if isinstance(column.type, Text) else value
    except InvalidInputError as problem:
        raise InvalidInputError(f"{problem}. Or keep it as it is: types={column.name}:bytes") from (
            problem
        )


def _missing(column: Column, where: str) -> None:
    if not column.nullable:
        raise damage(where, "is missing; the first examples have it. Look at more: samples=N")


def _other_length(name: str, found: int, expected: str, where: str, word: str) -> InvalidInputError:
    return damage(
        where,
        f"has {found} values; the first examples have {expected}. Look at more of them, samples=N, "
        f"or say types={name}:{word}",
    )
