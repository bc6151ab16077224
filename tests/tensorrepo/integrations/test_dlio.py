"""DLIO itself, from pip, reads datasets of a repository by the plug-in, in its own environment.

DLIO 2.0.0 asks pip for TensorFlow, torchvision and DALI, which are gigabytes, so it is installed
without what it asks for. Of these it imports TensorFlow alone, for a profiler that nothing here
asks for: an empty module has the name. MPI comes as a wheel.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tensorrepo as tr
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.workloads.dlio_files import (
    MOST_SAMPLES,
    DlioWorkload,
    SamplePointer,
    export_workload,
    read_pointer,
)
from tests.support.clients.environments import client_python
from tests.tensorrepo.test_cli_bench import METRIC, SUMMARY

SAMPLES = 24
CLIENT = (
    "dlio-benchmark==2.0.0",
    "--no-deps",  # see above
    "pydftracer==1.0.2",
    "hydra-core==1.3.2",
    "omegaconf==2.3.0",
    "antlr4-python3-runtime==4.9.3",
    "mpi4py==4.1.2",
    "mpich==5.0.2",
)
# Counts what the plug-in hands over: what DLIO does with it is to sleep.
COUNTING = """
import atexit, json, os, sys
import tensorrepo.integrations.dlio as plugin

seen = []
class CountingLoader(plugin.RepositoryDataLoader):
    def next(self):
        for batch in super().next():
            seen.extend(batch["number"].to_pylist())
            yield batch

class CountingReader(plugin.RepositoryReader):
    def get_sample(self, filename, sample_index):
        found = super().get_sample(filename, sample_index)
        with open(os.environ["SEEN"] + f"-{os.getpid()}", "a") as file:
            file.writelines(f"{int(each)}\\n" for each in found["number"])
        return found

@atexit.register
def tell():
    if seen:
        with open(os.environ["SEEN"] + f"-{os.getpid()}", "a") as file:
            file.writelines(f"{each}\\n" for each in seen)
