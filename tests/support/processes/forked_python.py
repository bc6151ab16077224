"""Interpreters that are forked instead of started: ``python -c CODE`` and ``python -m MODULE``.

A started one imports torch and the SDK, one to three seconds of a processor; these find them
imported. They end as an interpreter does: threads are waited for, and what was registered to be
called at the end is called. Tests of what importing does, of clocks that are wrong from the first
import on, or of an environment that libraries read when they are loaded start a real one.
"""

from __future__ import annotations

import atexit
import os
import runpy
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path

from tests.support.architecture.sources import ROOT
from tests.support.processes.forked_command import ForkedProcess

_SECONDS = 280  # less than pytest gives a test


def start_python(
    *words: str | Path,
    folder: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    takes_input: bool = False,
) -> ForkedProcess:
    """Begin an interpreter.

    Args:
        words: "-c" and code, or "-m" and the name of a module; arguments.
        folder: where it works.
        environment: all of its environment; None: that of this process.
        takes_input: whether its standard input is a pipe, otherwise there is none.
    """
    return ForkedProcess(
        _be_python,
        *map(str, words),
        folder=folder,
        environment=os.environ if environment is None else environment,
        takes_input=takes_input,
    )


def run_python(
    *words: str | Path,
    folder: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    check: bool = True,
    timeout_seconds: float = _SECONDS,
) -> subprocess.CompletedProcess[str]:
    """The same, waited for; `check` fails where it ends with another status than 0."""
    process = start_python(*words, folder=folder, environment=environment)
    out, errors = process.communicate(timeout_seconds)
    assert process.returncode is not None, "it was waited for"
    assert not (check and process.returncode), f"ended with {process.returncode}: {errors[-8000:]}"
    return subprocess.CompletedProcess(list(words), process.returncode, out, errors)


def _be_python(kind: str, what: str, *words: str) -> int:
    sys.argv = [kind, *words]
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001  an interpreter tells it, and ends
        traceback.print_exc()
        code = 1
    else:
        code = 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return code
