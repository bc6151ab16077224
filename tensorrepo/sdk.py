"""Where the SDK begins: open a repository, read a foreign file.

The only module of the SDK that reads the environment: credentials and endpoints of stores, the
author of commits, and RANK and WORLD_SIZE of a distributed job.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tensorrepo import connect
from tensorrepo.formats.exchange import registry
from tensorrepo.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorrepo.formats.exchange.base import Reading


def machine() -> connect.Machine:
    """This machine, as the SDK and the command line see it."""
    return connect.Machine(os.environ, Path.home(), Path.cwd())


def init(
    url: str | Path, *, storage_options: Mapping[str, str] | None = None, author: str | None = None
) -> Repository:
    """Make a repository and open it.

    Args:
        url: a folder, ``s3://bucket/prefix``, ``gs://``, ``az://``, ``memory://name``, or any URL
            that fsspec knows.
        storage_options: credentials, endpoint and the like; else the usual environment variables.
        author: ``Name <email>`` of commits; else TENSORREPO_AUTHOR, tensorrepo's or git's config.

    Raises:
        ConflictError: there is a repository already: `open` it.
    """
    core = connect.create(str(url), storage_options, machine())
    return Repository(core, dict(storage_options or {}), author, machine(), open_repository)


def open_repository(
    url: str | Path, *, storage_options: Mapping[str, str] | None = None, author: str | None = None
) -> Repository:
    """Open the repository at `url` (`tensorrepo.open`). The arguments are those of `init`.

    Raises:
        NotFoundError: there is none.
    """
    core = connect.connect(str(url), storage_options, machine())
    return Repository(core, dict(storage_options or {}), author, machine(), open_repository)


def read(path: str | Path, format: str | None = None, **options: object) -> Reading:  # noqa: A002
    """Open a foreign file or folder as rows, for `append`.

    Args:
        path: images in class folders, Parquet, CSV, npy, npz, IDX, ...
        format: its format; None: told by suffix and content.
        options: of that format; `tensorrepo add --help` lists them.
    """
    return registry.read(Path(path), format, **options)
