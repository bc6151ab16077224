"""Arrays of frameworks: tensors of torch and arrays of JAX, pinned where that is asked for.

They use the memory that a batch was gathered into, where they can. Memory that a GPU copies from by
itself ("pinned") is torch's own, filled by a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import is_small_float
from tensorrepo.formats.common.tensors import is_torch
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import Timestamp
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

OutputForm = Literal["numpy", "torch", "jax", "arrow"]
OUTPUTS: tuple[OutputForm, ...] = ("numpy", "torch", "jax", "arrow")
_JAX_BYTES = 4  # of a number, at most, unless jax_enable_x64 is set
_WIDER = "set jax.config.update('jax_enable_x64', True) before the stream is opened"


def as_jax(array: NDArray[Any], name: str = "") -> Any:
    """An array of JAX, on its default device; of the same memory on a CPU where it is aligned.

    JAX makes 32-bit numbers of 64-bit ones unless ``jax_enable_x64`` is set. Nobody may change
    `array` afterwards.

    Args:
        array: array of numbers.
        name: name of the column, for errors.

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
    moments = [column.name for column in columns if isinstance(column.type, Timestamp)]
    if moments and not _jax_is_wide():
        raise InvalidInputError(
            f"column {moments[0]!r} holds moments, which are 64-bit numbers, and JAX would cut "
            f"them to 32 bits: {_WIDER}, leave the column out with columns=, or take "
            "output='numpy' and convert it in a transform"
        )


def _check_fits(array: NDArray[Any], name: str) -> None:
    """See that integers of 64 bits fit the 32 bits that JAX gives them."""
    narrow = np.iinfo(f"{array.dtype.kind}{_JAX_BYTES}")
    least, most = (int(extreme(initial=0)) for extreme in (array.min, array.max))
    if least < narrow.min or most > narrow.max:
        where = f"column {name!r}" if name else f"an array of {array.dtype}"
        raise InvalidInputError(
            f"{where} holds {most if most > narrow.max else least}, and JAX would make a "
            f"{narrow.dtype} of it, which reaches from {narrow.min} to {narrow.max}: {_WIDER}, "
            "leave the column out with columns=, or take output='numpy' and convert it in a "
            "transform"
        )


def _jax_is_wide() -> bool:
    return bool(_jax().config.jax_enable_x64)


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise UnsupportedError(
            "output='jax' needs jax, which is not installed: `pip install 'tensorrepo[jax]'`, or "
            "the build for your accelerator as JAX's own pages say"
        ) from error
    return jax


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
