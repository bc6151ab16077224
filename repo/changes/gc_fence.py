"""Write fence of garbage collection: a writer's checks against condemned objects.

The writers' side of garbage collection. No clock is used: a writer looks at the condemnations
between its pin and the head, and stores again, under the new label, what they hit.

W1 put      an object is stored, or adopted, only under the label that the writer's pin prescribes
W2 relied   a transaction knows of every digest in its new closure: put by it, or reachable at pin
W3 fence    before an append at h, the condemnations in (pin, h] are looked up for all of those
W4 refs     a ref is set only to what is reachable at h, or went through W1 to W3

Source:
    docs/spec/objects.md, section "Writing beside a collector"; docs/design/collection.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from tensorrepo.repo.errors import CollectedError, CommitExpired, NotFoundError, PurgedError
from tensorrepo.repo.history.commits import is_contained
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.state import Condemnation, State
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSource
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter


def graves_since(state: State, generation: int) -> tuple[Condemnation, ...]:
    """Condemnations after `generation`."""
    return tuple(grave for grave in state.graves if grave.generation > generation)


def condemned(
    store: ObjectStore, digests: Iterable[Digest], graves: tuple[Condemnation, ...]
) -> list[Digest]:
    """Which of `digests` any of `graves` hits (false positives cost a needless copy)."""
    return [digest for digest in digests if store.label(digest, graves)]


def closure(
    objects: ObjectSource,
    roots: Iterable[Digest],
    supersedes: Mapping[Digest, Digest],
    *,
    stop: Callable[[Digest], bool] = lambda _: False,
) -> Iterator[Digest]:
    """`roots` and all that they lead to, each once; leaves are never opened.

    Where `objects` says that history ends at a commit, its parents are not followed.

    Args:
        objects: where links are read.
        roots: digests to begin with.
        supersedes: a placement stands for the one that took its place, and is itself not needed.
        stop: True for a digest that need not be followed (nor given).
    """
    pending: list[tuple[Digest, ObjectLink | None]] = [(digest, None) for digest in roots]
    seen: set[Digest] = set()
    while pending:
        digest, link = pending.pop()
        while digest in supersedes:
            digest, link = supersedes[digest], None
        if digest in seen or stop(digest):
            continue
        seen.add(digest)
        yield digest
        if link is None or not link.leaf:
            ends = digest in objects.shallow  # what a commit links to beside commits is its tree
            pending += [
                (child.digest, child)
                for child in objects.get(digest).links
                if not (ends and child.kind is Kind.COMMIT)
            ]


def refuse_purged(objects: ObjectSource, roots: Iterable[Digest], state: State, what: str) -> None:
    """Raise where `roots` lead to what was purged and has no twin.

    Raises:
        PurgedError: `what` was made of rows, columns or tensors that were purged meanwhile.
    """
    for digest in closure(objects, roots, state.supersedes):
        if digest in state.purges:
            raise PurgedError(
                f"{what}: it was made of data that record {state.purges[digest]} of the log purged "
                f"meanwhile (object {digest:.12}), so nothing was changed. Read what is there now, "
                "and make the change on that; `tensorrepo purge --list` tells what was erased."
            )


def store_again(
    writer: ObjectWriter, digests: Iterable[Digest], graves: tuple[Condemnation, ...], path: str
) -> None:
    """Put `digests` under the labels that `graves` prescribe: rule W1 for who has no bytes.

    What lies there already is adopted; else any verified incarnation is copied, be it in memory.

    Raises:
        CommitExpired: no incarnation of a digest is left.
    """
    writer.graves = graves
    store = writer.store
    for digest in digests:
        label = store.label(digest, graves)
        # On a local disk what somebody else linked may not be durable yet: putting it adopts it,
        # and syncs its folder. Elsewhere what is there is durable, and not sent again.
        if store.backend.local_root is None and store.stored_bytes(digest, label) is not None:
            continue
        try:
            envelope = store.get(digest)
        except NotFoundError:
            raise CommitExpired(
                f"object {digest:.12}, which {path} needs, was collected since it was staged, and "
                f"no copy is left (looked for {object_key(digest, label)}). Add it again."
            ) from None
        _store(writer, partial(writer.put_again, envelope))
    _store(writer, writer.flush)


def expired(what: str, error: NotFoundError, since: str = "") -> CommitExpired:
    """The error of `what`, which needs something that is gone; `error` may say why itself."""
    if isinstance(error, CollectedError):
        return CommitExpired(f"{what}: {error}")
    return CommitExpired(f"{what}: {error} It was collected{since}. Add it again.")


def _store(writer: ObjectWriter, work: Callable[[], object]) -> None:
    """Do it; after a failure nothing of the writer can be used, and no file of it stays open."""
    try:
        work()
    except BaseException:
        writer.abort()
        raise


def reachable(objects: ObjectSource, state: State, commit: Digest) -> bool:
    """Whether a ref, or a value that a ref had and that is retained, leads to `commit`."""
    roots = set(state.refs.values()) | set(state.retained)
    if commit in roots:
        return True
    return is_contained(objects, commit, sorted(roots))


def secure_commit(writer: ObjectWriter, state: State, commit: Digest) -> None:
    """Rule W4: make sure that a ref may be set to `commit` at the state given.

    Raises:
        CommitExpired: something of it was collected.
    """
    store = writer.store

    def known(digest: Digest) -> bool:
        is_commit = store.describe(digest).kind is Kind.COMMIT
        return is_commit and reachable(store, state, digest)

    try:
        if reachable(store, state, commit):
            return
        needed = list(closure(store, [commit], state.supersedes, stop=known))
    except NotFoundError as error:
        raise CommitExpired(
            f"commit {commit:.12} is no longer whole: {error} It was collected."
        ) from error
    store_again(writer, needed, state.graves, f"commit {commit:.12}")


def secure_twins(writer: ObjectWriter, state: State, purged: Iterable[Digest], origin: str) -> None:
    """Make sure that what stands for `purged` objects is there, with all that it leads to.

    A twin is garbage once nothing leads to what it stands for; commits of another repository may
    lead there still.

    Args:
        writer: what stores in the repository that purged them.
        state: what its log says.
        purged: objects with a twin.
        origin: where commits that lead to them come from, for people.

    Raises:
        PurgedError: a twin was collected.
    """
    for digest in purged:
        try:
            needed = list(closure(writer.store, [digest], state.supersedes))
            store_again(writer, needed, state.graves, f"object {digest:.12}")
        except (NotFoundError, CommitExpired) as error:
            raise PurgedError(
                f"object {digest:.12} was purged in {writer.store.backend.url} by record "
                f"{state.purges[digest]} of its log, and what stood for it there was collected, as "
                f"nothing led to it any more. The commits of {origin} were made of it: nothing of "
                "them was taken. Erase it there, too (`tensorrepo purge`), or make them anew."
            ) from error
