"""Reading of a served repository by whoever has it as a remote one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.transfer.stored_values import (
    WHOLE_BYTES,
    KnownObjects,
    RemoteValue,
    SmallValue,
    StoredValue,
    afar_value,
    open_value,
)
from tensorrepo.repo.backends.base import StoredKey, check_key
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.log_slots import COPY_KEY, HINT_KEY, IDENTITY_KEY
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.objects.incarnations import parse_object_key

_LOG: Final = re.compile(r"log/(?:hint|(?:checkpoint/|void/)?\d{20}\.json|segment/\d{20}|refs/\w+)")
_OBJECTS: Final = "objects/"
MOST_TOLD: Final = 256  # records of one answer
_PREFIX: Final = re.compile(r"objects/(?:[0-9a-f]{2}/)?|log/(?:(?:checkpoint|segment|void|refs)/)?")


def open_key(access: RepositoryAccess, key: str, *, in_part: bool = False) -> StoredValue:
    """A value of the repository, for whoever may read all of it; `in_part` as of `open_value`.

    Raises:
        NotFoundError: there is none, or the key is none of a repository.
        PermissionDenied: not every ref may be read, and the log tells of all.
    """
    if key in {IDENTITY_KEY, COPY_KEY} or (key == HINT_KEY and not access.reads_all):
        return open_value(access.core.objects.backend, "none" if key == HINT_KEY else key)
    access.require(Action.READ)
    if not _is_served(key):
        raise NotFoundError(f"{access.name} has no key {key!r:.200}")
    if not key.startswith(_OBJECTS):
        return open_value(access.core.backend, key)
    known = access.served.kept(KnownObjects)
    if _is_purged(access.view, key):  # what is remembered of it is told to nobody
        known.forget(key)
    return open_value(access.core.backend, key, known, in_part=in_part)


def known_value(access: RepositoryAccess, key: str) -> StoredValue | None:
    """What `open_key` gives of an object afar, where that takes no reading; else None.

    Raises:
        PermissionDenied: as `open_key`.
    """
    known = access.served.kept(KnownObjects)
    found = known.known(key)
    if found is None or (isinstance(found, int) and found <= WHOLE_BYTES):
        return None
    access.require(Action.READ)
    if isinstance(found, int):
        return RemoteValue(access.core.backend, key, found, known)
    view = access.served.known_view
    return None if view is None or _is_purged(view, key) else SmallValue(found)


def _is_purged(view: LogView, key: str) -> bool:
    parsed = parse_object_key(key)
    return parsed is not None and parsed[0] in view.state.purges


def afar_key(access: RepositoryAccess, key: str) -> RemoteValue:
    """What `open_key` gives of an object of a store afar, unread. Raises as that does."""
    access.require(Action.READ)
    if not (key.startswith(_OBJECTS) and _is_served(key)):
        raise NotFoundError(f"{access.name} has no object {key!r:.200}")
    return afar_value(access.core.backend, key, access.served.kept(KnownObjects))


def list_keys(access: RepositoryAccess, prefix: str, after: str | None) -> Iterator[StoredKey]:
    """Keys below a folder, behind `after`, in ascending order. Raises as `open_key`."""
    if not access.reads_all:
        return  # nobody learns what else there is
    if not _PREFIX.fullmatch(prefix):
        raise InvalidInputError(
            f"keys are listed below folders of objects/ and log/, not below {prefix!r:.120}"
        )
    for folder in _folders(prefix, after):
        for stored in access.core.backend.list(folder):
            if after is None or stored.key > after:
                yield stored


def _folders(prefix: str, after: str | None) -> list[str]:
    """Folders that are looked into, one after the other: of many objects not those passed over."""
    if prefix != _OBJECTS:
        return [prefix]
    first = (after or "").removeprefix(_OBJECTS)[:2]
    return [f"{_OBJECTS}{number:02x}/" for number in range(256) if f"{number:02x}" >= first]


def _is_served(key: str) -> bool:
    try:
        check_key(key)
    except InvalidInputError:
        return False
    if _LOG.fullmatch(key):
        return True
    return key.startswith("objects/") and parse_object_key(key) is not None


def log_tail(access: RepositoryAccess, after: int) -> tuple[Digest, list[bytes]] | None:
    """Digest of record `after`, and the bytes of those behind it, the newest included.

    None where they are too many, or there is no such record. Raises as `open_key`.
    """
    access.require(Action.READ)
    log, view = access.core.log, access.view
    if view.generation < after:  # another process of the service wrote it
        view = log.refresh()
    if not after <= view.generation <= after + MOST_TOLD:
        return None
    if view.generation == after:
        return view.digest, []
    return log.digest_of(after), [
        log.slots.slot_bytes(gen) for gen in range(after + 1, view.generation + 1)
    ]


def identity_of(access: RepositoryAccess) -> bytes:
    """``repo.json``, for whoever may read anything of the repository."""
    return access.core.log.identity


def some_keys(
    access: RepositoryAccess, prefix: str, after: str | None, limit: int
) -> tuple[list[StoredKey], str | None]:
    """A page of `list_keys`, and behind which key the next one begins; None: it is the last."""
    found = list(islice(list_keys(access, prefix, after), limit + 1))
    return found[:limit], found[limit - 1].key if len(found) > limit else None
