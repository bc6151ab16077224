"""Repair of a damaged log: void markers, and what is derived from the records made anew.

Nothing here changes a slot. A slot that holds no record gets a marker beside it, which lets
readers count it as empty; hint, checkpoints, ref pages and segments are written anew.

Source:
    docs/spec/log.md, sections "Void slots", "Checkpoint" and "Segment".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tensorrepo.repo.backends.base import overwrite_durably
from tensorrepo.repo.errors import CorruptError, Error, InvalidInputError
from tensorrepo.repo.hashing.digests import record_digest
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.checkpoints import Hint, encode_hint
from tensorrepo.repo.log.log_slots import (
    HINT_KEY,
    LogSlot,
    Marker,
    checkpoint_key,
    encode_marker,
    marker_holds,
    marker_is_right,
    ref_page_key,
    void_key,
)
from tensorrepo.repo.log.reader import RepositoryLog
from tensorrepo.repo.log.segments import SegmentCommit, segment_length, write_segment


def void_slot(log: RepositoryLog, gen: int, *, actor: str, time_ns: int, note: str = "") -> Marker:
    """Mark slot `gen`, whose bytes are no record, to count as an empty one.

    A marker that is damaged, be it that it still holds, is replaced.

    Args:
        log: log of the repository; the slots before `gen` must be in order.
        gen: number of the slot.
        actor: who decided so.
        time_ns: UTC.
        note: why.

    Raises:
        InvalidInputError: the slot holds a record (or is marked already) and cannot be voided.
        NotFoundError: there is no such slot.
    """
    data = log.slots.slot_bytes(gen)
    previous = log.digest_of(gen - 1)
    if _may_be_marked(log, gen, previous, data):
        marker = Marker(gen, previous, record_digest(data), actor, time_ns, note)
        _store(log, marker)
        return marker
    raise InvalidInputError(
        f"{log.backend.url}: log record {gen} is in order, or marked as void already. "
        "A record that was accepted can only be undone by a later one."
    )


def rewrite_hint(log: RepositoryLog) -> Hint:
    """Write the hint anew from what the log itself says."""
    tip = log.refresh_tip()
    hint = Hint(tip.view.generation, tip.checkpoint)
    if hint.generation:
        overwrite_durably(log.backend, HINT_KEY, [encode_hint(hint)])
    return hint


def rewrite_checkpoint(log: RepositoryLog) -> int | None:
    """Make the newest checkpoint that was due readable, whatever lies there; its generation.

    It and its ref pages are made anew from the log. None where no checkpoint was due yet.
    """
    gen = log.refresh_tip().checkpoint
    if gen:
        restore_checkpoint(log, gen)
    return gen or None


def restore_checkpoint(log: RepositoryLog, gen: int) -> list[str]:
    """Write the checkpoint of `gen` and its ref pages where they are missing or differ; their keys.

    Raises:
        CorruptError: the records before it cannot be read.
    """
    encoded = log.encoded(log.view_at(gen - 1).state)
    values = {ref_page_key(digest): page for digest, page in encoded.pages.items()}
    values[checkpoint_key(gen)] = encoded.data  # last: where it is, its pages are
    found = log.slots.read_many(values)
    wrong = [key for key, data in values.items() if found[key] != data]
    for key in wrong:
        overwrite_durably(log.backend, key, [values[key]])
    return wrong


def restore_segment(
    log: RepositoryLog, last: int, commits: Callable[[LogSlot], Iterable[SegmentCommit]]
) -> bool:
    """Make the segment that ends with record `last`, where there is none; whether that worked.

    It is not made where commits of it were collected: nobody needs it.
    """
    length = segment_length(last, log.form.segment_lengths)
    try:
        run = list(log.slots_between(last - length + 1, last + 1))
        write_segment(log.slots, run, commits, lengths=log.form.segment_lengths)
    except Error as error:
        log.report(f"segment {last} is not made anew: {error}")
        return False
    return True


def _may_be_marked(log: RepositoryLog, gen: int, previous: Digest, data: bytes) -> bool:
    try:
        slot = log.slots.parse(gen, previous, data)
    except CorruptError:
        return True
    return slot.void and marker_is_right(log.backend.read(void_key(gen))) is False


def _store(log: RepositoryLog, marker: Marker) -> None:
    key, data = void_key(marker.gen), encode_marker(marker)
    if log.backend.create(key, [data]):
        return
    # A marker that does not hold has no effect, so nothing is lost with it; one whose tag is wrong
    # says nothing but what this one says, too.
    here = log.backend.read(key)
    holds = marker_holds(here, marker.gen, marker.previous, marker.found)
    if not holds or marker_is_right(here) is False:
        overwrite_durably(log.backend, key, [data])
