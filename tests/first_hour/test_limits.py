"""Ordinary limits of a machine: few descriptors, few addresses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

import tensorrepo as tr

READ_ALL = """
import resource, sys
import numpy as np
import tensorrepo as tr
from tensorrepo.repo.objects.mapping import map_file

repository = tr.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
for number in range(80):
    assert repository.dataset(f"d{number}")["x"][:].shape == (8, 1024)
large = repository.dataset("large")
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
room = size + (100 << 20)  # a map of one chunk, and what is read besides
resource.setrlimit(resource.RLIMIT_AS, (room, room))
for start in range(0, len(large), 512):
    assert (large["x"][start : start + 512][:, 0] == np.arange(start, start + 512)).all()
"""


def test_many_objects_are_read_with_few_descriptors_and_addresses(tmp_path: Path) -> None:
    repository = tr.init(tmp_path / "r", author="Ada <ada@example.org>")
    with repository.transaction(message="Many") as tx:
        for number in range(80):
            draft = tx.create_dataset(f"d{number}", columns={"x": tr.Tensor("float32", (1024,))})
            draft.append({"x": np.full((8, 1024), number, "f4")})
        rows = np.repeat(np.arange(32768, dtype="f4")[:, None], 1024, axis=1)
        tx.create_dataset("large", columns={"x": tr.Tensor("float32", (1024,))}).append({"x": rows})
    command = [sys.executable, "-c", READ_ALL, str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
