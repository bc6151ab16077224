"""Repair of a damaged log: void markers, hints and checkpoints written anew.

Nothing here changes a slot. A slot that holds no record gets a marker beside it, which lets
readers count it as empty; hints and checkpoints are written anew.

Source:
    docs/spec/log.md, sections "Void slots" and "Checkpoint".
"""

from __future__ import annotations

from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.ids import record_digest
from tensorrepo.repo.log.checkpoints import Hint, encode_hint
from tensorrepo.repo.log.log_slots import (
    HINT_KEY,
    Marker,
    checkpoint_key,
    encode_marker,
    marker_holds,
    ref_page_key,
    void_key,
)
from tensorrepo.repo.log.reader import RepositoryLog


def void_slot(log: RepositoryLog, gen: int, *, actor: str, time_ns: int, note: str = "") -> Marker:
    """Mark slot `gen`, whose bytes are no record, to count as an empty one.

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
    try:
        log.slots.parse(gen, previous, data)
    except CorruptError:
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
        log.backend.overwrite(HINT_KEY, [encode_hint(hint)])
    return hint


def rewrite_checkpoint(log: RepositoryLog) -> int | None:
    """Make the newest checkpoint that was due readable, whatever lies there; its generation.

    It and its ref pages are made anew from the log. None where no checkpoint was due yet.
    """
    gen = log.refresh_tip().checkpoint
    if not gen:
        return None
    encoded = log.encoded(log.view_at(gen - 1).state)
    values = {ref_page_key(digest): page for digest, page in encoded.pages.items()}
    values[checkpoint_key(gen)] = encoded.data  # last: where it is, its pages are
    found = log.slots.read_many(values)
    for key, data in values.items():
        if found[key] != data:
            log.backend.overwrite(key, [data])
    return gen


def _store(log: RepositoryLog, marker: Marker) -> None:
    key, data = void_key(marker.gen), encode_marker(marker)
    if log.backend.create(key, [data]):
        return
    # A marker that does not hold has no effect, so nothing is lost with it.
    if not marker_holds(log.backend.read(key), marker.gen, marker.previous, marker.found):
        log.backend.overwrite(key, [data])
