"""Plug-ins of DLIO (`dlio_benchmark`), by which it reads datasets of a repository.

    workload = DlioWorkload(name="photos", batch_size=64, step_seconds=0.2)
    export_workload(dataset, "job", workload)

    dlio_benchmark --config-dir job/conf workload=photos

`RepositoryDataLoader` streams a dataset as a training would: shuffled, read ahead, each rank its
share. `RepositoryReader` reads sample by sample, for DLIO's own loader of PyTorch, which shuffles,
shares out and reads ahead by itself. What is read is verified by both.

Which rows those are stand in the files that `export_workload` wrote; see
`tensorrepo.workloads.dlio_files`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.reader.reader_handler import FormatReader

from tensorrepo.datasets.dataset import Dataset
from tensorrepo.datasets.stream import Stream
from tensorrepo.formats.dataset.streaming.options import Loading, Ranks, Sampling
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.sdk import opened_once
from tensorrepo.workloads.dlio_files import (
    DlioWorkload,
    SamplePointer,
    export_workload,
    read_pointer,
)

__all__ = ["DlioWorkload", "RepositoryDataLoader", "RepositoryReader", "export_workload"]


class RepositoryDataLoader(BaseDataLoader):  # type: ignore[misc]
    """A data loader of DLIO: ``reader.data_loader_classname``, with the sampler ``iterative``."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int) -> None:
        """Made by DLIO for training, and for evaluation."""
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.PYTORCH)
        self._stream: Stream | None = None

    def read(self) -> None:
        """Open the dataset that the first file names, as far as DLIO's files go.

        Raises:
            InvalidInputError: DLIO has no files.
        """
        args = self._args
        files = args.file_list_train
        if self.dataset_type is not DatasetType.TRAIN:
            files = args.file_list_eval
        if not files:
            raise InvalidInputError(
                f"DLIO has no {self.dataset_type} files: dataset.data_folder is to be what "
                "`export_workload` wrote, and batches of all ranks no more than its samples"
            )
        first = read_pointer(min(files))
        rows = first.stop - first.start
        dataset = _dataset(first)
        whole = len(files) * rows == len(dataset)
        self._stream = dataset.stream(
            batch_size=self.batch_size * rows * args.comm_size,
            seed=args.seed,
            sampling=Sampling(rows=None if whole else slice(0, len(files) * rows)),
            ranks=Ranks(rank=args.my_rank, world_size=args.comm_size),
            output="arrow",  # lists of Python's bytes would hold the interpreter, see accelerators
            last="drop",
            loading=Loading(fetch_threads=max(1, args.read_threads), cache_limit=0),
        )

    def next(self) -> Iterator[Any]:
        """Batches of this rank in an epoch: arrays of Arrow by column."""
        super().next()
        if self._stream is None:
            self.read()
        assert self._stream is not None, "it was just made"
        self._stream.set_epoch(self.epoch_number)
        yield from self._stream
        self.epoch_number += 1

    def finalize(self) -> None:
        """Called after each epoch: what reads ahead has ended with it."""


class RepositoryReader(FormatReader):  # type: ignore[misc]
    """A reader of DLIO: ``reader.reader_classname``, with DLIO's own data loader of PyTorch."""

    def __init__(self, dataset_type: Any, thread_index: int, epoch: int) -> None:
        """Made by DLIO in each process that reads."""
        super().__init__(dataset_type, thread_index)
        self.epoch_number = epoch

    def open(self, filename: str) -> SamplePointer:
        """Where the sample of a file is."""
        super().open(filename)
        return read_pointer(filename)

    def close(self, filename: str) -> None:
        """A pointer holds nothing open."""
        super().close(filename)

    def get_sample(self, filename: str, sample_index: int) -> Any:
        """Read a sample: arrays, or lists, by column."""
        super().get_sample(filename, sample_index)
        pointer: SamplePointer = self.open_file_map[filename]
        return _dataset(pointer)[pointer.start : pointer.stop]

    def next(self) -> Iterator[Any]:
        """Batches in DLIO's order, for loaders that do not ask by number."""
        yield from super().next()

    def read_index(self, image_idx: int, step: int) -> Any:
        """Read the sample of a number, and give what stands for it in DLIO's batches."""
        return super().read_index(image_idx, step)

    def finalize(self) -> None:
        """Nothing is held open."""

    def is_index_based(self) -> bool:
        """Whether samples can be asked for by number."""
        return True

    def is_iterator_based(self) -> bool:
        """Whether samples come in an order."""
        return True


def _dataset(pointer: SamplePointer) -> Dataset:
    return _opened(pointer.repository, pointer.commit, pointer.dataset)


@lru_cache(maxsize=4)
def _opened(url: str, commit: str, name: str) -> Dataset:
    return opened_once(url).dataset(name, commit)
