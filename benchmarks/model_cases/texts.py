"""Text that models of the cases are trained on: this project's documentation, always of one commit.

With pages as they are now, every commit would make other models, and no figure could be compared
with that of the commit before.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from functools import cache

from harness import ROOT, Skipped

COMMIT = "dac93130657364c038de8ce9c374e3bade56f3be"


@cache
def pages() -> tuple[str, ...]:
    """The pages of `docs`, by name."""
    command = ["git", "archive", "--format=tar", COMMIT, "docs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise Skipped(f"models are trained on docs of {COMMIT:.12}: git fetch --unshallow gets it")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        members = sorted(files.getmembers(), key=lambda one: one.name)
        found = [files.extractfile(one) for one in members if one.name.endswith(".md")]
        return tuple(one.read().decode() for one in found if one is not None)
