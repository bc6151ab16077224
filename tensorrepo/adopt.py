"""Adopting files where they lie, from the SDK and from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorrepo.connect import Machine, is_url
from tensorrepo.formats.dataset.elsewhere.outsideread import AllowedOutside
from tensorrepo.formats.exchange.adoption.adopt import Adopted, adopt
from tensorrepo.formats.exchange.shards.records import record_files
from tensorrepo.repo.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.repo.objects import ObjectSink

SUFFIXES = (".parquet", ".pq", ".tar", ".npy", ".safetensors")


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be adopted, and how; see `tensorrepo.formats.exchange.adoption.adopt.adopt`."""

    paths: tuple[str, ...]
    format: str | None = None
    columns: tuple[str, ...] | None = None
    hashed: bool | None = None


def adopt_files(
    objects: ObjectSink,
    wish: Wish,
    machine: Machine,
    *,
    base: Dataset | None = None,
    options: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Adopted:
    """Store a dataset whose rows stay in files that somebody named.

    Naming a file allows to read it now; reading it later needs a permission of its own.

    Args:
        objects: where to store.
        wish: what; folders of this machine stand for the files in them, by name.
        machine: where relative paths are, and credentials of stores.
        base: a dataset that the rows are put behind.
        options: storage options of the URLs.
        progress: told the bytes looked at so far.
    """
    urls = [url for path in wish.paths for url in _expanded(path, machine)]
    given = {url: dict(options or {}) if is_url(url) else {} for url in urls}
    outside = AllowedOutside(given, environment=machine.environment)
    return adopt(
        objects,
        urls,
        outside,
        format=wish.format,
        columns=wish.columns,
        base=base,
        hashed=wish.hashed,
        progress=progress,
    )


def _expanded(path: str, machine: Machine) -> Iterator[str]:
    if is_url(path):
        yield path
        return
    place = machine.cwd / Path(path).expanduser()
    if not place.exists():
        raise NotFoundError(f"there is no {place} to adopt")
    yield from _texts(record_files(place, lambda name: name.endswith(SUFFIXES), _WHAT))


def _texts(paths: Iterable[Path]) -> Iterator[str]:
    return (str(path.absolute()) for path in paths)


_WHAT = f"files that end in {', '.join(SUFFIXES)}"
