"""Adoption of files in source: datasets whose rows stay in the files that they are in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorrepo.connect import Machine, is_url
from tensorrepo.formats.dataset.elsewhere.outsideread import AllowedOutside
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.exchange.adoption.adopt import Adopted
from tensorrepo.formats.exchange.adoption.adopt import adopt as adopt_urls
from tensorrepo.formats.exchange.shards.records import record_files
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.trees import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tensorrepo.verbs.stage import Stage

SUFFIXES = (".parquet", ".pq", ".tar", ".npy", ".safetensors")


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be adopted, and how; see `tensorrepo.formats.exchange.adoption.adopt.adopt`."""

    paths: tuple[str, ...]
    format: str | None = None
    columns: tuple[str, ...] | None = None
    hashed: bool | None = None


def adopt(
    stage: Stage,
    path: str,
    request: Wish,
    machine: Machine,
    *,
    append: bool = False,
    options: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Adopted:
    """Stage a dataset whose rows stay in files that the caller names.

    Naming a file allows to read it now; reading it later needs a permission of its own.

    Args:
        stage: next commit.
        path: whole path of the dataset.
        request: files; folders of this machine stand for the files in them, by name.
        machine: where relative paths are, and credentials of stores.
        append: put the rows behind those of the dataset, if there is one.
        options: storage options of the URLs.
        progress: receives the bytes looked at so far.
    """
    entry = stage.entry(path) if append else None
    urls = [url for text in request.paths for url in _expanded(text, machine)]
    prefixes = {url: dict(options or {}) if is_url(url) else {} for url in urls}
    adopted = adopt_urls(
        stage.objects,
        urls,
        AllowedOutside(prefixes, environment=machine.environment),
        format=request.format,
        columns=request.columns,
        base=None if entry is None else open_dataset(stage.objects, entry.digest),
        hashed=request.hashed,
        progress=progress,
    )
    stage.stage(path, Entry(Kind.DATASET, adopted.link.digest))
    return adopted


def _expanded(path: str, machine: Machine) -> Iterator[str]:
    if is_url(path):
        yield path
        return
    source = machine.cwd / Path(path).expanduser()
    if not source.exists():
        raise NotFoundError(f"there is no {source} to adopt")
    yield from _texts(record_files(source, lambda name: name.endswith(SUFFIXES), _WHAT))


def _texts(paths: Iterable[Path]) -> Iterator[str]:
    return (str(path.absolute()) for path in paths)


_WHAT = f"files that end in {', '.join(SUFFIXES)}"
