"""What this machine says of itself."""

from __future__ import annotations

import os
import sys

import pytest

from tensorrepo.workloads.machine import available_memory, core_count, proc_table, total_memory


def test_memory_that_is_available_is_some_of_all() -> None:
    total, available = total_memory(), available_memory()
    assert total is not None
    assert total > 1 << 20
    assert available is None or 0 < available <= total


@pytest.mark.skipif(sys.platform != "linux", reason="has no /proc")
def test_linux_tells_of_memory_and_processors() -> None:
    assert proc_table("meminfo")["MemTotal"].endswith("kB")
    assert proc_table("cpuinfo")["processor"].isdigit()
    assert core_count() == os.cpu_count()


def test_of_a_table_that_is_not_there_nothing_is_told() -> None:
    assert proc_table("no-such-table") == {}
