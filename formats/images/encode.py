"""Image encoding: pictures of Pillow and arrays of pixels as the bytes of an image file.

Pillow is asked only where there are pixels to encode; its pictures are told by what they can do.
PNG, WebP, TIFF and BMP keep every pixel, or the picture is refused. A column that is declared as
JPEG asks for a loss, and gets a small one.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import import_library, is_torch
from tensorrepo.formats.images.headers import SUFFIXES
from tensorrepo.repo.errors import InvalidInputError

# Pillow's modes that a format keeps to the last bit.
LOSSLESS: Final = {
    "png": frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}),
    "webp": frozenset({"RGB"}),  # it drops transparency that hides nothing
    "tiff": frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "F", "CMYK", "LAB"}),
    "bmp": frozenset({"1", "L", "P", "RGB"}),
}
_SAVE_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "webp": {"lossless": True, "exact": True},
    "jpeg": {"quality": 95, "subsampling": 0},
}
_JPEG_MODES: Final = frozenset({"L", "RGB", "CMYK"})
_CHANNELS: Final = (1, 2, 3, 4)
ACCEPTED: Final = "an image: its bytes, a picture of Pillow, an array of pixels, or its path"


def is_picture(value: object) -> bool:
    """Whether a value is a picture of Pillow."""
    return hasattr(value, "save") and hasattr(value, "mode") and hasattr(value, "getbands")


def is_pixels(value: object) -> bool:
    """Whether a value is an array that may be one image: (height, width[, 1 to 4 channels])."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "bu":
        return False
    return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in _CHANNELS)


def codec_of_path(path: object) -> str | None:
    """The image format that the name of a file says; None: none that is known."""
    suffix = Path(path).suffix.lower() if isinstance(path, os.PathLike) else ""
    return next((codec for codec, suffixes in SUFFIXES.items() if suffix in suffixes), None)


def encode_image(value: Any, codec: str | None) -> bytes:
    """One image as the bytes of a file.

    Args:
        value: bytes, which are taken as they are; a picture of Pillow; or an array of pixels,
            ``(height, width)`` or ``(height, width, channels)``.
        codec: format that pixels are encoded in; None: PNG.

    Raises:
        InvalidInputError: pixels that the format would not keep, or a path: no file is read here.
        TypeError: none of these.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, os.PathLike):
        raise InvalidInputError(f"the path {os.fspath(value)}, of which no bytes were read")
    if is_picture(value):
        return encode_picture(value, codec or "png")
    if is_torch(value):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return encode_picture(_picture_of(value), codec or "png")
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} {value!r:.60}")


def encode_picture(picture: Any, image_format: str) -> bytes:
    """A picture of Pillow as a file of a format.

    Raises:
        InvalidInputError: a format that is none, or would not keep the picture's mode.
    """
    modes = _JPEG_MODES if image_format == "jpeg" else LOSSLESS.get(image_format)
    if modes is None:
        raise InvalidInputError(f"image_format is {' or '.join(LOSSLESS)}, got {image_format!r}")
    if picture.mode not in modes:
        fitting = [name for name, held in LOSSLESS.items() if picture.mode in held]
        hint = f"say image_format={fitting[0]}" if fitting else "convert it first"
        raise InvalidInputError(
            f"{image_format} would not keep a picture of mode {picture.mode!r} exactly; {hint}"
        )
    file = io.BytesIO()
    picture.save(file, image_format.upper(), **_SAVE_OPTIONS.get(image_format, {}))
    return file.getvalue()


def _picture_of(pixels: NDArray[Any]) -> Any:
    grey16 = pixels.dtype == np.uint16 and pixels.ndim == 2
    if not (is_pixels(pixels) and (pixels.dtype.itemsize == 1 or grey16)):
        turned = pixels.ndim == 3 and pixels.shape[0] in _CHANNELS
        hint = ": channels come last, as array.transpose(1, 2, 0) has them" if turned else ""
        raise InvalidInputError(
            f"an array of {pixels.dtype.name}{pixels.shape}; pixels are uint8 of shape "
            f"(height, width) or (height, width, 1 to 4){hint}"
        )
    missing = "pixels need pillow to be encoded: `pip install 'tensorrepo[images]'`"
    plain = pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    return import_library("PIL.Image", missing).fromarray(np.ascontiguousarray(plain))
