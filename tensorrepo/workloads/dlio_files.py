"""Files from which DLIO reads a dataset of a repository: a workload, and a pointer for each sample.

    FOLDER/conf/workload/NAME.yaml     the workload, for ``dlio_benchmark --config-dir FOLDER/conf``
    FOLDER/data/NAME/train/*.npz       one file a sample: repository, commit, dataset, rows
    FOLDER/data/NAME/valid/            empty: DLIO lists it

DLIO lists the files of its data before it loads a plug-in, counts them, and shares them out among
ranks. So there is a file for each sample; the plug-in (`tensorrepo.integrations.dlio`) reads it for
where the sample is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import yaml

from tensorrepo.datasets.dataset import Dataset
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.typed_decoding import from_json

MOST_SAMPLES: Final = 128 * 1024  # files, by the rules of MLPerf Storage
_PLUGIN: Final = "tensorrepo.integrations.dlio"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SUFFIX: Final = "npz"  # a format that DLIO knows; nobody reads it as such

By = Literal["stream", "rows"]


class SamplePointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a sample is.

    Attributes:
        repository: URL of the repository.
        commit: digest of the commit.
        dataset: name of the dataset.
        start: first of its rows.
        stop: row behind the last one.
        tensorrepo: version of this form.
    """

    repository: str
    commit: str
    dataset: str
    start: int
    stop: int
    tensorrepo: Literal[1] = 1


def read_pointer(path: str | Path) -> SamplePointer:
    """What a file of DLIO's data folder says.

    Raises:
        CorruptError: it is no such file.
    """
    try:
        return from_json(Path(path).read_bytes(), SamplePointer)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptError(
            f"{path} does not say where a sample is: {error}. `tensorrepo bench --dlio` and "
            "`export_workload` write such files; DLIO's own generator must not"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class DlioWorkload:
    """What DLIO is to do with a dataset.

    Attributes:
        name: name of the workload.
        batch_size: samples of a step of one accelerator.
        step_seconds: seconds that a step computes.
        epochs: passes over the data.
        read_threads: threads that read for one accelerator.
        rows_of_sample: rows that make a sample; what is left of the dataset is not read.
        sample_bytes: mean bytes of a sample, for DLIO's MB/s; None: as stored.
        least_utilization: share of the time that accelerators have to compute.
        by: "stream" for our data loader, "rows" for DLIO's loader of PyTorch over our reader.
    """

    name: str
    batch_size: int
    step_seconds: float
    epochs: int = 1
    read_threads: int = 1
    rows_of_sample: int = 1
    sample_bytes: int | None = None
    least_utilization: float = 0.9
    by: By = "stream"

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise InvalidInputError(
                f"name {self.name!r}: expected letters, digits, '_' and '-', as DLIO's "
                "configuration has it"
            )


def export_workload(
    dataset: Dataset,
    folder: str | Path,
    workload: DlioWorkload,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Path:
    """Write what DLIO needs to read a dataset with the plug-in.

    Args:
        dataset: a dataset of a repository that other processes can open.
        folder: where to; files of a workload of the same name are replaced.
        workload: what DLIO is to do with it.
        progress: told samples that have their file, of how many.

    Returns:
        The configuration of the workload.

    Raises:
        InvalidInputError: more samples than DLIO is to have files, or none; or the dataset is in
            the memory of this process.
    """
    name = workload.name
    samples = len(dataset) // workload.rows_of_sample
    if not 0 < samples <= MOST_SAMPLES:
        raise InvalidInputError(
            f"{dataset.name} has {samples:,} samples, each of which gets a file: expected 1 to "
            f"{MOST_SAMPLES:,}. Take a smaller dataset"
        )
    if dataset.context.url.startswith("memory:"):
        raise InvalidInputError(f"{dataset.context.url} is not seen by DLIO's processes")
    root = Path(folder).absolute()
    data = root / "data" / name
    _write_pointers(dataset, data, samples, workload.rows_of_sample, progress)
    config = root / "conf" / "workload" / f"{name}.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    stored = dataset.stored.stored_bytes // samples
    length = stored if workload.sample_bytes is None else workload.sample_bytes
    config.write_text(
        yaml.safe_dump(
            {
                "model": {"name": name, "type": "cnn"},
                "framework": "pytorch",
                "workflow": {"generate_data": False, "train": True},
                "dataset": {
                    "data_folder": str(data),
                    "format": _SUFFIX,
                    "num_files_train": samples,
                    "num_samples_per_file": 1,
                    "record_length": length,  # DLIO 2.0
                    "record_length_bytes": length,  # its later source
                },
                "reader": _reader(workload),
                "train": {"epochs": workload.epochs, "computation_time": workload.step_seconds},
                "metric": {"au": workload.least_utilization},
            },
            sort_keys=False,
        )
    )
    return config


def _reader(workload: DlioWorkload) -> dict[str, Any]:
    found = {
        "data_loader": "pytorch",
        "batch_size": workload.batch_size,
        "read_threads": workload.read_threads,
        "file_shuffle": "off",  # the stream shuffles by itself
        "sample_shuffle": "off",
    }
    if workload.by == "stream":
        classes = {"data_loader_classname": f"{_PLUGIN}.RepositoryDataLoader"}
        return found | classes | {"data_loader_sampler": "iterative"}
    return found | {"reader_classname": f"{_PLUGIN}.RepositoryReader", "sample_shuffle": "seed"}


def _write_pointers(
    dataset: Dataset,
    data: Path,
    samples: int,
    rows_of_sample: int,
    progress: Callable[[int, int], None],
) -> None:
    train = data / "train"
    train.mkdir(parents=True, exist_ok=True)
    (data / "valid").mkdir(exist_ok=True)
    for old in train.glob(f"sample_*.{_SUFFIX}"):
        old.unlink()
    digits = len(str(samples - 1))
    for number in range(samples):
        start = number * rows_of_sample
        pointer = SamplePointer(
            dataset.context.url, dataset.commit, dataset.name, start, start + rows_of_sample
        )
        path = train / f"sample_{number:0{digits}}.{_SUFFIX}"
        path.write_bytes(msgspec.json.encode(pointer))
        progress(number + 1, samples)
