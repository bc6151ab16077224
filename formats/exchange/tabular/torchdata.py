"""Read a torch dataset: whatever gives samples by number, or one after another.

    tensorrepo.read(torchvision.datasets.CIFAR10(root), names=("image", "label"))

Map-style (``ds[7]`` and ``len(ds)``) and iterable datasets alike; torch is not imported. Pictures
of Pillow are stored as PNG, without loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.damage import damage
from tensorrepo.formats.dataset.columns.schema import Column, Schema
from tensorrepo.formats.exchange.base import BATCH_BYTES, Damage, Origin, Reading
from tensorrepo.formats.exchange.tabular.samples import (
    column_of,
    misfit,
    name_values,
    plain,
    size_of,
    stored_form,
)
from tensorrepo.repo.errors import Error, InvalidInputError

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.columns.schema import Batch

FIRST_SAMPLES = 64  # that decide the columns, or fewer when they are large
_TORCH = "torch.utils.data"
Sample = tuple[int, dict[str, Any]]


def read_samples(
    given: Any,
    *,
    names: tuple[str, ...] | None = None,
    image_format: str = "png",
    damaged: bool = False,
    schema: Schema | None = None,
) -> Reading:
    """The samples of a torch dataset as rows.

    Args:
        given: has ``__getitem__`` and ``__len__``, or ``__iter__``.
        names: of the columns, for samples that are tuples; else those of `schema`, or col0, ...
        image_format: "png", "webp", "tiff" or "bmp", for pictures of Pillow.
        damaged: pass over samples that raise, or that do not fit the first ones.
        schema: the columns, when they are known; else the first samples tell.

    Raises:
        InvalidInputError: no samples, or a sample that does not fit; names its number.
    """
    met = Damage(skip=damaged)
    called = names or (schema.names if schema is not None else None)
    samples = _samples(given, called, image_format, met)
    if schema is None:
        first = _first(samples)
        if not first:
            raise damage(_what(given), "has no samples")
        schema = _infer(given, first)
        samples = chain(first, samples)
    sized = hasattr(given, "__len__") and not damaged
    return Reading(
        schema=schema,
        rows=len(given) if sized else None,
        bytes=0,
        batches=_batches(given, schema, samples, met),
        origin=Origin(_what(given), "torch", 0, 0),
        damage=met,
    )


def is_torch_dataset(given: object) -> bool:
    """Whether an object is one of torch's datasets, or gives samples by number as they do."""
    if isinstance(given, Mapping | Sequence | set | frozenset) or hasattr(given, "schema"):
        return False
    if any(kind.__module__.startswith(_TORCH) for kind in type(given).__mro__):
        return True
    by_number = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    # Arrays and tables give their own parts by number too, but those are no samples.
    return by_number and not hasattr(given, "__array__") and not hasattr(given, "keys")


def _samples(
    given: Any, names: tuple[str, ...] | None, image_format: str, met: Damage
) -> Iterator[Sample]:
    for number, sample in _numbered(given, met):
        try:
            values = name_values(sample, names)
            yield number, {name: plain(value, image_format) for name, value in values.items()}
        except Error as problem:
            met.meet(_at(given, number), number, _named(given, number, problem))


def _numbered(given: Any, met: Damage) -> Iterator[tuple[int, Any]]:
    """Samples as the dataset gives them. What its own code raises is met as damage."""
    if not (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
        yield from _iterated(given)
        return
    for number in range(len(given)):
        try:
            sample = given[number]
        except Exception as problem:  # noqa: BLE001  # the user's code may raise anything
            met.meet(_at(given, number), number, _named(given, number, problem))
            continue
        yield number, sample


def _iterated(given: Any) -> Iterator[tuple[int, Any]]:
    """Samples of an iterable: after an exception it has no next one."""
    number = 0
    samples = iter(given)
    while True:
        try:
            sample = next(samples)
        except StopIteration:
            return
        except Exception as problem:
            raise _named(given, number, problem) from problem
        yield number, sample
        number += 1


def _first(samples: Iterator[Sample]) -> list[Sample]:
    first: list[Sample] = []
    held = 0
    for number, values in samples:
        first.append((number, values))
        held += sum(map(size_of, values.values()))
        if len(first) == FIRST_SAMPLES or held >= BATCH_BYTES:
            break
    return first


def _infer(given: Any, first: Sequence[Sample]) -> Schema:
    names = list(dict.fromkeys(name for _, values in first for name in values))
    try:
        columns = [column_of(name, [values.get(name) for _, values in first]) for name in names]
    except Error as problem:
        raise damage(_what(given), f"among its first samples: {problem}") from problem
    return Schema(tuple(columns))


def _batches(given: Any, schema: Schema, samples: Iterator[Sample], met: Damage) -> Iterator[Batch]:
    held: list[dict[str, Any]] = []
    size = 0
    for number, values in samples:
        problem = _problem(schema.columns, values)
        if problem:
            met.meet(_at(given, number), number, damage(_at(given, number), problem))
            continue
        held.append({c.name: stored_form(c, values.get(c.name)) for c in schema.columns})
        size += sum(map(size_of, values.values()))
        if size >= BATCH_BYTES:
            yield {name: [row[name] for row in held] for name in schema.names}
            held, size = [], 0
    if held:
        yield {name: [row[name] for row in held] for name in schema.names}


def _problem(columns: Sequence[Column], values: Mapping[str, Any]) -> str:
    """Why a sample does not fit the columns; "" when it does."""
    known = {column.name for column in columns}
    if unknown := values.keys() - known:
        return f"has {min(unknown)!r}, which no first sample had"
    for column in columns:
        try:
            wrong = misfit(column, values.get(column.name))
        except InvalidInputError as problem:
            wrong = str(problem)
        if wrong:
            return f"column {column.name!r} {wrong}"
    return ""


def _what(given: object) -> str:
    return type(given).__name__


def _at(given: object, number: int) -> str:
    return f"{_what(given)}, sample {number}"


def _named(given: object, number: int, problem: Exception) -> InvalidInputError:
    said = str(problem) if isinstance(problem, Error) else f"{type(problem).__name__}: {problem}"
    return damage(_at(given, number), said)
