"""System metrics of a run: use of CPU, memory and GPUs, sampled by a thread beside the training.

    sampler thread: every few seconds a sample -> metrics "system/..." of the run

The step of a sample is how many seconds after the run's first start it was taken. The numbers are
those that the kernel keeps anyhow; what this machine does not tell (no /proc, no NVIDIA driver, no
pynvml) is left out. No sample ever fails a run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tensorrepo.formats.runs.run_record import SYSTEM
from tensorrepo.repo.errors import Error, InvalidInputError

SAMPLE_SECONDS: Final = 10.0
LEAST_SECONDS: Final = 0.01
MOST_GPUS: Final = 16
_PROC: Final = Path("/proc")
_GIB: Final = 1 << 30
_IDLE: Final = slice(3, 5)  # of the times of a CPU: idle, and waiting for a disk
_COUNTED: Final = slice(0, 8)  # what follows, of guests, is counted in those before it


def check_system_seconds(seconds: Any) -> float | None:
    """`seconds`, when so many may lie between samples. Raises InvalidInputError."""
    if seconds is None:
        return None
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not LEAST_SECONDS <= seconds <= threading.TIMEOUT_MAX:
        raise InvalidInputError(
            f"system_seconds {seconds!r}: expected a number of {LEAST_SECONDS} or more, or None "
            "for no samples"
        )
    return float(seconds)


class SystemSampler:
    """Samples this process and its machine until it is stopped."""

    def __init__(
        self,
        log: Callable[[dict[str, float], int], None],
        started_ns: int,
        *,
        every_seconds: float = SAMPLE_SECONDS,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Sample from when it is started.

        Args:
            log: told the metrics of a sample and its step; called by a thread of the sampler.
            started_ns: UTC in ns from which steps are counted, in seconds.
            every_seconds: pause before each sample.
            clock: UTC in ns.
        """
        self._log, self._started_ns, self._clock = log, started_ns, clock
        self._every_seconds = every_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tensorrepo-system", daemon=True)

    def start(self) -> None:
        """Begin. The first sample is taken after a pause: shorter runs have none."""
        self._thread.start()

    def stop(self) -> None:
        """End; no sample is logged after this returns."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        machine = MachineUse()
        while not self._stopped.wait(self._every_seconds):
            step = max((self._clock() - self._started_ns) // 10**9, 0)
            try:
                self._log({f"{SYSTEM}{name}": value for name, value in machine.sample()}, step)
            except Error:  # the run's own writer tells why nothing is stored
                return


class MachineUse:
    """Use of the machine: shares of time are those since the sample before."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._gpus = _gpus()
        self._wall = time.monotonic()
        self._process_seconds = _process_seconds()
        self._cpu = self._cpu_ticks()

    def sample(self) -> Iterator[tuple[str, float]]:
        """Names, which carry their units, and values.

        A process that keeps two cores busy has a CPU use of 200 percent; the machine of at most
        100, whatever number of cores it has.
        """
        wall, seconds = time.monotonic(), _process_seconds()
        if wall > self._wall:
            used = 100 * (seconds - self._process_seconds) / (wall - self._wall)
            yield "process_cpu_percent", used
        self._wall, self._process_seconds = wall, seconds
        cpu = self._cpu_ticks()
        if cpu is not None and self._cpu is not None:
            share = busy_share(self._cpu, cpu)
            if share is not None:
                yield "cpu_percent", 100 * share
        self._cpu = cpu
        with suppress(OSError, ValueError, LookupError):
            yield "process_memory_gib", self._resident_bytes() / _GIB
        with suppress(OSError, ValueError, LookupError):
            memory = memory_bytes((self._proc / "meminfo").read_text())
            yield "memory_gib", (memory["MemTotal"] - memory["MemAvailable"]) / _GIB
        for number, gpu in enumerate(self._gpus):
            yield from gpu_use(number, gpu)

    def _cpu_ticks(self) -> list[int] | None:
        with suppress(OSError, ValueError, LookupError):
            line = (self._proc / "stat").read_text().partition("\n")[0]
            return [int(one) for one in line.split()[1:]][_COUNTED]
        return None

    def _resident_bytes(self) -> int:
        pages = int((self._proc / "self" / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def busy_share(before: Sequence[int], after: Sequence[int]) -> float | None:
    """Share of time in [0, 1] that CPUs worked between two readings; None: no time went by.

    Source:
        proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal.
    """
    spent = [now - then for then, now in zip(before, after, strict=True)]
    total = sum(spent)
    return min(max(1 - sum(spent[_IDLE]) / total, 0.0), 1.0) if total > 0 else None


def memory_bytes(meminfo: str) -> Mapping[str, int]:
    """What ``/proc/meminfo`` tells, by name."""
    lines = (line.split() for line in meminfo.splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) == 3}


def gpu_use(number: int, gpu: Any) -> Iterator[tuple[str, float]]:
    """Use of one GPU; what its driver does not tell is left out."""
    import pynvml as nvml

    with suppress(nvml.NVMLError):
        yield f"gpu{number}_percent", float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
    with suppress(nvml.NVMLError):
        yield f"gpu{number}_memory_gib", nvml.nvmlDeviceGetMemoryInfo(gpu).used / _GIB
    with suppress(nvml.NVMLError):
        yield f"gpu{number}_watts", nvml.nvmlDeviceGetPowerUsage(gpu) / 1000


def _gpus() -> list[Any]:
    """Handles of pynvml; none where it, its driver or a GPU is missing.

    Asking NVML starts no context on a device, as asking CUDA does.
    """
    try:
        import pynvml as nvml
    except ImportError:
        return []
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        count = min(nvml.nvmlDeviceGetCount(), MOST_GPUS)
        return [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(count)]
    return []


def _process_seconds() -> float:
    """Seconds of CPU that this process took, in user and kernel mode."""
    times = os.times()
    return times.user + times.system
