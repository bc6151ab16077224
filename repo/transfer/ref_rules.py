"""Refspecs, and the rules by which a fetch or a push may set refs.

A spec reads ``[+]SOURCE[:TARGET]``, as git's. Names are completed as git does: a name without a
space is a branch, else a tag. A branch moves forward only; `force` lets it move anywhere, and what
it leaves stays in the log. With a lease it moves anywhere if it is where the pusher saw it last.
Tags never move.

All updates of a push are one record: all of them, or none.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tensorrepo.repo.changes.refs import BRANCHES, REMOTES, TAGS, describe_ref
from tensorrepo.repo.changes.tag_signatures import states
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import is_ancestor
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry, Update, encode_ref_updates
from tensorrepo.repo.names import check_ref
from tensorrepo.repo.objects.envelope import EnvelopeReader, Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.suggest import did_you_mean, there_are

_INLINE_BYTES: Final = 12 << 10  # of a record's 64 KiB; more go into an object of their own
_UPDATE_BYTES: Final = 164  # that an update takes beside its ref
_SIGNED_BYTES: Final = 16 << 10  # of signed tags in a record, beside all else that it may have
_ENTRY_BYTES: Final = 1 << 10  # that an entry takes beside its signature


@dataclass(frozen=True, slots=True)
class RefChange:
    """One ref that is to be set.

    Attributes:
        ref: full name of the ref at the receiver.
        new: commit that it is to name; None deletes it.
        force: whether it may move anywhere.
        expected: where it must stand, when `leased`; None: nowhere.
        leased: whether `expected` counts.
    """

    ref: str
    new: Digest | None
    force: bool = False
    expected: Digest | None = None
    leased: bool = False


@dataclass(frozen=True, slots=True)
class MovedRef:
    """A ref that was set, from `old` to `new`; None stands for a ref that is not there."""

    ref: str
    old: Digest | None
    new: Digest | None
    forced: bool = False


@dataclass(frozen=True, slots=True)
class RefSpec:
    """``[+]SOURCE[:TARGET]``, parsed. An empty source deletes the target."""

    source: str
    target: str
    force: bool

    @classmethod
    def parse(cls, text: str) -> RefSpec:
        """Raises InvalidInputError for what is no spec."""
        force, plain = text.startswith("+"), text.removeprefix("+")
        source, colon, target = plain.partition(":")
        if not plain or ":" in target or (colon and not target):
            raise InvalidInputError(
                f"{text!r:.100} is no refspec: expected NAME, SOURCE:TARGET, or :TARGET to delete"
            )
        return cls(source, target or source, force)


def full_ref(refs: Mapping[str, Digest], name: str) -> str | None:
    """The ref that `name` means among `refs`: itself, a branch, or a tag."""
    for candidate in (name, BRANCHES + name, TAGS + name, REMOTES + name):
        if "/" in candidate and candidate in refs:
            return candidate
    return None


def named_ref(refs: Mapping[str, Digest], name: str, where: str) -> str:
    """As `full_ref`. Raises NotFoundError with near names."""
    if (found := full_ref(refs, name)) is not None:
        return found
    known = [ref.partition("/")[2] for ref in refs if ref.startswith((BRANCHES, TAGS))]
    near = did_you_mean(name, known, there_are(known, "It has none."))
    raise NotFoundError(f"no branch or tag {name!r:.100} in {where}.{near}")


def target_ref(refs: Mapping[str, Digest], source: str, target: str) -> str:
    """The ref that `target` means at the receiver: of a new name, of the kind that `source` is."""
    found = full_ref(refs, target)
    if found is not None and found.partition("/")[0] != "remotes":
        return found
    if target.startswith((BRANCHES, TAGS)) or target == source:
        return check_ref(target)
    return check_ref((TAGS if source.startswith(TAGS) else BRANCHES) + target)


def tracking_ref(remote: str, ref: str) -> str:
    """Where a repository keeps what a branch of a remote was when it was seen last."""
    return check_ref(f"{REMOTES}{remote}/{ref.removeprefix(BRANCHES)}")


def judge(
    changes: Iterable[RefChange], view: LogView, commits: EnvelopeReader
) -> tuple[MovedRef, ...]:
    """What `changes` move at `view`, those left out that move nothing.

    Raises:
        ConflictError: a branch would not move forward, a tag would move, or a lease is broken.
    """
    moves = []
    for change in changes:
        old = view.state.refs.get(change.ref)
        if change.leased and old != change.expected:
            raise ConflictError(
                f"{describe_ref(change.ref)} is at {old or 'nothing':.12} there, and not at "
                f"{change.expected or 'nothing':.12} as you saw it last: somebody else moved it. "
                "Nothing was pushed. `tensorrepo fetch`, look at what came, and push again."
            )
        if old == change.new:
            continue
        forced = _check_move(change, old, commits)
        moves.append(MovedRef(change.ref, old, change.new, forced))
    _refuse_clashes(view, moves)
    return tuple(moves)


def _check_move(change: RefChange, old: Digest | None, commits: EnvelopeReader) -> bool:
    """Whether the ref moves other than forward. Raises ConflictError when it must not."""
    new, may = change.new, change.force or change.leased
    if old is None or new is None:
        return False
    if change.ref.startswith(TAGS):
        raise ConflictError(
            f"{describe_ref(change.ref)} is at {old:.12} there, and a tag never moves: here it is "
            f"at {new:.12}. Nothing changed. Give it another name, or delete it there first."
        )
    if is_descendant(commits, new, old):
        return False
    if not may:
        raise ConflictError(
            f"{describe_ref(change.ref)} has commits at the receiver ({old:.12}) that "
            f"{new:.12} lacks: it would not move forward. Nothing changed. `tensorrepo pull` "
            "brings them here first; --force moves it anyway, and the reflog there keeps them."
        )
    return True


def is_descendant(commits: EnvelopeReader, new: Digest, old: Digest) -> bool:
    """Whether `new` has `old` in its history; no, where that history ends before it is known."""
    try:
        return is_ancestor(commits, old, new)
    except NotFoundError:
        return False


def _refuse_clashes(view: LogView, moves: Sequence[MovedRef]) -> None:
    """A ref cannot be a folder of refs."""
    made = [move.ref for move in moves if move.old is None and move.new is not None]
    if not made:
        return
    gone = {move.ref for move in moves if move.new is None}
    names = {ref for ref in view.state.refs if ref not in gone} | {
        move.ref for move in moves if move.new is not None
    }
    folders = {folder: name for name in names for folder in _folders(name)}
    for ref in made:
        above = next((name for name in _folders(ref) if name in names), None)
        if clash := folders.get(ref, above):
            raise ConflictError(f"{describe_ref(ref)} cannot exist beside {describe_ref(clash)}")


def _folders(ref: str) -> Iterator[str]:
    """What a ref lies in, the innermost first."""
    while "/" in ref:
        ref = ref.rpartition("/")[0]
        yield ref


def split_moves(
    moves: Sequence[MovedRef], signatures: Mapping[str, str]
) -> tuple[tuple[MovedRef, ...], tuple[MovedRef, ...]]:
    """What goes into the next record, and the tags whose signatures must wait for another."""
    now, later, size = list[MovedRef](), list[MovedRef](), 0
    for move in moves:
        need = len(signatures[move.ref]) + _ENTRY_BYTES if _is_signed(move, signatures) else 0
        if need and size and size + need > _SIGNED_BYTES:
            later.append(move)
        else:
            now.append(move)
            size += need
    return tuple(now), tuple(later)


def _is_signed(move: MovedRef, signatures: Mapping[str, str]) -> bool:
    text = signatures.get(move.ref)
    return text is not None and _kind(move) == "tag" and states(text, move.ref, move.new)


def entries_of(
    moves: Sequence[MovedRef],
    writer: ObjectWriter,
    *,
    actor: str,
    note: str,
    signatures: Mapping[str, str] | None = None,
) -> tuple[LogEntry, ...]:
    """One entry for each kind of move, and for each tag that is signed, all of one transaction.

    `signatures` are those of tags, as they travel; what is none of the tag is left out.
    """
    kinds: dict[str, list[Update]] = {}
    txn, now_ns = secrets.token_hex(16), time.time_ns()
    entries, signed = list[LogEntry](), list[LogEntry]()
    for move in moves:
        update = Update(move.ref, move.old, move.new)
        if _is_signed(move, signatures or {}):
            text = (signatures or {})[move.ref]
            signed.append(LogEntry(txn, "tag", actor, now_ns, note, (update,), signature=text))
        else:
            kinds.setdefault(_kind(move), []).append(update)
    room = _INLINE_BYTES
    for kind, updates in sorted(kinds.items(), key=lambda item: item[0] != "ref-delete"):
        inline, bulk = tuple(updates), None
        room -= sum(len(one.ref.encode()) + _UPDATE_BYTES for one in updates)
        if room < 0:
            bulk = writer.put(Kind.REF_UPDATES, encode_ref_updates(updates)).digest
            writer.flush()
            inline = ()
        entries.append(LogEntry(txn, kind, actor, now_ns, note, inline, bulk))
    return (*entries, *signed)


def _kind(move: MovedRef) -> str:
    if move.new is None:
        return "ref-delete"
    if move.old is None:
        return "tag" if move.ref.startswith(TAGS) else "ref-create"
    return "ref-reset" if move.forced else "commit"
