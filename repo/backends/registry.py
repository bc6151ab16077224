"""Backend of a URL, of whatever kind of store."""

from __future__ import annotations

from collections.abc import Mapping

from tensorrepo.repo.backends.base import Backend, Guarantee
from tensorrepo.repo.backends.cloud import CloudBackend
from tensorrepo.repo.backends.fsspec import FsspecBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.remote import HttpBackend, find_place
from tensorrepo.repo.backends.urls import (
    SCHEMES,
    open_folder,
    pop_force,
    refuse_options,
    scheme_of,
)


def open_backend(
    url: str, options: Mapping[str, str] | None = None, *, environment: Mapping[str, str]
) -> Backend:
    """The store at `url`. Nothing is read yet, so it need not exist.

    Args:
        url: a path, ``file://``, ``memory://``, ``s3://``, ``gs://``, ``az://``, ``abfs://``,
            ``http(s)://``, or whatever fsspec knows.
        options: what the store needs beyond its URL, by obstore's or fsspec's names.
            ``force=true`` trusts a network or unknown file system with several writers.
        environment: where credentials and endpoints are looked up.

    Raises:
        InvalidInputError: no usable URL, or options that this store does not know.
        UnsupportedError: nothing here knows the scheme, or what it needs is not installed.
    """
    folder = open_folder(url, options)
    if folder is not None:
        return folder
    given = dict(options or {})
    scheme = scheme_of(url)
    if scheme == "memory":
        refuse_options(url, given)
        return MemoryBackend(url)
    if scheme in SCHEMES:
        place = find_place(url, given, environment)
        return HttpBackend(place) if place.kind == "http" else CloudBackend(place)
    guarantee = Guarantee.ATOMIC if pop_force(given) else Guarantee.SINGLE_WRITER
    return FsspecBackend(url, given, guarantee=guarantee)
