"""Repository state: refs, leases and condemnations after a record, and pages of many refs.

A state is a value: refs, leases, graves and whatever else the entries of the log set. Two clients
that folded the same records hold equal states, and equal states have equal bytes. `apply` makes
the next one.

Refs that take more than 4 MiB are cut into pages, and a state holds the digests of the pages. Where
a page ends depends on the names of the refs alone, never on the order of updates: equal refs have
equal pages, and a changed ref changes the page it is in. This module is pure; `checkpoints` reads
and writes the pages.

Source:
    docs/spec/log.md, sections "State", "Ref pages" and "Checkpoint".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Final, Literal

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.hashing.digests import state_digest
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.log.branch_rules import (
    KEEP_FEATURE,
    KEEP_KEY,
    RULES_FEATURE,
    RULES_KEY,
    keep_rules_problem,
    rules_problem,
)
from tensorrepo.repo.log.records import (
    KINDS,
    CanonicalValue,
    canonical_json,
    is_digest,
    parse_json,
)
from tensorrepo.repo.typed_decoding import from_plain

# What is encoded here was sorted before, and can hold nothing but text.
_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Paging:
    """When refs are cut, and where. Only tests use another than `FORMAT`: all readers must agree.

    Attributes:
        inline_bytes: refs of up to so many bytes are one JSON object in the state.
        end_mask: a ref ends a page where these bits of its hash are 0.
        min_refs: a page has at least so many refs, but for the last.
        max_refs: and at most so many.
    """

    inline_bytes: int = 4 << 20
    end_mask: int = 0x1FF  # one ref in 512 ends a page, so 640 on average: 60 KB
    min_refs: int = 128
    max_refs: int = 4096


FORMAT: Final = Paging()
TOLD: Final = Paging(inline_bytes=1 << 40)  # of states that a service tells, without pages


def cut_refs(refs: Mapping[str, Digest], paging: Paging = FORMAT) -> dict[Digest, bytes] | None:
    """The pages of `refs` by their digests, in order; None when they belong into the state."""
    # A character takes at most 6 bytes, a digest and its punctuation 70. Most repositories have
    # few refs, and are spared the encoding.
    longest = max((len(ref) for ref in refs), default=0) * 6 + 70
    if len(refs) * longest + 2 <= paging.inline_bytes:
        return None
    pages = [_ENCODER.encode(page) for page in _cut(refs, paging)]
    # As one object they would share a pair of brackets, with commas between.
    if sum(map(len, pages)) - len(pages) + 1 <= paging.inline_bytes:
        return None
    return {state_digest(page): page for page in pages}


def join_refs(pages: Iterable[Buffer], where: str) -> dict[str, object]:
    """What `pages` map refs to. That these are digests, and that the pages were cut where they
    should be, is for the caller to check.

    Raises:
        CorruptError: a page is none; the message starts with `where`.
    """
    refs: dict[str, object] = {}
    for page in pages:
        raw = parse_json(page, where)
        if not isinstance(raw, dict):
            raise CorruptError(f"{where}: a ref page maps refs to digests")
        refs.update(raw)
    return refs


def _cut(refs: Mapping[str, Digest], paging: Paging) -> Iterator[dict[str, Digest]]:
    names = sorted(refs)
    start = 0
    while start < len(names):
        stop = _page_stop(names, start, paging)
        yield {ref: refs[ref] for ref in names[start:stop]}
        start = stop


def _page_stop(names: Sequence[str], start: int, paging: Paging) -> int:
    last = min(start + paging.max_refs, len(names))
    for index in range(start + paging.min_refs - 1, last):
        if _ends_page(names[index], paging.end_mask):
            return index + 1
    return last


def _ends_page(ref: str, mask: int) -> bool:
    return not int.from_bytes(blake3(ref.encode()).digest()[:2], "little") & mask


PACKS_KEY: Final = "history_packs"
PACKS_FEATURE: Final = "history-packs"
MOST_PACKS: Final = 512  # that a record has room for, with all else
KNOWN_FEATURES: Final[frozenset[str]] = frozenset({RULES_FEATURE, KEEP_FEATURE, PACKS_FEATURE})
CONFIG_KEYS: Final = frozenset(
    {"retention_seconds", "protected_refs", "signers", "features", RULES_KEY, KEEP_KEY, PACKS_KEY}
)


_Digest = Annotated[Digest, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Natural = Annotated[int, Meta(ge=0)]


class Lease(Struct, frozen=True, forbid_unknown_fields=True):
    """A promise of gc to keep `keep`, and all that they link to, until somebody closes it.

    `expires_ns` (UTC) only tells people when nobody will miss it: nothing ends by itself,
    because no clock decides what may be deleted.
    """

    holder: str
    opened: _Natural  # generation
    note: str
    keep: tuple[_Digest, ...]
    expires_ns: int | None = msgspec.field(name="expires")


class Condemnation(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One gc-condemn: at `generation` the keys in object `list` were given up.

    `graves` is the object with the table of their digests. `ended` once all keys are deleted.
    """

    generation: _Natural
    list: _Digest
    graves: _Digest
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one entry: it applied, or it is void (no effect) for `reason`."""

    txn: str
    kind: str
    applied: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """The fold of records 1 to `generation`.

    Attributes:
        generation: generation of the last record that was folded; 0 before any.
        refs: full ref name to digest.
        retained: values that a ref-delete or ref-reset dropped, to the generation of the last
            one that did: roots until a gc-condemn lets go.
        leases: id to lease.
        graves: one for each gc-condemn, oldest first, for ever.
        supersedes: placement to the one that took its place; see `resolve`.
        config: the allow-listed keys that were set.
        shallow: commits whose parents this repository does not have.
        purges: digest of what was erased to the generation that did; its twin, if it has one, is
            what `resolve` gives.
        purged_rows: objects that list the ids of erased rows, to the generation that did.
        purged_columns: path of a dataset to the columns that were erased of it, id to name.
        bulks: every ref-updates object that an entry named: kept, so that the log folds.
        kinds: entry kinds beyond those of version 1 that occurred.
    """

    generation: int = 0
    refs: Mapping[str, Digest] = field(default_factory=dict)
    retained: Mapping[Digest, int] = field(default_factory=dict)
    leases: Mapping[str, Lease] = field(default_factory=dict)
    graves: tuple[Condemnation, ...] = ()
    supersedes: Mapping[Digest, Digest] = field(default_factory=dict)
    config: Mapping[str, CanonicalValue] = field(default_factory=dict)
    shallow: frozenset[Digest] = frozenset()
    purges: Mapping[Digest, int] = field(default_factory=dict)
    purged_rows: Mapping[Digest, int] = field(default_factory=dict)
    purged_columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    bulks: frozenset[Digest] = frozenset()
    kinds: frozenset[str] = frozenset()

    @property
    def read_only_reason(self) -> str | None:
        """Why this version must neither append nor collect here; None when it may."""
        features = self.config.get("features", ())
        if not features and self.kinds <= KINDS:
            return None
        assert isinstance(features, (list, tuple))
        missing = sorted({str(feature) for feature in features} - KNOWN_FEATURES)
        unknown = sorted(self.kinds - KINDS)
        if not missing and not unknown:
            return None
        what = [f"feature {name!r}" for name in missing]
        what += [f"entries of kind {name!r}" for name in unknown]
        return f"the repository uses {', '.join(what)}: update tensorrepo to write to it"

    def resolve(self, placement: Digest) -> Digest:
        """What stands for a placement, or for what was purged, now: through all supersedes.

        Ends: the fold admits no circle.
        """
        while (newer := self.supersedes.get(placement)) is not None:
            placement = newer
        return placement

    @property
    def history_packs(self) -> tuple[Digest, ...]:
        """Packs that old commits and tree pages lie in, the oldest first."""
        found = self.config.get(PACKS_KEY, ())
        assert isinstance(found, (list, tuple)), "the fold admits nothing else"
        return tuple(Digest(str(name)) for name in found)

    def roots(self) -> Iterator[Digest]:
        """Every digest that gc must mark from, with repetitions.

        Refs, retained values, leases, and the objects that the log itself needs: ref-updates,
        history packs, tables of graves, lists of keys whose deletion has not ended.
        """
        yield from self.refs.values()
        yield from self.retained
        for lease in self.leases.values():
            yield from lease.keep
        yield from self.bulks
        yield from self.history_packs
        yield from self.purged_rows
        for grave in self.graves:
            yield grave.graves
            if not grave.ended:
                yield grave.list


class _StoredPurges(Struct, frozen=True, forbid_unknown_fields=True):
    columns: dict[str, dict[str, str]]
    objects: dict[_Digest, _Natural]
    rows: dict[_Digest, _Natural]


class _StoredState(Struct, forbid_unknown_fields=True):
    """Members of a state's JSON; `refs` are the refs themselves, or the digests of their pages."""

    version: Literal[1]
    generation: _Natural
    refs: dict[str, _Digest] | list[_Digest]
    retained: dict[_Digest, _Natural]
    leases: dict[str, Lease]
    graves: tuple[Condemnation, ...]
    supersedes: dict[_Digest, _Digest]
    config: dict[str, Any]
    shallow: frozenset[_Digest]
    bulks: frozenset[_Digest]
    kinds: frozenset[str]
    purges: _StoredPurges = _StoredPurges({}, {}, {})


