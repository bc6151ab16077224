"""A corpus of mutated foreign files: 38 seeds, 2,508 mutants in the profile `soak`."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.contracts.test_exchange import CASES
from tests.contracts.test_exchange_imports import SAMPLES
from tests.formats.exchange.checkpoints.test_contract import FILES
from tests.support.effort import sampled, soaking
from tests.support.faults.mutants import MutationSeed, faults_alone

pytestmark = pytest.mark.long

GOLDEN = Path(__file__).parents[1] / "golden/foreign"
WRITTEN_BY_OTHERS = {
    "lmdb/datums.mdb": "lmdb",
    "lmdb/encoded.mdb": "lmdb",
    "lmdb/plain.mdb": "lmdb",
    "mindrecord/five.mindrecord": "mindrecord",
    "tfrecord/four.tfrecord": "tfrecord",
    "tfrecord/four.tfrecord.gz": "tfrecord",
    "tfrecord/four.tfrecord.zlib": "tfrecord",
}


def _seeds(folder: Path) -> list[MutationSeed]:
    seeds = [MutationSeed(str(GOLDEN / name), "", kind) for name, kind in WRITTEN_BY_OTHERS.items()]
    seeds.append(MutationSeed(str(GOLDEN / "mds/plain"), "index.json", "mds"))
    beton = folder / "five.beton"
    beton.write_bytes(gzip.decompress((GOLDEN / "beton/five.beton.gz").read_bytes()))
    seeds.append(MutationSeed(str(beton), "", "beton"))
    for number, case in enumerate(CASES):
        (folder / f"case{number}").mkdir()
        path = case.export(folder / f"case{number}")
        inner = case.inner(path)
        mutated = "" if inner == path else str(inner.relative_to(path))
        seeds.append(MutationSeed(str(path), mutated, case.format))
    for number, sample in enumerate(SAMPLES):
        path = sample.made(folder / f"sample{number}")
        seeds.append(MutationSeed(str(path), sample.file if path.is_dir() else "", sample.format))
    for number, (name, write) in enumerate(FILES.values()):
        (folder / f"model{number}").mkdir()
        seeds.append(MutationSeed(str(write(folder / f"model{number}" / name)), "", "model"))
    return seeds


def test_mutated_files_are_read_or_refused_by_us_in_bounded_time_and_memory(tmp_path: Path) -> None:
    seeds = _seeds(tmp_path)
    assert len(seeds) == 40
    # In a soak a process for each, so that one death hides none.
    groups = [[seed] for seed in seeds] if soaking() else [sampled(seeds, 20)]
    faults = [fault for group in groups for fault in faults_alone(group, 66 if soaking() else 1)]
    assert faults == []
