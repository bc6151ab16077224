"""Log checkpoints: stored states from which a reader of the log begins.

A checkpoint is the fold of the records before a generation. It is believed only because the
record of that generation names its digest; it names its ref pages, if it has any, by theirs. The
hint is where to begin to look; it is believed in nothing.

Source:
    docs/spec/log.md, sections "Ref pages", "Checkpoint" and "Hint".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, TypeGuard

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, Error
from tensorrepo.repo.hashing.digests import state_digest
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.log_slots import (
    CHECKPOINT_PREFIX,
    MAX_GENERATION,
    LogSlot,
    LogSlots,
    checkpoint_key,
    ref_page_key,
    slot_key,
)
from tensorrepo.repo.log.records import STATE_INTERVAL, canonical_json, is_digest, parse_json
from tensorrepo.repo.log.state import FORMAT, EncodedState, Paging, State, decode_state

HINT_INTERVAL: Final = 8  # a hint is written when a generation is a multiple
PROBE_SLOTS: Final = HINT_INTERVAL  # read beyond a hint at once: enough while hints arrive
MAX_PREFETCH: Final = 256  # slots that a hint alone may make a client ask for


@dataclass(frozen=True, slots=True)
class Hint:
    """A generation that was reached, and a checkpoint that was written; 0 for none."""

    generation: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class CheckpointBase:
    """Where a fold may begin: `state` is that of the records before generation `start`.

    `previous` is what record `start` chains to. `bytes` is what the checkpoint takes, 0 for the
    beginning of the log, which has none.
    """

    start: int
    previous: Digest
    state: State
    bytes: int


def encode_hint(hint: Hint) -> bytes:
    return canonical_json({"gen": hint.generation, "checkpoint": hint.checkpoint})


def decode_hint(data: bytes | None) -> Hint | None:
    """The hint, or None for anything that is none: anyone may have written anything there."""
    try:
        raw = parse_json(data, "hint") if data is not None and len(data) < 256 else None
    except CorruptError:
        return None
    if not isinstance(raw, dict):
        return None
    generation, checkpoint = raw.get("gen"), raw.get("checkpoint", 0)
    if not _is_generation(generation) or generation < 1:
        return None
    usable = _is_generation(checkpoint) and checkpoint <= generation
    return Hint(generation, checkpoint if usable and checkpoint % STATE_INTERVAL == 0 else 0)


def hint_keys(hint: Hint) -> list[str]:
    """What to read in one batch when the hint is right: checkpoint, records since, a probe."""
    start = max(hint.checkpoint, 1)
    keys = [checkpoint_key(hint.checkpoint)] if hint.checkpoint else []
    if hint.generation - start < MAX_PREFETCH:
        keys += [slot_key(gen) for gen in range(start, hint.generation + PROBE_SLOTS + 1)]
    else:
        keys += [slot_key(start), slot_key(hint.generation)]
    return keys


def load_base(
    slots: LogSlots,
    gen: int,
    known: Mapping[str, bytes | None] | None = None,
    paging: Paging = FORMAT,
) -> CheckpointBase | None:
    """The checkpoint of `gen`, verified against record `gen`; None when either is absent.

    Takes one round trip, unless both are in `known`, and one more for its ref pages.

    Raises:
        CorruptError, UnsupportedError: it is there and cannot be used.
    """
    keys = [checkpoint_key(gen), slot_key(gen)]
    known = known or {}
    values = known if all(key in known for key in keys) else slots.read_many(keys)
    data, record = (values[key] for key in keys)
    if data is None or record is None:
        return None
    slot = slots.parse(gen, None, record)
    where = f"{slots.backend.url}: checkpoint {gen}"
    state = verify_checkpoint(slots, data, slot, where, paging)
    return CheckpointBase(gen, slot.record.previous, state, len(data))


def verify_checkpoint(
    slots: LogSlots, data: bytes, slot: LogSlot, where: str, paging: Paging = FORMAT
) -> State:
    """The state in a checkpoint and its ref pages, checked against the record that names it."""
    found = state_digest(data)
    if slot.record.state != found:
        raise CorruptError(
            f"{where}: expected digest {slot.record.state or 'none':.12}, found {found:.12}. "
            "It is a cache: `tensorrepo fsck --repair` makes it anew."
        )
    state = decode_state(data, where, partial(_read_pages, slots), paging)
    if state.generation != slot.record.gen - 1:
        raise CorruptError(f"{where}: is of generation {state.generation}")
    return state


def write_checkpoint(slots: LogSlots, gen: int, encoded: EncodedState, before: int) -> None:
    """Store the checkpoint of `gen`, its ref pages first: so where it is, they are.

    Args:
        slots: where.
        gen: its generation.
        encoded: the state before record `gen`.
        before: generation of the checkpoint that was due before this one, 0 for none. The pages
            that it names need not be sent again.
    """
    stored = _named_pages(slots.read(checkpoint_key(before))) if encoded.pages and before else ()
    new = [digest for digest in encoded.pages if digest not in stored]
    if new:
        with slots.backend.uploads() as uploads:
            for digest in new:
                uploads.create(ref_page_key(digest), [encoded.pages[digest]])
            uploads.finish()
    slots.backend.create(checkpoint_key(gen), [encoded.data])


def _read_pages(slots: LogSlots, digests: tuple[Digest, ...]) -> dict[Digest, bytes | None]:
    found = slots.read_many(ref_page_key(digest) for digest in digests)
    return {digest: found[ref_page_key(digest)] for digest in digests}


def _named_pages(checkpoint: bytes | None) -> frozenset[Digest]:
    """Ref pages that were stored before this checkpoint was; none when it is absent or garbage."""
    try:
        raw = parse_json(checkpoint or b"", "checkpoint")
    except CorruptError:
        return frozenset()
    refs = raw.get("refs") if isinstance(raw, dict) else None
    return frozenset(filter(is_digest, refs)) if isinstance(refs, list) else frozenset()


def newest_base(
    slots: LogSlots,
    report: Callable[[str], None],
    *,
    at_most: int = MAX_GENERATION,
    paging: Paging = FORMAT,
) -> CheckpointBase | None:
    """The newest checkpoint of a generation up to `at_most` that verifies; None when none does.

    One that does not is told to `report` and skipped.
    """
    for gen in reversed(list(_listed(slots))):
        if gen > at_most:
            continue
        try:
            base = load_base(slots, gen, paging=paging)
        except Error as error:
            report(f"skipping a checkpoint: {error}")
            continue
        if base is not None:
            return base
    return None


def _listed(slots: LogSlots) -> Iterator[int]:
    slots.rounds += 1
    for stored in slots.backend.list(CHECKPOINT_PREFIX):
        digits = stored.key.removeprefix(CHECKPOINT_PREFIX).removesuffix(".json")
        if digits.isascii() and digits.isdigit() and stored.key == checkpoint_key(int(digits)):
            yield int(digits)


def _is_generation(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_GENERATION
