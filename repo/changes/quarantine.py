"""Quarantine: damaged bytes, kept beside the repository before right ones take their place.

Nothing reads them again but people: a repair that was wrong, or a file of which half can be saved,
can be looked at. They lie under the key that they had, with a digest of themselves behind it.
"""

from __future__ import annotations

from typing import Final

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError, StorageError
from tensorrepo.repo.hashing.digests import streamed_digest

QUARANTINE: Final = "quarantine/"
PIECE_BYTES: Final = 64 << 20  # of one key: what is held in memory at once
_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class QuarantinedBytes:
    """Bytes of a damaged `key` that lie under other keys now, which begin with `place`.

    `place` is "" where nothing could be read.
    """

    key: str
    place: str
    bytes: int


def quarantine(backend: Backend, key: str) -> QuarantinedBytes | None:
    """Keep what lies under `key`, durably; None where nothing does. It stays where it is, too.

    Raises:
        StorageError: there is no room, or the store fails for the moment.
    """
    size = backend.size(key)
    if size is None:
        return None
    starts = range(0, max(size, 1), PIECE_BYTES)
    try:
        pieces = [(at, min(at + PIECE_BYTES, size)) for at in starts]
        digest = streamed_digest(backend.read_range(key, *piece) for piece in pieces)
        place = f"{QUARANTINE}{key}.{digest[:_DIGITS]}"
        for number, piece in enumerate(pieces):
            name = place if len(pieces) == 1 else f"{place}.{number:04}"
            backend.create(name, (backend.read_range(key, *piece),))
    except NotFoundError:
        return None
    except StorageError as error:
        if error.transient or "cannot read" not in str(error):
            raise
        return QuarantinedBytes(key, "", size)  # a defect of the disk: there is nothing to keep
    return QuarantinedBytes(key, place, size)
