"""Both ways to copy rows, and whether this machine can build the one in C."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tensorrepo.formats.native.extensions import why_not_native
from tensorrepo.formats.native.rows import NATIVE, NUMPY


def why_nothing_is_compiled() -> str | None:
    """Why C cannot be built for this Python here; None when it can."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler!r}"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "there is no Python.h"
    return None


needs_native = pytest.mark.skipif(NATIVE is None, reason=f"not built: {why_not_native}")

# Parameters of tests that hold for every implementation.
COPIERS: list[Any] = [
    pytest.param(NUMPY, id="numpy"),
    pytest.param(NATIVE, id="native", marks=needs_native),
]
