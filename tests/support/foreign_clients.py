"""Clients of others for tests, each in a virtual environment of its own, made by pip alone.

An environment is made once for its requirements and kept in ``build/clients`` until `make clean`:
tests of all workers and sessions share it. Where pip gets no packages the test is skipped.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.architecture.sources import ROOT

ENVIRONMENTS = ROOT / "build" / "clients"
_DONE = "done"  # a file of an environment that is whole
_PIP_SECONDS = 900
_OURS = ("tensorrepo", "PYTHON", "MLFLOW", "HF_", "HUGGINGFACE")


def client_environment(requirements: Sequence[str], *, borrows: bool = False) -> Path:
    """The python of an environment that has `requirements`, such as ``["mlflow-skinny==3.17.2"]``.

    Args:
        requirements: as pip takes them; one without a version is the newest when it is made.
        borrows: also see the packages of the tests' own environment, behind its own ones: for
            torch and others that are too large to be installed twice.
    """
    wanted = "\n".join([sys.version, str(borrows), *sorted(requirements)])
    folder = ENVIRONMENTS / hashlib.sha256(wanted.encode()).hexdigest()[:16]
    python = folder / "bin" / "python"
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not (folder / _DONE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder, requirements, borrows=borrows)
            (folder / _DONE).write_text(wanted)
    return python


def run_client(
    python: Path,
    script: str,
    *arguments: str,
    environment: Mapping[str, str],
    cwd: Path,
    seconds: float = 240,
) -> str:
    """Run a script as a user would; gives what it prints. Fails with its errors where it fails.

    Args:
        python: of `client_environment`.
        script: Python.
        arguments: of the script.
        environment: variables that it needs; of this process it gets none of our own, nor of the
            clients.
        cwd: folder to run in, which is its home as well.
        seconds: after which it is killed.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    done = subprocess.run(
        [str(python), "-c", script, *arguments],
        cwd=cwd,
        env={**kept, "HOME": str(cwd), **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert not done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def _make(folder: Path, requirements: Sequence[str], *, borrows: bool) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False)
    if done.returncode:
        shutil.rmtree(folder)
        pytest.skip(f"pip did not install {', '.join(requirements)}: {done.stderr[-300:]}")
    if borrows:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        own = folder / "lib" / version / "site-packages" / "zz_borrowed.pth"
        places = [
            sysconfig.get_paths()["purelib"],
            *(at for at in sys.path if "site-packages" in at),
        ]
        own.write_text("".join(f"{place}\n" for place in dict.fromkeys(places)))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process makes an environment."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
