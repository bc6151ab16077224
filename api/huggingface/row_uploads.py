"""Parquet files that become rows, where the card of a dataset asks for that.

A card that has ``tensorrepo: rows`` in front says that its Parquet files are rows of a dataset
rather than files: they are read in the importer's child process, and written as a dataset. From
then on the repository has Parquet files that are made of its rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Final, cast

from tensorrepo.api.huggingface.card_metadata import CARD, card_metadata
from tensorrepo.api.huggingface.descriptions import card_of
from tensorrepo.api.huggingface.hub_files import HubCommit
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.dataset.schema.schema import ColumnBatch
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.exchange.base import OpenedSource, with_split
from tensorrepo.formats.exchange.tables.arrow import read_parquet
from tensorrepo.formats.exchange.tables.huggingface import with_split_column
from tensorrepo.formats.model.write.model_source import FileContent, content_of
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import ObjectSink

KEY: Final = "tensorrepo"
ROWS: Final = "rows"
SUFFIX: Final = ".parquet"


def rows_of(before: HubCommit, uploaded: Mapping[str, FileContent]) -> dict[str, Path]:
    """Of uploaded files those that are rows; none unless the card asks for it."""
    new = uploaded.get(CARD)
    text = None if new is None else bytes(content_of(new)).decode(errors="replace")
    card = card_of(before) if text is None else card_metadata(text)
    if card.get(KEY) != ROWS:
        return {}
    return {
        path: content
        for path, content in uploaded.items()
        if path.endswith(SUFFIX) and isinstance(content, Path)
    }


def write_rows(objects: ObjectSink, files: Mapping[str, Path], room: Path) -> Entry:
    """Store Parquet files as a dataset, in the order of their names.

    Of files of several splits, which the beginning of their names tells (``data/train-0...``), a
    column `split` says where each row is from.

    Args:
        objects: where to.
        files: where they lie, by name.
        room: folder on their disk.

    Raises:
        InvalidInputError: a file that is no Parquet, or splits whose columns differ.
        UnsupportedError: a column that no column type holds.
    """
    splits: dict[str, list[str]] = {}
    for name in sorted(files):
        splits.setdefault(PurePosixPath(name).name.partition("-")[0], []).append(name)
    with TemporaryDirectory(dir=room, prefix="rows-") as folder:
        opened = [
            _open(Path(folder) / str(number), [files[name] for name in names])
            for number, names in enumerate(splits.values())
        ]
        schema = opened[0].schema
        differs = next((one for one in opened if one.schema != schema), None)
        if differs is not None:
            raise InvalidInputError(
                f"splits {', '.join(splits)} have other columns: {', '.join(schema.names)} and "
                f"{', '.join(differs.schema.names)}. Push them as datasets of their own."
            )
        whole = with_split_column(schema, list(splits)) if len(splits) > 1 else schema
        # A reader of tables gives columns, never rows one by one.
        batches = cast("list[Iterable[ColumnBatch]]", [one.batches for one in opened])
        link = write_dataset(objects, whole, with_split(batches))
    return open_dataset(objects, link.digest).entry


def _open(folder: Path, files: list[Path]) -> OpenedSource:
    """Files of one split, linked to where the reader finds them in their order."""
    folder.mkdir()
    for number, file in enumerate(files):
        os.link(file, folder / f"{number:06d}{SUFFIX}")
    return read_parquet(folder)
