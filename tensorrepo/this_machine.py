"""Process environment: variables, home and folder, as the SDK hands them on.

The only module of the SDK that reads and sets them: credentials and endpoints of stores, the author
of commits, and RANK and WORLD_SIZE of a distributed job. The command line reads them for itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from tensorrepo.connect import Machine


def machine() -> Machine:
    """This machine, as the SDK sees it."""
    return Machine(os.environ, Path.home(), Path.cwd())


def set_unless_set(name: str, value: str) -> None:
    """Set a variable that a library of this process reads, if the user has not."""
    os.environ.setdefault(name, value)
