"""Import and export of foreign formats, as the SDK offers them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorrepo.dataset import Dataset
from tensorrepo.formats.exchange import registry
from tensorrepo.model import Model

if TYPE_CHECKING:
    from tensorrepo.formats.exchange.base import Reading


def read(
    what: str | Path | object,
    format: str | None = None,  # noqa: A002
    **options: Any,
) -> Reading:
    """Open a foreign file or folder, or a library's object, as rows, for `append`.

    Args:
        what: a path (images in class folders, Parquet, CSV, npy, npz, IDX, ...), or a dataset of
            torch or of Hugging Face.
        format: of a path; None: told by suffix and content.
        options: of that format, as the guide to foreign formats lists them.
    """
    if isinstance(what, (str, Path)):
        return registry.read(what, format, **options)
    return registry.read_object(what, **options)


def export(
    what: Dataset | Model,
    path: str | Path,
    format: str | None = None,  # noqa: A002
    *,
    overwrite: bool = False,
    **options: Any,
) -> Path:
    """Write a dataset or a model in a foreign format, whole or not at all.

    Args:
        what: as `Repository.dataset` and `Repository.model` give it.
        path: what to make; its folder must exist.
        format: its format; None: told by the suffix of `path`.
        overwrite: replace what is there.
        options: of that format.

    Returns:
        `path`.

    Raises:
        InvalidInputError: `path` exists, or the format cannot hold what is to be written.
    """
    target = Path(path)
    if isinstance(what, Dataset):
        return registry.export(what.stored, target, format, overwrite=overwrite, **options)
    return what.export(target, format, overwrite=overwrite, **options)
