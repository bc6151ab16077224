"""Errors of tensorrepo, told apart by what the caller can do next.

Every class has a stable `kind`: exit codes and HTTP statuses are tables over it, and logs and
clients may rely on it. A message says what, where, expected against found, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar


class Error(Exception):
    """Whatever tensorrepo raises on purpose."""

    kind: ClassVar[str] = "error"
    refused: bool = False  # a store said so: the create that failed never will have happened

    def __str__(self) -> str:
        # KeyError would show the repr of the message; every class of ours shows the message.
        return str(self.args[0]) if self.args else self.kind


class ConflictError(Error):
    """Somebody else changed what this call relied on: read again and decide anew.

    `brief` is the message without the first of the conflicts, for who shows all of them beside it.
    """

    kind = "conflict"

    def __init__(
        self, message: str, conflicts: tuple[object, ...] = (), brief: str | None = None
    ) -> None:
        super().__init__(message)
        self.conflicts = conflicts
        self.brief = brief or message


class CommitOutcomeUnknown(Error):
    """The store did not say whether the record landed: `tensorrepo resolve` finds out."""

    kind = "outcome-unknown"

    def __init__(self, message: str, *, txn: str, generation: int) -> None:
        super().__init__(message)
        self.txn = txn
        self.generation = generation


class CommitExpired(Error):
    """Something that this call needs was collected since: add or fetch it again."""

    kind = "expired"


class RepositoryRewound(Error):
    """The log is shorter than, or differs from, what this client saw before."""

    kind = "rewound"


class NotFoundError(Error, KeyError):
    """No repository, ref, path, object or file of that name."""

    kind = "not-found"


class CollectedError(CommitExpired, NotFoundError):
    """An object that nothing led to any more, and that garbage collection took."""

    kind = "collected"


class MissingObjectsError(CommitExpired):
    """A commit needs objects that a service does not have: `digests` name some of them."""

    kind = "missing-objects"

    def __init__(self, message: str, digests: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.digests = digests


class NoSuchRowError(NotFoundError, IndexError):
    """A row beyond the last one. Code that walks sequences knows it as IndexError."""

    kind = "no-such-row"


class InvalidInputError(Error, ValueError):
    """The caller's input cannot be used as it is."""

    kind = "invalid-input"


class CorruptError(Error):
    """Stored bytes are not what they must be; nothing of them was returned."""

    kind = "corrupt"


class PurgedError(Error):
    """The object was redacted on purpose; only its name is left."""

    kind = "purged"


class WorkerLostError(Error):
    """A process that worked for this call ended before it was done: it was killed, or crashed."""

    kind = "worker-lost"


class UnsupportedError(Error):
    """Made by a newer version, or needs something that this installation or store lacks."""

    kind = "unsupported"


class PermissionDenied(Error):
    """The store, the file system or a policy refuses."""

    kind = "permission"


class UnauthenticatedError(PermissionDenied):
    """A server does not know who asks: no token, or one that is wrong, expired or revoked."""

    kind = "unauthenticated"


class StorageError(Error):
    """The store failed: no space, no network, a server's error.

    `transient` says whether the same call may succeed when it is simply repeated, `busy` that the
    store asks for fewer requests at once.
    """

    kind = "storage"

    def __init__(self, message: str, *, transient: bool = False, busy: bool = False) -> None:
        super().__init__(message)
        self.transient = transient
        self.busy = busy


class RateLimitedError(StorageError):
    """A server was asked too often, or for too much at once: wait so many seconds."""

    kind = "rate-limited"

    def __init__(self, message: str, *, retry_seconds: float = 1.0) -> None:
        super().__init__(message, transient=True, busy=True)
        self.retry_seconds = retry_seconds


class TooLargeError(InvalidInputError):
    """What a request brings, or asks for, is more than the server takes or gives at once."""

    kind = "too-large"


def error_classes(root: type[Error] = Error) -> Iterator[type[Error]]:
    """Every class below `root`, for the tables that must map each kind."""
    for child in root.__subclasses__():
        yield child
        yield from error_classes(child)
