"""Where the SDK begins: open a repository, read a foreign file.

The only module of the SDK that reads the environment: credentials and endpoints of stores, the
author of commits, and RANK and WORLD_SIZE of a distributed job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorrepo import connect
from tensorrepo.dataset import Dataset
from tensorrepo.formats.exchange import registry
from tensorrepo.repository import Origin, Repository

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorrepo.formats.exchange.base import Reading
    from tensorrepo.model import Model


def machine() -> connect.Machine:
    """This machine, as the SDK sees it."""
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
    origin = _origin(url, storage_options, author)
    here = machine()
    return Repository(
        connect.create(origin.url, dict(origin.storage_options), here), origin, here, reopen
    )


def open_repository(
    url: str | Path,
    *,
    storage_options: Mapping[str, str] | None = None,
    author: str | None = None,
    outside: Iterable[str | Path] | Mapping[str, Mapping[str, str]] = (),
    catalog: str | None = None,
) -> Repository:
    """Open the repository at `url` (`tensorrepo.open`).

    Args:
        url: as for `init`, and the next two.
        storage_options: credentials, endpoint and the like; else the usual environment variables.
        author: ``Name <email>`` of commits.
        outside: folders and URLs below which datasets may point at files and links that the
            repository does not hold; as a mapping with the storage options of each. What
            ``tensorrepo config outside.allow`` says is allowed, too.
        catalog: URL of the SQL catalog, ``postgresql://...`` or ``sqlite:///...``; else what
            TENSORREPO_CATALOG or ``tensorrepo config catalog.url`` says, else a SQLite file in
            this user's cache folder.

    Raises:
        NotFoundError: there is none.
    """
    return _open(_origin(url, storage_options, author, outside, catalog))


@lru_cache(maxsize=16)
def reopen(origin: Origin) -> Repository:
    """A repository out of a pickle: opened once in a process, however many pickles name it."""
    return _open(origin)


def _open(origin: Origin) -> Repository:
    here = machine()
    more = {prefix: dict(options) for prefix, options in origin.outside}
    core = connect.connect(
        origin.url,
        dict(origin.storage_options),
        here,
        outside=connect.allowed_outside(here, more),
    )
    return Repository(core, origin, here, reopen)


def _origin(
    url: str | Path,
    storage_options: Mapping[str, str] | None,
    author: str | None,
    outside: Iterable[str | Path] | Mapping[str, Mapping[str, str]] = (),
    catalog: str | None = None,
) -> Origin:
    options = outside if isinstance(outside, Mapping) else {}
    allowed = tuple(
        (_anywhere(str(each)), tuple(sorted(options.get(str(each), {}).items())))
        for each in outside
    )
    options_given = tuple(sorted((storage_options or {}).items()))
    return Origin(_anywhere(url), options_given, author, allowed, catalog)


def _anywhere(url: str | Path) -> str:
    """`url` as it means the same place in another folder."""
    text = str(url)
    if not connect.is_url(text):  # another process may work in another folder
        text = str(Path(text).expanduser().absolute())
    return text


def read(
    what: str | Path | object,
    format: str | None = None,  # noqa: A002
    **options: object,
) -> Reading:
    """Open a foreign file or folder, or a library's object, as rows, for `append`.

    Args:
        what: a path (images in class folders, Parquet, CSV, npy, npz, IDX, ...), or a dataset of
            torch or of Hugging Face.
        format: of a path; None: told by suffix and content.
        options: of that format, as the guide to foreign formats lists them.
    """
    if isinstance(what, (str, Path)):
        return registry.read(what, format, **options)
    return registry.read_object(what, **_any(options))


def export(
    what: Dataset | Model,
    path: str | Path,
    format: str | None = None,  # noqa: A002
    *,
    overwrite: bool = False,
    **options: object,
) -> Path:
    """Write a dataset or a model in a foreign format, whole or not at all.

    Args:
        what: as `Repository.dataset` and `Repository.model` give it.
        path: what to make; its folder must exist.
        format: its format; None: told by the suffix of `path`.
        overwrite: replace what is there.
        options: of that format.

    Returns:
        `path`.

    Raises:
        InvalidInputError: `path` exists, or the format cannot hold what is to be written.
    """
    target = Path(path)
    if isinstance(what, Dataset):
        return registry.export(what.stored, target, format, overwrite=overwrite, **_any(options))
    return what.export(target, format, overwrite=overwrite, **options)


def _any(options: Mapping[str, object]) -> dict[str, Any]:
    return dict(options)
