"""Virtual environments of clients: each has what its requirements name, and nothing of ours.

Made with pip alone when a test first asks, below ``build/clients`` of the checkout, and kept until
`make clean`: a folder for each set of requirements, for all workers and sessions. Where pip gets no
packages the test is skipped.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.architecture.sources import ROOT

FOLDER = ROOT / "build" / "clients"
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")
# Clients import a part of what is installed: each module is compiled when it is imported first.
_INSTALL = ("install", "-q", "--no-compile")
_PIP_SECONDS = 900


def client_python(*requirements: str, borrows: bool = False, ours: bool = False) -> Path:
    """The interpreter of an environment with these packages, made once whoever asks.

    Args:
        requirements: as pip takes them; one without a version is the newest when it is made.
        borrows: also see the packages of the tests' own environment, behind its own ones: for
            torch and others that are too large to be installed twice.
        ours: also import tensorrepo and what it needs, behind its own ones.
    """
    kept = (str(borrows), *(["ours"] if ours else []))
    told = "\n".join((sys.version, *kept, *sorted(requirements)))
    name = re.split(r"[\[=<>]", requirements[0])[0]
    folder = FOLDER / f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    made = folder / ".made"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _make(folder, requirements, borrows=borrows)
            if ours:
                _see_ours(folder)
            made.touch()
    return folder / "bin" / "python"


def _make(folder: Path, requirements: tuple[str, ...], *, borrows: bool) -> None:
    venv.create(folder, clear=True, symlinks=True)  # our pip installs into it: its own takes 5 s
    python = str(folder / "bin" / "python")
    command = [sys.executable, *_PIP, "--python", python, *_INSTALL, *requirements]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=_PIP_SECONDS
    )
    if done.returncode:
        shutil.rmtree(folder)
        pytest.skip(f"pip did not install {', '.join(requirements)}: {done.stderr[-300:]}")
    if borrows:
        own = _packages_of(folder) / "zz_borrowed.pth"
        places = [
            sysconfig.get_paths()["purelib"],
            *(at for at in sys.path if "site-packages" in at),
        ]
        own.write_text("".join(f"{place}\n" for place in dict.fromkeys(places)))


def _see_ours(folder: Path) -> None:
    """Let the environment import what this one does, also by the hooks of its ``.pth`` files."""
    places = [place for place in sys.path if "site-packages" in place]
    lines = (f"import site; site.addsitedir({place!r})\n" for place in dict.fromkeys(places))
    _packages_of(folder).joinpath("zz_ours.pth").write_text("".join(lines))


def _packages_of(folder: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / version / "site-packages"