@dataclass(frozen=True, slots=True)
class EncodedState:
    """A state in bytes.

    Attributes:
        data: what a checkpoint holds, and `state` in a record names.
        pages: the ref pages that `data` names, by digest; none while there are few refs.
    """

    data: bytes
    pages: Mapping[Digest, bytes]


def encode_state(state: State, paging: Paging = FORMAT) -> bytes:
    """The canonical bytes of a state, see `EncodedState.data`."""
    return encode_with_pages(state, paging).data


def encode_with_pages(state: State, paging: Paging = FORMAT) -> EncodedState:
    """The canonical bytes of a state, and of the pages of its refs if they are many."""
    pages = cut_refs(state.refs, paging)
    members: dict[str, object] = {
        "version": 1,
        "generation": state.generation,
        "refs": state.refs if pages is None else list(pages),
        "retained": state.retained,
        "leases": msgspec.to_builtins(state.leases),
        "graves": msgspec.to_builtins(state.graves),
        "supersedes": state.supersedes,
        "config": state.config,
        "shallow": sorted(state.shallow),
        "bulks": sorted(state.bulks),
        "kinds": sorted(state.kinds),
    }
    if state.purges:  # what has none has the bytes that it had before there were any
        members["purges"] = {
            "columns": state.purged_columns,
            "objects": state.purges,
            "rows": state.purged_rows,
        }
    return EncodedState(canonical_json(members), pages or {})


