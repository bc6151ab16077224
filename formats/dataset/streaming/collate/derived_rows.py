"""Derived rows on disk: what an expensive, deterministic transform made, kept row by row.

A batch holds other rows in every epoch, so what is kept is what became of each of its rows, under a
digest of all that this follows from: the bytes of the row in every streamed column, and the maker,
which is the identity of the function, the way images are decoded, and the form of the values. So a
row is found again in any order, epoch, version, branch and dataset, and by any process of this
machine. What is missing in a batch is made together, by one call, and written by a rename.

That is right only where a row becomes the same whatever rows stand beside it. The first batch that
is made is tried: one of its rows is made alone as well, and has to become the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from math import prod
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.function_identity import identify
from tensorrepo.formats.common.tensors import is_torch
from tensorrepo.formats.dataset.schema.values import BinaryValues, valid_rows
from tensorrepo.formats.dataset.streaming.collate.batch import Batch
from tensorrepo.formats.dataset.streaming.collate.batch_frame import BatchFrame, read_frame
from tensorrepo.formats.dataset.streaming.collate.decode import Decode
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.cache import DiskCache

_FORMAT: Final = b"tensorrepo derived rows v1"
_NAME_BYTES: Final = 20
# Layout: frame of a row | place of its description | bytes of it | magic. The cache proves it.
_TRAILER: Final = Struct("<QQ8s")
_MAGIC: Final = b"TRDERIV1"
_DECODERS: Final = ("opencv-python-headless", "opencv-python", "pillow", "simplejpeg")

Make = Callable[[Batch], Any]
Row = tuple[Any, ...]  # ("value", tree), or ("batch", columns, valid, lengths): each of one row


def maker_digest(
    function: Callable[..., Any] | None,
    version: str | None,
    decodes: Mapping[str, Decode],
    form: str,
) -> str:
    """What makes rows, as 64 hex digits: the function, decoding, and the form of the values.

    Raises:
        InvalidInputError: the function cannot be identified, and no version is given; or the way
            images are decoded changes with the epoch.
    """
    hasher = hashlib.sha256(_FORMAT)
    named = "" if function is None else identify(function, version).digest
    for word in (named, form, *map(_decoder_text, sorted(decodes.items()))):
        hasher.update(len(word).to_bytes(8, "little") + word.encode())
    return hasher.hexdigest()


def _decoder_text(named: tuple[str, Decode]) -> str:
    name, how = named
    if how.fit == "random" or how.flip:
        raise InvalidInputError(
            f"cache='derived' keeps what is the same in every epoch, and column {name!r} is cut or "
            "flipped at random. Decode without fit='random' and flip, and do that to the batches"
        )
    from importlib import metadata  # loads what reads mail, and few need it

    versions = []
    for package in _DECODERS:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    return f"{name} {sorted(asdict(how).items())} {versions}"


@dataclass(slots=True, eq=False)
class DerivedRows:
    """Rows made by one maker, kept in a cache. Thread-safe; picklable, as the cache is.

    Attributes:
        cache: the cache.
        maker: see `maker_digest`.
        is_tried: whether a row was made alone and became the same.
    """

    cache: DiskCache
    maker: str
    is_tried: bool = False

    def made(self, batch: Batch, make: Make, count: Callable[[int, int], None]) -> Any:
        """What `make` gives for a batch, made of its missing rows only.

        `make` may change the batch that it is called with. `count` is told how many rows were
        found, and how many were made.

        Raises:
            InvalidInputError: something was made that does not consist of rows, or of which a row
                depends on the rows beside it.
        """
        names = _row_names(batch, self.maker)
        found = [self._read(name, batch) for name in names]
        missing = [at for at, row in enumerate(found) if row is None]
        count(len(found) - len(missing), len(missing))
        if missing:
            whole = len(missing) == len(found)
            part = batch if whole else batch.part(np.array(missing))
            result, rows = self._rows(part, make)
            for at, row in zip(missing, rows, strict=True):
                self._write(names[at], row)
                found[at] = row
            if whole:
                return result
        return _joined([row for row in found if row is not None], batch)

    def _rows(self, part: Batch, make: Make) -> tuple[Any, list[Row]]:
        alone = None if self.is_tried else part.part(np.arange(1))
        count = len(part.rows)
        result = make(part)
        rows = [_row(result, at, count) for at in range(count)]
        if alone is not None:
            _check_alike(rows[0], _row(make(alone), 0, 1))
            self.is_tried = True
        return result, rows

    def _read(self, name: str, batch: Batch) -> Row | None:
        value = self.cache.get(name)
        if value is None or value.nbytes < _TRAILER.size:
            return None
        at, size_bytes, magic = _TRAILER.unpack(value[-_TRAILER.size :])
        if magic != _MAGIC:
            return None
        memory = np.frombuffer(value[: -_TRAILER.size], np.uint8).copy()  # tensors are writable
        row: Row = read_frame(memory, at, size_bytes, lambda *_: batch.row_ids)
        return row

    def _write(self, name: str, row: Row) -> None:
        try:
            frame = BatchFrame(row)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"a row of what the transform returned cannot be kept with cache='derived': {error}"
            ) from error
        memory = np.zeros(frame.bytes, np.uint8)
        frame.write(memory)
        trailer = _TRAILER.pack(frame.description_at, frame.description_bytes, _MAGIC)
        self.cache.put(name, (memory.data, trailer))


# ------------------------------------------------------------------------------ what rows are


def _row_names(batch: Batch, maker: str) -> list[str]:
    """A name for each row of a batch: what it holds, and what will be made of it."""
    base = hashlib.blake2b(bytes.fromhex(maker), digest_size=_NAME_BYTES)
    readers = []
    for name, values in batch.items():
        _add(base, name.encode())
        readers.append(_reader(values, base))
        if name in batch.valid:
            readers.append(_reader(batch.valid[name], base))
    names = []
    for at in range(len(batch.rows)):
        hasher = base.copy()
        for read in readers:
            for piece in read(at):
                _add(hasher, piece)
        names.append(hasher.hexdigest())
    return names


def _add(hasher: Any, piece: Any) -> None:
    view = memoryview(piece).cast("B")
    hasher.update(view.nbytes.to_bytes(8, "little"))
    hasher.update(view)


def _reader(values: Any, base: Any) -> Callable[[int], Sequence[Any]]:
    """What gives the bytes of a row of a column; what all rows share goes into `base`."""
    if isinstance(values, np.ma.MaskedArray):
        data = _reader(np.ma.getdata(values), base)
        mask = _reader(np.ma.getmaskarray(values), base)
        return lambda at: (*data(at), *mask(at))
    if is_torch(values):
        _add(base, str(values.dtype).encode())
        import torch

        flat = values.contiguous().reshape(-1).view(torch.uint8).numpy()
        return _reader(flat.reshape(len(values), -1 if flat.size else 0), base)
    if isinstance(values, np.ndarray) and not values.dtype.hasobject:
        _add(base, f"{values.dtype.str} {values.shape[1:]}".encode())
        row_bytes = values.itemsize * prod(values.shape[1:])
        flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return lambda at: (flat[at * row_bytes : (at + 1) * row_bytes].data,)
    if isinstance(values, BinaryValues):
        _add(base, b"binary")
        valid, bounds = valid_rows(values), values.offsets.tolist()
        data_bytes = values.data.data.cast("B")
        return lambda at: (bytes([int(valid[at])]), data_bytes[bounds[at] : bounds[at + 1]])
    _add(base, type(values).__name__.encode())
    return partial(_framed, values)


def _framed(values: Any, at: int) -> Sequence[Any]:
    """Any other value of a row, as it would be handed over from another process."""
    one = values.slice(at, 1) if isinstance(values, pa.Array) else [values[at]]
    frame = BatchFrame(one)
    memory = np.zeros(frame.bytes, np.uint8)
    frame.write(memory)
    return (memory.data,)


# ------------------------------------------------------------------------------ rows of a result


def _row(result: Any, at: int, rows: int) -> Row:
    """Row `at` of what was made for a batch of so many rows."""
    take = partial(_taken, at=at, rows=rows)
    if isinstance(result, Batch):
        parts = (dict(result), result.valid, result.lengths)
        return ("batch", *(take(part, where="the batch") for part in parts))
    return ("value", take(result, where="what the transform returned"))


def _taken(value: Any, at: int, rows: int, where: str) -> Any:
    if isinstance(value, dict):
        return {name: _taken(each, at, rows, f"{where}[{name!r}]") for name, each in value.items()}
    if type(value) is tuple:
        return tuple(
            _taken(each, at, rows, f"{where}[{place}]") for place, each in enumerate(value)
        )
    is_rows = isinstance(value, np.ndarray | list | pa.Array) or is_torch(value)
    scalar = getattr(value, "ndim", 1) == 0
    if not is_rows or scalar or len(value) != rows:
        raise InvalidInputError(
            f"{where} does not consist of the {rows} rows of the batch, so no row of it can be "
            "kept: with cache='derived' a transform returns arrays, tensors and lists of a value "
            "for each row, in dicts and tuples"
        )
    return value.slice(at, 1) if isinstance(value, pa.Array) else value[at : at + 1]


def _joined(rows: list[Row], batch: Batch) -> Any:
    """The rows put together as the transform would have returned them."""
    kind, *parts = rows[0]
    joined = [_together([row[1 + place] for row in rows]) for place in range(len(parts))]
    if kind == "value":
        return joined[0]
    columns, valid, lengths = joined
    return batch.with_columns(columns, valid=valid, lengths=lengths)


def _together(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, dict):
        return {name: _together([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple):
        return tuple(_together(list(each)) for each in zip(*parts, strict=True))
    if isinstance(first, list):
        return [each for part in parts for each in part]
    if isinstance(first, pa.Array):
        return pa.concat_arrays(parts)
    _check_shapes(parts)
    if isinstance(first, np.ma.MaskedArray):
        return np.ma.MaskedArray(
            np.concatenate([np.ma.getdata(part) for part in parts]),
            np.concatenate([np.ma.getmaskarray(part) for part in parts]),
        )
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(parts)


def _check_shapes(parts: Sequence[Any]) -> None:
    forms = {(str(part.dtype), tuple(part.shape)) for part in parts}
    if len(forms) > 1:
        raise InvalidInputError(
            f"the transform made rows of different forms, {sorted(map(str, forms))[:3]}, in "
            "different batches, which cannot stand in one array: return a list of them"
        )


def _check_alike(row: Row, alone: Row) -> None:
    if not _alike(row, alone):
        raise InvalidInputError(
            "the transform made something else of a row alone than beside other rows of its batch, "
            "so what it made cannot be kept with cache='derived'. It may draw random numbers, or "
            "compare rows of a batch: do that to the batches instead"
        )


def _alike(one: Any, other: Any) -> bool:
    """Whether two rows are the same, but for the rounding of sums that are grouped anew."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if is_torch(one):
        same = one.shape == other.shape and one.dtype == other.dtype
        return same and _alike(one.double().numpy(), other.double().numpy())
    if isinstance(one, np.ndarray | np.generic):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.dtype.kind in "fc":
            near = np.allclose(np.ma.getdata(one), np.ma.getdata(other), 1e-3, 1e-5, equal_nan=True)
            return bool(near)
        return bool(np.array_equal(np.ma.getdata(one), np.ma.getdata(other)))
    return bool(one == other)
