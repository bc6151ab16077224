"""Batches: what a training loop gets for one step, and how values take their form.

A `Batch` is a dict of column name to values, ready to be used: numpy arrays as a dataset gives
them, torch tensors or arrays of JAX of the same memory where they can be, or Arrow arrays. Ragged
columns are lists of arrays, or one padded array when asked for; bytes and text are lists.

Memory that a GPU copies from by itself ("pinned") is torch's own, filled by a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints, is_small_float
from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.common.tensors import import_library, is_torch
from tensorrepo.formats.dataset.schema.arrow import column_array
from tensorrepo.formats.dataset.schema.convert import as_torch, present, to_torch
from tensorrepo.formats.dataset.schema.nulls import NullPolicy
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import Decimal, Duration, Null, Time, Timestamp
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
)
from tensorrepo.formats.dataset.streaming.collate.gather import PackedValues
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

OutputForm = Literal["numpy", "torch", "jax", "arrow"]
_JAX_BYTES = 4  # of a number, at most, unless jax_enable_x64 is set
_WIDER = (
    "set jax.config.update('jax_enable_x64', True) before the stream is opened, leave the column "
    "out with columns=, or take output='numpy' and convert it in a transform"
)


def as_jax(array: NDArray[Any], name: str = "") -> Any:
    """An array of JAX, on its default device; of the same memory on a CPU where it is aligned.

    JAX makes 32-bit numbers of 64-bit ones unless ``jax_enable_x64`` is set. Nobody may change
    `array`, of the column `name`, afterwards.

    Raises:
        UnsupportedError: jax is not installed.
        InvalidInputError: an integer does not fit the 32 bits that JAX would give it.
    """
    if array.dtype.kind in "iu" and array.itemsize > _JAX_BYTES and not _jax_is_wide():
        _check_fits(array, name)
    return _jax().device_put(array, may_alias=True)


def numbers_as_jax(value: Any) -> Any:
    """`as_jax` for an array of numbers as a dataset gives it; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    array = np.ma.getdata(value)
    if array.dtype.kind in "mM":
        array = array.view(np.int64)
    numbers = array.dtype.kind in "biufc" or is_small_float(array.dtype)
    return as_jax(array) if numbers else value


def check_moments(columns: Iterable[Column], output: OutputForm) -> None:
    """See that moments, which need 64 bits, stay whole in what a stream hands out.

    Raises:
        InvalidInputError: JAX would cut them to 32 bits.
        UnsupportedError: jax is needed to know that, and is not installed.
    """
    if output != "jax":
        return
    wide = Timestamp | Duration | Time
    moments = [
        column.name
        for column in columns
        if isinstance(column.type, wide) and column.storage.dtype == "int64"
    ]
    if moments and not _jax_is_wide():
        raise InvalidInputError(
            f"column {moments[0]!r} holds moments, which are 64-bit numbers, and JAX would cut "
            f"them to 32 bits: {_WIDER}"
        )


def _check_fits(array: NDArray[Any], name: str) -> None:
    """See that integers of 64 bits fit the 32 bits that JAX gives them."""
    narrow = np.iinfo(f"{array.dtype.kind}{_JAX_BYTES}")
    least, most = (int(extreme(initial=0)) for extreme in (array.min, array.max))
    if least < narrow.min or most > narrow.max:
        where = f"column {name!r}" if name else f"an array of {array.dtype}"
        raise InvalidInputError(
            f"{where} holds {most if most > narrow.max else least}, and JAX would make a "
            f"{narrow.dtype} of it, which reaches from {narrow.min} to {narrow.max}: {_WIDER}"
        )


def _jax_is_wide() -> bool:
    return bool(_jax().config.jax_enable_x64)


def _jax() -> Any:
    return import_library(
        "jax",
        "output='jax' needs jax, which is not installed: `pip install 'tensorrepo[jax]'`, or "
        "the build for your accelerator as JAX's own pages say",
    )


def pins(pin: bool | None, output: OutputForm) -> bool:
    """Whether tensors are to be pinned; None means where there is a GPU to copy them to.

    Raises:
        InvalidInputError: pinned memory was asked for where there is none.
    """
    if output != "torch":
        if pin:
            raise InvalidInputError(f"pin=True needs output='torch', got output={output!r}")
        return False
    if pin is False:
        return False
    has_gpu = _cuda_is_there()
    if pin and not has_gpu:
        raise InvalidInputError(
            "pin=True needs a GPU that torch can use, and torch.cuda.is_available() is false "
            "here. Leave `pin` out: it pins wherever there is one."
        )
    return has_gpu


