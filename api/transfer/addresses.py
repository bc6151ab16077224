"""Addresses of large objects in the store itself, many in one answer.

An address is good for one object, for reading, and for 15 minutes; not bound to a range: who is
given one may read all of the object. What is not there, or not for the caller, has none, as what
lies on this machine or is small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.transfer.reading import afar_key
from tensorrepo.api.transfer.stored_values import RemoteValue, signed_address
from tensorrepo.api.transfer.ways import afar_reached
from tensorrepo.repo.backends.base import SignsRequests
from tensorrepo.repo.backends.service_format import parse_way
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.threads import ordered_map

_REACH: Final = "reach/"
_THREADS: Final = 32  # that look up sizes: each waits for a round trip


@dataclass(frozen=True, slots=True)
class SignedObjects:
    """Addresses by key, as it was asked for, and bytes of all these objects."""

    urls: Mapping[str, str]
    size_bytes: int


def sign_objects(
    access: RepositoryAccess, keys: Sequence[str], least_bytes: int | None
) -> SignedObjects:
    """Addresses of those of `keys` that have `least_bytes` and more; None: of none.

    Args:
        access: the caller's.
        keys: below ``store/``: of objects, or ways that begin with ``reach/``.
        least_bytes: as the settings have it.

    Raises:
        PermissionDenied: a key is given, and not every ref may be read.
        InvalidInputError: a way is none.
    """
    if least_bytes is None or not isinstance(access.core.backend, SignsRequests):
        return SignedObjects({}, 0)

    def sign(key: str) -> tuple[str, int] | None:
        with suppress(NotFoundError):
            value = _value(access, key)
            url = None if value is None else signed_address(value, least_bytes)
            if value is not None and url is not None:
                return url, value.size_bytes
        return None

    found = list(ordered_map(keys, sign, threads=min(_THREADS, len(keys) - 1), name="sign"))
    signed = {key: one for key, one in zip(keys, found, strict=True) if one is not None}
    sizes = sum(size for _, size in signed.values())
    return SignedObjects({key: url for key, (url, _) in signed.items()}, sizes)


def _value(access: RepositoryAccess, key: str) -> RemoteValue | None:
    if key.startswith(_REACH):
        return afar_reached(access, parse_way(key.removeprefix(_REACH)))
    return afar_key(access, key)