def decode_state(
    data: Buffer,
    where: str = "checkpoint",
    read_pages: Callable[[tuple[Digest, ...]], Mapping[Digest, Buffer | None]] = dict.fromkeys,
    paging: Paging = FORMAT,
) -> State:
    """Parse the bytes of a checkpoint. That they are the right ones is for the chain to say.

    Args:
        data: the bytes.
        where: which checkpoint this is, for messages.
        read_pages: gives the bytes of ref pages, None for those it has not; they are verified.
        paging: what the state was encoded with.

    Raises:
        CorruptError: no state, or a page is missing or damaged; the message starts with `where`.
        UnsupportedError: of a newer version.
    """
    raw = parse_json(data, where)
    version = raw.get("version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > 1:
        raise UnsupportedError(f"{where}: version {version}, this tensorrepo reads 1. Update it.")
    try:
        state = _state_of(from_plain(raw, _StoredState), where, read_pages)
        again = encode_state(state, paging)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptError(f"{where}: {error}") from error
    if again != data:
        raise CorruptError(f"{where}: not in canonical form")
    return state


def _state_of(
    stored: _StoredState,
    where: str,
    read_pages: Callable[[tuple[Digest, ...]], Mapping[Digest, Buffer | None]],
) -> State:
    for key, value in stored.config.items():
        if (problem := config_problem(key, value)) is not None:
            raise ValueError(problem)
    refs = stored.refs
    if isinstance(refs, list):
        pages = read_pages(tuple(refs))
        joined = join_refs((_checked_page(name, pages[name], where) for name in refs), where)
        refs = from_plain(joined, dict[str, _Digest])
    return State(
        stored.generation,
        refs,
        stored.retained,
        stored.leases,
        stored.graves,
        stored.supersedes,
        stored.config,
        stored.shallow,
        stored.purges.objects,
        stored.purges.rows,
        stored.purges.columns,
        stored.bulks,
        stored.kinds,
    )


def _checked_page(name: Digest, data: Buffer | None, where: str) -> Buffer:
    if data is None:
        raise CorruptError(f"{where}: its ref page {name:.12} is missing")
    if (found := state_digest(data)) != name:
        raise CorruptError(f"{where}: expected ref page {name:.12}, found {found:.12}")
    return data


def config_problem(key: str, value: object) -> str | None:
    """Why `value` cannot be the value of a config key; None when it can."""
    match key:
        case "retention_seconds":
            good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            return None if good else "config retention_seconds must be a number from 0"
        case "protected_refs" | "features":
            good = isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
            return None if good else f"config {key} must be a list of texts"
        case "signers":
            good = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
            return None if good else "config signers must map names to keys"
        case "branch_rules":
            return rules_problem(value)
        case "keep_rules":
            return keep_rules_problem(value)
        case "history_packs":
            names = value if isinstance(value, (list, tuple)) else [None]
            good = len(names) <= MOST_PACKS and all(map(is_digest, names))
            return None if good else f"config {key} must be a list of digests"
    return f"config key {key!r:.80} is not one of {', '.join(sorted(CONFIG_KEYS))}"
