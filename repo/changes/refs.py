"""Branches and tags: create, move, delete, reflog, undo and redo.

Each verb appends one entry. It is decided anew on every head, so two people who move the same ref
at once get one winner and one clear ConflictError.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from msgspec import structs

from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.tag_signatures import (
    TagStatement,
    signatory_of,
    signature_text,
    travelling,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CommitExpired, ConflictError, NotFoundError
from tensorrepo.repo.history.signatures import UNSIGNED, Signatory
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView, RepositoryLog
from tensorrepo.repo.log.records import LogEntry, LogRecord, Update
from tensorrepo.repo.names import check_ref
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.tables import RecordTable, Shown, moment_text

BRANCHES = "heads/"
TAGS = "tags/"
REMOTES = "remotes/"  # where branches of other repositories were when they were seen last
_STEP = re.compile(r"(undo|redo) ([0-9]+)")  # the note of an entry that `_step` makes
_STEP_KINDS = frozenset({"ref-create", "ref-delete", "ref-reset"})
_BLOCK = 256


@dataclass(frozen=True, slots=True, repr=False)
class Move(Shown):
    """One change of one ref, as the log tells it.

    `renamed` is the other half when a branch got another name: the ref that went as this one came,
    or came as it went.
    """

    generation: int
    entry: LogEntry
    update: Update
    renamed: Update | None = None

    def to_table(self) -> RecordTable:
        """The ref, where it was and where it is; who moved it, when and how."""
        old, new = (each[:12] if each else "nothing" for each in (self.update.old, self.update.new))
        when = moment_text(self.entry.time_ns)
        how = f"{self.entry.kind} by {self.entry.actor}, {when}, record {self.generation}"
        return RecordTable((f"{self.update.ref}: {old} -> {new}", how))


def create_branch(repository: RepositoryCore, name: str, commit: Digest, *, actor: str) -> None:
    """A new branch at `commit`. Raises ConflictError when the name is taken."""
    _create(repository, "ref-create", check_ref(BRANCHES + name), commit, actor)


def create_tag(
    repository: RepositoryCore, name: str, commit: Digest, *, actor: str, note: str = ""
) -> None:
    """A new tag, which never moves, signed where this client signs.

    Raises:
        ConflictError: the name is taken.
    """
    _create(repository, "tag", check_ref(TAGS + name), commit, actor, note)


def tag_signatory(repository: RepositoryCore, name: str) -> Signatory:
    """Who signed a tag, as far as the allowed signers tell."""
    view = repository.log.refresh()
    made = next(reflog(repository, TAGS + name, view), None)
    if made is None or made.entry.signature is None:
        return UNSIGNED
    return signatory_of(repository.id, made.entry, repository.policy.signers(view.state))


def tag_signatures(
    repository: RepositoryCore, tags: Collection[str], view: LogView
) -> dict[str, str]:
    """Signatures of some tags (``tags/v1``), as they travel to other repositories.

    The log is walked back until all of the tags were met.
    """
    found: dict[str, str] = {}
    wanted = {ref for ref in tags if ref in view.state.refs}
    for stop in range(view.generation + 1, 1, -_BLOCK):
        if not wanted:
            break
        for move in reversed(list(_moves(repository, wanted, max(1, stop - _BLOCK), stop))):
            ref = move.update.ref
            if ref in wanted and (text := travelling(repository.id, move.entry)) is not None:
                found[ref] = text
            wanted.discard(ref)
    return found


def delete_ref(repository: RepositoryCore, ref: str, *, actor: str) -> Digest:
    """Remove a branch (``heads/x``) or a tag (``tags/x``); gives the commit that it named."""

    def decide(view: LogView) -> LogEntry:
        return _entry("ref-delete", actor, Update(ref, _existing(view, ref), None))

    old = _append(repository, decide).update.old
    assert old is not None, "only a ref that exists is deleted"
    return old


def rename_branch(repository: RepositoryCore, old: str, new: str, *, actor: str) -> None:
    """Give a branch another name, in one step."""
    source, target = check_ref(BRANCHES + old), check_ref(BRANCHES + new)
    txn = _txn()  # of both entries: by it `undo` knows that they belong together

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        commit = _existing(view, source)
        refuse_taken(view, target)
        return (
            _entry("ref-create", actor, Update(target, None, commit), f"rename from {old}", txn),
            _entry("ref-delete", actor, Update(source, commit, None), f"rename to {new}", txn),
        )

    repository.append(decide)


def reset_branch(
    repository: RepositoryCore,
    name: str,
    commit: Digest,
    *,
    actor: str,
    note: str = "",
) -> Move:
    """Move a branch to `commit`; the reflog and `retained` keep the old place."""
    ref = check_ref(BRANCHES + name)

    def decide(view: LogView) -> LogEntry:
        old = _existing(view, ref)
        _secure(repository, view, commit)
        shown = f"reset: {note}" if _STEP.fullmatch(note) else note
        return _entry("ref-reset", actor, Update(ref, old, commit), shown)

    return _append(repository, decide)


def undo(repository: RepositoryCore, name: str, *, actor: str) -> Move:
    """Move a branch back over the last record that moved it, as a new record.

    A branch that got another name gets its old one back, and `Move.renamed` tells.

    Raises:
        ConflictError: that record is somebody else's.
        NotFoundError: there is nothing to undo.
    """
    return _step(repository, name, actor, "undo")


def redo(repository: RepositoryCore, name: str, *, actor: str) -> Move:
    """Take back the last `undo` of this branch, when nothing came after it."""
    return _step(repository, name, actor, "redo")


def reflog(
    repository: RepositoryCore, ref: str, view: LogView | None = None, *, before: int | None = None
) -> Iterator[Move]:
    """All changes of a ref, the newest first; entries that did not apply are left out.

    `before` is the generation of the record where they end; None: behind the newest.
    """
    end = (view or repository.log.refresh()).generation + 1 if before is None else before
    for stop in range(end, 1, -_BLOCK):
        yield from reversed(list(_moves(repository, {ref}, max(1, stop - _BLOCK), stop)))


def places(repository: RepositoryCore, ref: str, view: LogView | None = None) -> Iterator[Move]:
    """Where a branch was, the newest first, also under the names that it had before.

    A rename is a move from a commit to the same; behind it come the moves of the former name.
    """
    before: int | None = None
    while ref:
        moves, ref = reflog(repository, ref, view, before=before), ""
        for move in moves:
            if move.update.old is not None or move.renamed is None:
                yield move
                continue
            former = move.renamed
            yield replace(move, update=Update(move.update.ref, former.old, move.update.new))
            ref, before = former.ref, move.generation
            break


def _step(repository: RepositoryCore, name: str, actor: str, verb: str) -> Move:
    ref = check_ref(BRANCHES + name)
    txn = _txn()
    decided: list[LogEntry] = []

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        move = _last_step(repository, ref, view, verb)
        if move is None:
            raise NotFoundError(f"nothing to {verb} on branch {name!r}")
        if move.entry.actor not in _own_names(repository, actor):
            raise ConflictError(
                f"the last change of branch {name!r}, record {move.generation}, is not yours but "
                f"{move.entry.actor}'s ({move.entry.note or move.entry.kind}). "
                f"`tensorrepo reset` moves a branch past other people's changes."
            )
        updates = [Update(ref, view.state.refs.get(ref), move.update.old)]
        updates += _other_name_back(repository, view, move, verb)
        note = f"{verb} {move.generation}"
        decided[:] = [_step_entry(repository, view, one, actor, note, txn) for one in updates]
        return tuple(decided)

    generation = repository.append(decide).generation
    first, *more = [entry.updates[0] for entry in decided]
    return Move(generation, decided[0], first, more[0] if more else None)


def _own_names(repository: RepositoryCore, actor: str) -> set[str]:
    """How the log calls this client: a service writes who it knows by the token."""
    service = repository.log.service
    return {actor} if service is None else {actor, service.caller}


def _other_name_back(
    repository: RepositoryCore, view: LogView, move: Move, verb: str
) -> list[Update]:
    """What gives a renamed branch its former name, or takes it away again."""
    other = move.renamed
    if other is None:
        return []
    last = _last_step(repository, other.ref, view, verb)
    if last is None or last.generation != move.generation:
        raise ConflictError(
            f"{describe_ref(other.ref)} was changed after record {move.generation}, which renamed "
            "it. Nothing changed: use `tensorrepo branch` to name both as you want."
        )
    return [Update(other.ref, view.state.refs.get(other.ref), other.old)]


def _step_entry(
    repository: RepositoryCore, view: LogView, update: Update, actor: str, note: str, txn: str
) -> LogEntry:
    """The entry that makes `update`, whose value a ref had before."""
    old, new = update.old, update.new
    if new is not None:
        try:
            _secure(repository, view, new)
        except CommitExpired as error:
            verb = note.partition(" ")[0]
            raise CommitExpired(
                f"cannot {verb}: commit {new:.12}, where {describe_ref(update.ref)} was, was "
                "collected as garbage since. Nothing changed. `tensorrepo reflog` shows what else "
                "it was, and `tensorrepo fetch` brings the commit back from a copy that has it."
            ) from error
    if new is not None and old is None:
        refuse_taken(view, update.ref)
    kind = "ref-delete" if new is None else "ref-create" if old is None else "ref-reset"
    return _entry(kind, actor, update, note, txn)


def _last_step(repository: RepositoryCore, ref: str, view: LogView, verb: str) -> Move | None:
    """The move that `verb` takes back: an undo for redo, else the last one not taken back yet.

    Undo walks further back each time; a redo takes back the undo before it. So every undo or redo
    that names a record cancels it, the newest first.
    """
    cancelled: set[int] = set()
    for move in reflog(repository, ref, view):
        if move.generation in cancelled:
            continue
        # The subject of a commit may read like a step, and is none.
        step = _STEP.fullmatch(move.entry.note) if move.entry.kind in _STEP_KINDS else None
        if step is None:
            return move if verb == "undo" else None
        if verb == "redo" and step[1] == "undo":
            return move
        cancelled.add(int(step[2]))
    return None


def _moves(
    repository: RepositoryCore, refs: Collection[str], start: int, stop: int
) -> Iterator[Move]:
    """What records ``[start, stop)`` did to some refs, oldest first."""
    log = repository.log
    naming = [
        record.gen
        for record in log.records(start, stop)
        if any(update.ref in refs for one in record.entries for update in updates_of(log, one))
    ]
    if not naming:
        return
    # What an entry did is known from the fold alone: beside it may stand one that is void, and
    # says the same. Folding a block costs a checkpoint, so it is left out where nothing is named.
    for record, verdicts in log.judged(naming[0], naming[-1] + 1):
        for entry, verdict in zip(record.entries, verdicts, strict=True):
            for update in updates_of(log, entry) if verdict.applied else ():
                if update.ref in refs:
                    yield Move(record.gen, entry, update, _other_name(record, entry, update))


def updates_of(log: RepositoryLog, entry: LogEntry) -> tuple[Update, ...]:
    """All that an entry moves: its own updates, and those of its ref-updates object."""
    if entry.kind == "purge":  # its updates are of objects
        return ()
    return entry.updates if entry.bulk is None else entry.updates + log.read_bulk(entry.bulk)


def _other_name(record: LogRecord, entry: LogEntry, update: Update) -> Update | None:
    """The update of another branch in the same transaction that mirrors `update`: a rename."""
    mirrored = (update.new, update.old)
    for beside in record.entries:
        if beside.txn == entry.txn and beside is not entry and None in mirrored:
            for other in beside.updates:
                if other.ref != update.ref and (other.old, other.new) == mirrored:
                    return other
    return None


def _create(
    repository: RepositoryCore, kind: str, ref: str, commit: Digest, actor: str, note: str = ""
) -> None:
    def decide(view: LogView) -> LogEntry:
        refuse_taken(view, ref)
        _secure(repository, view, commit)
        entry = _entry(kind, actor, Update(ref, None, commit), note)
        signer = repository.policy.signer if kind == "tag" else None
        if signer is None:
            return entry
        signature = signer().sign(TagStatement.of(repository.id, entry).encoded())
        return structs.replace(entry, signature=signature_text(signature))

    _append(repository, decide)


def _append(repository: RepositoryCore, decide: Callable[[LogView], LogEntry]) -> Move:
    decided: list[LogEntry] = []

    def entries(view: LogView) -> tuple[LogEntry, ...]:
        decided[:] = [decide(view)]
        return tuple(decided)

    appended = repository.append(entries)
    return Move(appended.generation, decided[0], decided[0].updates[0])


def _secure(repository: RepositoryCore, view: LogView, commit: Digest) -> None:
    gc_fence.secure_commit(ObjectWriter(repository.objects, view.state.graves), view.state, commit)


def _existing(view: LogView, ref: str) -> Digest:
    commit = view.state.refs.get(ref)
    if commit is None:
        raise NotFoundError(f"no {describe_ref(ref)}")
    return commit


def refuse_taken(view: LogView, ref: str) -> None:
    """Raise ConflictError when `ref` exists, or is a folder of refs, or lies below a ref."""
    taken = view.state.refs.get(ref)
    if taken is not None:
        raise ConflictError(
            f"{describe_ref(ref)} exists already, at {taken:.12}. Choose another name."
        )
    folder, refs = ref + "/", view.state.refs
    above = (ref[:at] for at, letter in enumerate(ref) if letter == "/" and ref[:at] in refs)
    beside = next(above, None) or next((one for one in refs if one.startswith(folder)), None)
    if beside is not None:
        raise ConflictError(f"{describe_ref(ref)} cannot exist beside {describe_ref(beside)}")


def describe_ref(ref: str) -> str:
    """A ref for people: ``branch 'main'``."""
    space, _, name = ref.partition("/")
    return {"heads": f"branch {name!r}", "tags": f"tag {name!r}"}.get(space, f"ref {ref!r}")


def _entry(
    kind: str, actor: str, update: Update, note: str = "", txn: str | None = None
) -> LogEntry:
    return LogEntry(txn or _txn(), kind, actor, time.time_ns(), note, (update,))


def _txn() -> str:
    return secrets.token_hex(16)