"""


@pytest.fixture
def numbers(tmp_path: Path) -> tr.Dataset:
    """Samples that have a number and some bytes."""
    repo = tr.init(tmp_path / "store", author="Ann <ann@example.org>")
    with repo.transaction(message="numbers") as tx:
        draft = tx.create_dataset("numbers", columns={"number": "int64", "data": tr.Bytes()})
        data = [bytes([at]) * 1000 for at in range(SAMPLES)]
        draft.append({"number": np.arange(SAMPLES), "data": data})
    return repo.dataset("numbers")


@pytest.fixture(scope="module")
def python() -> Path:
    return client_python(*CLIENT, ours=True)


def run_dlio(python: Path, folder: Path, name: str, *, ranks: int = 1) -> dict[str, Any]:
    """What DLIO writes to its summary, having run the workload of a name."""
    (folder / "counting_plugin.py").write_text(COUNTING)
    (folder / "tensorflow.py").touch()
    command = [str(python), "-m", "dlio_benchmark.main", "--config-dir", str(folder / "conf")]
    command += [f"workload={name}", f"hydra.run.dir={folder / 'out'}"]
    done = subprocess.run(
        [str(python.parent / "mpiexec"), "-n", str(ranks), *command],
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(folder),
            "SEEN": str(folder / "seen"),
            "DFTRACER_ENABLE": "0",
            "DLIO_LOG_LEVEL": "info",
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    told: dict[str, Any] = json.loads((folder / "out" / "summary.json").read_text())
    return told


def seen(folder: Path) -> list[int]:
    told = [path.read_text().split() for path in folder.glob("seen-*")]
    return sorted(int(word) for words in told for word in words)


def with_class(config: Path, key: str, name: str) -> None:
    """Let a workload use a class of the module that counts."""
    told = yaml.safe_load(config.read_text())
    assert told["reader"][key].startswith("tensorrepo.integrations.dlio.Repository")
    told["reader"][key] = f"counting_plugin.{name}"
    config.write_text(yaml.safe_dump(told))


@pytest.mark.soak
def test_dlio_streams_a_dataset_each_rank_its_share(
    python: Path, numbers: tr.Dataset, tmp_path: Path
) -> None:
    workload = DlioWorkload(name="numbers", batch_size=3, step_seconds=0.01, epochs=2)
    config = export_workload(numbers, tmp_path / "job", workload)
    with_class(config, "data_loader_classname", "CountingLoader")
    summary = run_dlio(python, tmp_path / "job", "numbers", ranks=2)
    # Every sample once in each of two epochs, on one of two ranks.
    assert seen(tmp_path / "job") == sorted([*range(SAMPLES), *range(SAMPLES)])
    assert summary["num_accelerators"] == 2
    assert summary["epochs"] == 2
    assert summary["num_files_train"] == SAMPLES
    assert len(summary["metric"]["train_au_percentage"]) == 2
    # Ours have the same form.
    assert summary.keys() == SUMMARY
    assert summary["metric"].keys() == METRIC


@pytest.mark.soak
@pytest.mark.soak  # starts DLIO, and its processes, once more
def test_dlios_own_loader_reads_row_by_row(
    python: Path, numbers: tr.Dataset, tmp_path: Path
) -> None:
    workload = DlioWorkload(name="rows", batch_size=4, step_seconds=0.01, by="rows", read_threads=2)
    config = export_workload(numbers, tmp_path / "job", workload)
    with_class(config, "reader_classname", "CountingReader")
    summary = run_dlio(python, tmp_path / "job", "rows")
    assert seen(tmp_path / "job") == list(range(SAMPLES))
    assert summary["metric"]["train_au_meet_expectation"] in ("success", "fail")


def test_a_file_for_each_sample_says_where_it_is(numbers: tr.Dataset, tmp_path: Path) -> None:
    workload = DlioWorkload(name="pairs", batch_size=2, step_seconds=0.5, rows_of_sample=2)
    told: list[tuple[int, int]] = []
    config = export_workload(numbers, tmp_path, workload, lambda *each: told.append(each))
    files = sorted((tmp_path / "data/pairs/train").iterdir())
    assert len(files) == SAMPLES // 2
    assert read_pointer(files[3]) == SamplePointer(
        numbers.context.url, numbers.commit, "numbers", 6, 8
    )
    assert told[-1] == (12, 12)
    written = yaml.safe_load(config.read_text())
    assert written["dataset"]["num_files_train"] == 12
    assert written["dataset"]["data_folder"] == str(tmp_path / "data/pairs")
    assert written["train"] == {"epochs": 1, "computation_time": 0.5}
    assert (tmp_path / "data/pairs/valid").is_dir()


def test_a_workload_written_again_has_no_files_of_the_old_one(
    numbers: tr.Dataset, tmp_path: Path
) -> None:
    for rows in (1, 3):
        workload = DlioWorkload(name="n", batch_size=1, step_seconds=0, rows_of_sample=rows)
        export_workload(numbers, tmp_path, workload)
    assert len(list((tmp_path / "data/n/train").iterdir())) == SAMPLES // 3


@pytest.mark.parametrize("name", ["", "a b", "../up", "a/b", "x" * 65])
def test_a_name_that_is_no_word_of_a_configuration_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="expected letters, digits"):
        DlioWorkload(name=name, batch_size=1, step_seconds=0)


def test_a_dataset_of_too_many_samples_or_none_is_refused(tmp_path: Path) -> None:
    repo = tr.init(tmp_path / "store", author="Ann <ann@example.org>")
    with repo.transaction(message="many") as tx:
        tx.create_dataset("many", columns={"x": "int8"}).append(
            {"x": np.zeros(MOST_SAMPLES + 1, np.int8)}
        )
        tx.create_dataset("none", columns={"x": "int8"})
    workload = DlioWorkload(name="n", batch_size=1, step_seconds=0)
    for name in ("many", "none"):
        with pytest.raises(InvalidInputError, match="each of which gets a file"):
            export_workload(repo.dataset(name), tmp_path / "job", workload)
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04 an npz of DLIO", b"[1, 2]"])
def test_what_dlio_generated_itself_is_no_pointer(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "img_0_of_1.npz").write_bytes(content)
    with pytest.raises(CorruptError, match="does not say where a sample is"):
        read_pointer(tmp_path / "img_0_of_1.npz")