def _cuda_is_there() -> bool:
    try:
        import torch
    except ImportError:
        return False  # whoever makes the first tensor says what is missing
    return bool(torch.cuda.is_available())


def pinned(tensor: Any) -> Any:
    """A copy of a tensor in pinned memory; what is pinned already, or no tensor, as it is.

    torch's own allocator gives the memory: it knows which copies to a GPU are still under way and
    lends the memory again only after them. Gathering into pinned memory of our own would save this
    copy, but nobody would tell us when it may be used again.
    """
    if not is_torch(tensor) or tensor.device.type != "cpu" or tensor.is_pinned():
        return tensor
    return tensor.pin_memory()


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with everything in its dicts, lists and tuples changed; dicts and lists in place."""
    if isinstance(value, dict):
        for name in value:
            try:
                value[name] = map_leaves(value[name], change)
            except InvalidInputError as error:
                error.add_note(f"that is what {name!r} holds")
                raise
        return value
    if isinstance(value, list):
        value[:] = [map_leaves(leaf, change) for leaf in value]
        return value
    if isinstance(value, tuple):
        changed = [map_leaves(leaf, change) for leaf in value]
        return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)
    return change(value)


Identify = Callable[..., NDArray[Any]]  # of rows, and in a mix of their sources


_NO_TENSORS = (Decimal, Null)  # of which torch and JAX get lists of Python's values
_COPIED_ALONE_STEPS = 256  # longer rows are padded one by one


class Batch(dict[str, Any]):
    """The rows of one step: column name to values.

    Attributes:
        position: rows of the epoch handed out with this batch, by all ranks together; where
            reading resumes after it.
        rows: int64 ``(rows,)``, the number of each row in the dataset: ``ds[batch.rows]`` is the
            same data.
        valid: per nullable column a bool array (or tensor), False where the row is null. There,
            arrays and tensors hold zeros and lists None, or what ``nulls=`` said; numpy arrays of
            nullable columns are masked as well, unless it said so.
        lengths: per padded column the true lengths, int64 ``(rows,)``, or ``(rows, n)`` where n
            dimensions differ from row to row.
        repeated: number of last rows that repeat others, where a last step was filled up.
        source: int64 ``(rows,)``, of a mix: which of its sources each row is of, whose number in
            that dataset `rows` then is. None where there is one dataset.
        echo: int64 ``(rows,)``, with echo=: which time of the epoch each row is given, from 0. None
            where rows come once.
        draws: uint64 ``(rows,)``, the numbers by which chance (of boxes and flips) follows rows.
    """

    def __init__(
        self, columns: Mapping[str, Any], *, position: int, rows: Ints, identify: Identify
    ) -> None:
        """Made by a stream; `identify` finds row ids when they are asked for."""
        super().__init__(columns)
        self.position = position
        self.rows = rows
        self.valid: dict[str, Any] = {}
        self.lengths: dict[str, Any] = {}
        self.segments: dict[str, Any] = {}
        self.repeated = 0
        self.source: Ints | None = None
        self.echo: Ints | None = None
        self.draws = rows.view(np.uint64)
        self._identify = identify

    def part(self, places: Ints) -> Batch:
        """The rows at these places, ascending; a copy."""
        attributes = vars(self) | {
            "rows": self.rows[places],
            "draws": self.draws[places],
            "repeated": int((places >= len(self.rows) - self.repeated).sum()),
            "source": None if self.source is None else self.source[places],
            "echo": None if self.echo is None else self.echo[places],
        }
        for name in ("valid", "lengths", "segments"):
            attributes[name] = _all_taken(attributes[name], places)
        return batch_with(_all_taken(self, places), attributes, self._identify)

    def with_columns(self, columns: Mapping[str, Any], **attributes: Any) -> Batch:
        """The same rows with other columns, and other `attributes` where these are given."""
        return batch_with(columns, self.attributes | attributes, self._identify)

    @property
    def row_ids(self) -> NDArray[Any]:
        """The id of each row, ``fragment`` and ``offset``: kept when the dataset grows."""
        if self.source is None:
            return self._identify(self.rows)
        return self._identify(self.rows, self.source)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (dict(self), self.attributes, self.row_ids)

    @property
    def attributes(self) -> dict[str, Any]:
        """All that is known besides the columns, but for where row ids come from."""
        return {name: value for name, value in vars(self).items() if name != "_identify"}


def batch_with(
    columns: Mapping[str, Any], attributes: Mapping[str, Any], identify: Identify
) -> Batch:
    """A batch with the attributes of another one."""
    position, rows = attributes["position"], attributes["rows"]
    batch = Batch(columns, position=position, rows=rows, identify=identify)
    vars(batch).update(attributes)
    return batch


def _restored(columns: dict[str, Any], attributes: dict[str, Any], row_ids: NDArray[Any]) -> Batch:
    return batch_with(columns, attributes, lambda *_: row_ids)


def _all_taken(columns: Mapping[str, Any], places: Ints) -> dict[str, Any]:
    return {name: _taken(values, places) for name, values in columns.items()}


def _taken(values: Any, places: Ints) -> Any:
    if isinstance(values, list):
        return [values[at] for at in places.tolist()]
    if isinstance(values, BinaryValues):  # encoded, for a decoder
        return values.take(places)
    taken = getattr(values, "take", None)
    if taken is not None and not isinstance(values, np.ndarray) and hasattr(values, "to_pylist"):
        return taken(places)  # of Arrow
    return values[places]


@dataclass(frozen=True, slots=True)
class BatchForm:
    """Form in which values are handed out.

    Attributes:
        output: form of the values, see `StreamOptions`.
        pad: value that fills up ragged columns; None where these stay lists.
        pool: pool of the memory of padded columns.
        identify: finds the row ids of batches.
        encoded: columns that stay `BinaryValues`, for a decoder.
        mark: callback for every batch of a mix, to note the sources of its rows.
        nulls: what becomes of nulls.
    """

    output: OutputForm
    pad: float | None
    pool: Pool
    identify: Identify
    encoded: frozenset[str] = frozenset()
    mark: Callable[[Batch], None] | None = None
    nulls: NullPolicy = field(default_factory=NullPolicy)

    def batches(
        self,
        columns: Iterable[tuple[Column, ColumnValues | PackedValues]],
        bounds: Sequence[int],
        *,
        ends: Sequence[int],
        rows: Ints,
    ) -> list[Batch]:
        """The batches of consecutive steps.

        Args:
            columns: their values, of all steps together.
            bounds: step i has the rows ``[bounds[i], bounds[i + 1])`` of them.
            ends: the position after each step.
            rows: number of each row.
        """
        parts = list(pairwise(bounds))
        made = [
            Batch({}, position=end, rows=rows[low:high], identify=self.identify)
            for (low, high), end in zip(parts, ends, strict=True)
        ]
        for column, values in columns:
            if self._is_plain(values, column):
                name, array = column.name, values.values
                is_torch_output, to_jax = self.output == "torch", partial(self._array, name=name)
                as_handed_out = to_torch(array.dtype) if is_torch_output else to_jax
                for batch, (low, high) in zip(made, parts, strict=True):
                    batch[name] = as_handed_out(array[low:high])
            else:
                for batch, (low, high) in zip(made, parts, strict=True):
                    self._put(batch, column, values.slice(low, high))
        if self.mark is not None:
            for batch in made:
                self.mark(batch)
        return made

    def _is_plain(
        self, values: ColumnValues | PackedValues, column: Column
    ) -> TypeGuard[FixedValues]:
        """Whether each batch is handed out its part of one array: then this takes little Python."""
        fixed = isinstance(values, FixedValues) and values.valid is None
        fixed = fixed and not isinstance(column.type, _NO_TENSORS)
        return fixed and self.output in ("torch", "jax") and column.name not in self.encoded

    def _put(self, batch: Batch, column: Column, values: ColumnValues | PackedValues) -> None:
        name = column.name
        if not isinstance(values, PackedValues) and values.valid is not None:
            batch.valid[name] = self._array(values.valid)
            values = self.nulls.applied(column, values, batch.rows)
        if name in self.encoded:
            batch[name] = values
        elif isinstance(values, PackedValues):
            batch.rows = values.rows
            batch[name] = self._array(values.values, name)
            batch.segments[name] = self._array(values.segments)
            batch.lengths[name] = self._array(values.lengths)
        elif isinstance(values, RaggedValues) and self.pad is not None:
            padded, true_lengths = pad_rows(values, self.pad, self.pool)
            batch[name] = self._array(padded, name)
            batch.lengths[name] = self._array(true_lengths)
        else:
            batch[name] = self._values(column, values)

    def _values(self, column: Column, values: ColumnValues) -> Any:
        if self.output == "arrow":
            return column_array(column, values)
        if self.output == "numpy":
            return present(column, values, masked=self.nulls.marks(column))
        if isinstance(column.type, _NO_TENSORS):
            return list(present(column, values))
        if isinstance(values, FixedValues):
            return self._array(values.values, column.name)
        rows = present(column, values)
        if not isinstance(values, RaggedValues):
            return rows
        return [None if row is None else self._array(row, column.name) for row in rows]

    def _array(self, array: NDArray[Any], name: str = "") -> Any:
        return as_output(array, self.output, name)


def as_output(array: NDArray[Any], output: OutputForm, name: str = "") -> Any:
    """`array`, of column `name`, as what is handed out, of the same memory where it can be."""
    if output == "torch":
        return as_torch(array)
    return as_jax(array, name) if output == "jax" else array


def with_leaves_changed(item: Any, change: Callable[[Any], Any]) -> Any:
    """What is handed out for a step, with `change` made to everything in it.

    That is every column, or whatever a transform returned, in dicts, lists and tuples.
    """
    if isinstance(item, Batch):
        item.valid, item.lengths = map_leaves(item.valid, change), map_leaves(item.lengths, change)
        item.segments = map_leaves(item.segments, change)
    return map_leaves(item, change)


def pad_rows(values: RaggedValues, pad: float, pool: Pool) -> tuple[NDArray[Any], Ints]:
    """Ragged rows as one array, filled up with `pad`, and their true lengths.

    Returns:
        Array ``(rows, *longest)`` where each unknown dimension is the largest of the batch, and
        int64 ``(rows,)``, or ``(rows, unknown dims)`` when there are several.
    """
    shapes = _row_shapes(values)
    out = pool.array((values.rows, *shapes.max(axis=0, initial=0).tolist()), values.elements.dtype)
    out[...] = pad
    unknown = [at for at, dim in enumerate(values.shape) if dim is None]
    if unknown == [0]:
        _fill(out, values, shapes[:, 0])
    else:
        for at in range(values.rows):
            inside_of_row = tuple(slice(0, length) for length in shapes[at].tolist())
            out[at][inside_of_row] = values.row(at)
    lengths = shapes[:, unknown]
    return out, np.ascontiguousarray(lengths[:, 0] if len(unknown) == 1 else lengths)


def _fill(out: NDArray[Any], values: RaggedValues, lengths: Ints) -> None:
    """Lay rows of so many steps along the first dimension into the rows of `out`."""
    used = values.elements[int(values.offsets[0]) : int(values.offsets[-1])]
    if not used.size:
        return
    steps = used.reshape(-1, *out.shape[2:])
    ends = np.cumsum(lengths)
    if len(steps) >= _COPIED_ALONE_STEPS * len(out):
        for at, (end, length) in enumerate(zip(ends.tolist(), lengths.tolist(), strict=True)):
            out[at, :length] = steps[end - length : end]
        return
    # One index a step costs 8 bytes, but no Python per row.
    begins = np.arange(len(out)) * out.shape[1] - (ends - lengths)
    out.reshape(-1, *out.shape[2:])[np.repeat(begins, lengths) + np.arange(len(steps))] = steps


def _row_shapes(values: RaggedValues) -> Ints:
    """The shape of every row, ``(rows, dims)``."""
    fixed = [dim for dim in values.shape if dim is not None]
    each = np.diff(values.offsets) // max(1, prod(fixed))
    unknown = [each] if values.dims is None else list(values.dims.T)
    columns = iter(unknown)
    full = np.empty((values.rows, len(values.shape)), np.int64)
    for at, dim in enumerate(values.shape):
        full[:, at] = next(columns) if dim is None else dim
    return full
