"""Trainings that may be killed: forks, in turn, of one interpreter that imported what they need."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.processes.forked_python import run_python

_SECONDS = 240


def trained(module: str, *words: str) -> list[int]:
    """How the trainings of a module ended, which calls `in_turn`: exit statuses, of those that
    were killed less than 0.
    """
    done = run_python("-m", module, *words, timeout_seconds=_SECONDS)
    statuses: list[int] = json.loads(done.stdout.splitlines()[-1])
    assert 1 not in statuses, done.stderr[-8000:]
    return statuses


def in_turn(train: Callable[..., Any], jobs: Sequence[str]) -> None:
    """Run trainings, ``FOLDER:NUMBER[:NUMBER]`` each, and print how they ended."""
    warnings.simplefilter("ignore")
    statuses = []
    for job in jobs:
        folder, *numbers = job.split(":")
        child = os.fork()
        if not child:
            _be(train, Path(folder), [int(number) for number in numbers])
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    sys.stdout.write("\n" + json.dumps(statuses))


def _be(train: Callable[..., Any], folder: Path, numbers: list[int]) -> None:
    try:
        train(folder, *numbers)
    except BaseException:  # noqa: BLE001  the test shows it
        traceback.print_exc()
        os._exit(1)
    sys.exit()  # as a script ends: what waits to be stored is waited for
