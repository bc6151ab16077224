"""Objects for callers who may read some refs: by the way that leads to them, each hop checked.

A digest is no capability. A way names a commit that a ref leads to which the caller may read, then
objects each of which links to the next. What was proved is remembered for those who see the same
refs, so that a way costs one look at one list of links.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.repositories.opening import ServedRepository
from tensorrepo.api.transfer.stored_values import (
    KnownObjects,
    RemoteValue,
    SmallValue,
    StoredValue,
    afar_value,
    open_value,
)
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.ids import Digest, digest_bytes
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.state import TOLD, State, encode_state
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import Kind, encode_object
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.store import ObjectStore

_PROVED_BYTES: Final = 32 << 20
_PROOF_BYTES: Final = 250  # that one takes in memory, about
_LINKS_BYTES: Final = 64 << 20
_LINK_BYTES: Final = 100
_VIEWS_BYTES: Final = 1 << 20

Seen = frozenset[Digest]  # tips of the refs that a caller may read


class Ways:
    """What was proved in this process of one repository. Thread-safe."""

    def __init__(self, served: ServedRepository) -> None:
        self._objects = served.core.objects
        self._proved = LimitedCache[bool](_PROVED_BYTES)
        self._links = LimitedCache[frozenset[bytes]](_LINKS_BYTES)
        self._seen = LimitedCache[Seen](_VIEWS_BYTES)

    def prove(self, access: RepositoryAccess, way: Sequence[Digest]) -> None:
        """Raise NotFoundError unless `way` leads its caller to its last object."""
        seen, state = self._tips(access), access.view.state
        proved = next(
            (at for at in range(len(way) - 1, -1, -1) if self._proved.get((seen, way[at]))), None
        )
        if proved is None:
            self._prove_commit(access, way[0])
            self._keep(seen, way[0])
            proved = 0
        for parent, child in zip(way[proved:], way[proved + 1 :], strict=False):
            if not self._leads(parent, child, state):
                raise _hidden(access, way[-1])
            self._keep(seen, child)

    def is_proved(self, access: RepositoryAccess, digest: Digest) -> bool:
        """Whether a way to that object was proved, for who sees what this caller sees now."""
        return self._proved.get((self._tips(access), digest)) is not None

    def _tips(self, access: RepositoryAccess) -> Seen:
        caller, view = access.caller, access.view
        key = (caller.name, caller.grants, caller.scope, view.generation)
        known = self._seen.get(key)
        if known is None:
            known = frozenset(access.refs().values())
            self._seen.put(key, known, 200 + 100 * len(known))
        return known

    def _prove_commit(self, access: RepositoryAccess, commit: Digest) -> None:
        try:
            if access.reaches(commit):
                return
        except (NotFoundError, InvalidInputError):  # none, or no commit
            pass
        raise _hidden(access, commit)

    def _leads(self, parent: Digest, child: Digest, state: State) -> bool:
        links = self._links.get(parent)
        if links is None:
            envelope = self._objects.get(parent)
            # Parents of a commit are commits, which refs lead to: they need no way.
            below = [one.digest for one in envelope.links if one.kind is not Kind.COMMIT]
            links = frozenset(map(digest_bytes, below))
            self._links.put(parent, links, 200 + _LINK_BYTES * len(links))
        if digest_bytes(child) in links:
            return True
        return any(digest_bytes(old) in links for old in _replaced_by(child, state))

    def _keep(self, seen: Seen, digest: Digest) -> None:
        self._proved.put((seen, digest), True, _PROOF_BYTES)


def _replaced_by(child: Digest, state: State) -> list[Digest]:
    """What `child` stands for now: placements in whose place it came, and what was purged."""
    return [old for old in state.supersedes if state.resolve(old) == child]


def _hidden(access: RepositoryAccess, digest: Digest) -> NotFoundError:
    return NotFoundError(f"object {digest:.12} is not what {access.caller.name} may read")


def open_reached(
    access: RepositoryAccess, way: Sequence[Digest], *, in_part: bool = False
) -> StoredValue:
    """The object at the end of a way, as it lies; `in_part` as of `open_value`.

    Raises:
        NotFoundError: it is not there, or the caller may not read it: nobody learns which.
    """
    access.served.kept(Ways).prove(access, way)
    known = access.served.kept(KnownObjects)
    return open_object(access.core.objects, way[-1], access.view, known, in_part=in_part)


def open_object(
    store: ObjectStore,
    digest: Digest,
    view: LogView,
    known: KnownObjects | None = None,
    *,
    in_part: bool = False,
) -> StoredValue:
    """An object wherever it lies: under its newest label, under another one, or in a pack."""
    for key in _keys(store, digest, view):
        try:
            return open_value(store.backend, key, known, in_part=in_part)
        except NotFoundError:
            continue
    found = store.get(digest)
    encoded = encode_object(found.kind, found.payload, found.links)
    return SmallValue(b"".join(encoded.parts))


def _keys(store: ObjectStore, digest: Digest, view: LogView) -> list[str]:
    """Where an object may lie, the newest label first. Raises PurgedError."""
    store.refuse_purged(digest)
    labels = sorted({store.known_label(digest, [each]) for each in view.state.graves} | {0})
    return [object_key(digest, label) for label in reversed(labels)]


def afar_reached(access: RepositoryAccess, way: Sequence[Digest]) -> RemoteValue | None:
    """The object at the end of a way, unread; None: it lies in a pack. Raises as `open_reached`."""
    access.served.kept(Ways).prove(access, way)
    for key in _keys(access.core.objects, way[-1], access.view):
        with suppress(NotFoundError):
            return afar_value(access.core.backend, key, access.served.kept(KnownObjects))
    return None


def visible_state(access: RepositoryAccess) -> tuple[LogView, bytes]:
    """The newest view, and its state as JSON as far as the caller may see it.

    Left out are other refs and what they were, leases, collections, and settings but `features`.
    Names of placements that others took the place of, of purged objects and of commits at which
    history ends are in it: names alone, which open nothing.
    """
    view = access.view
    state = view.state
    config = {key: value for key, value in state.config.items() if key == "features"}
    seen = replace(
        state, refs=dict(access.refs()), retained={}, leases={}, graves=(), config=config,
        bulks=frozenset(), purged_rows={},
    )  # fmt: skip
    return view, encode_state(seen, TOLD)
