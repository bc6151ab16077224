"""Virtual environments of clients: each has what its requirements name, and nothing of ours.

Made with pip alone when a test first asks, below ``build/clients`` of the checkout, and kept for
the next run: a folder for each set of requirements.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import venv
from pathlib import Path

from tests.support.architecture.sources import ROOT

FOLDER = ROOT / "build" / "clients"
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q")


def client_python(*requirements: str) -> Path:
    """The interpreter of an environment with these packages, made once whoever asks."""
    told = "\n".join((sys.version, *sorted(requirements)))
    name = requirements[0].partition("==")[0]
    folder = FOLDER / f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    python, made = folder / "bin" / "python", folder / ".made"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            venv.create(folder, with_pip=True, clear=True, symlinks=True)
            command = [str(python), *_PIP, *requirements]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            assert done.returncode == 0, f"{requirements}: {done.stderr[-2000:]}"
            made.touch()
    return python
