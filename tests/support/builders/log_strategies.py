"""Random records and states: small alphabets, so that entries meet each other."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tensorrepo.repo.log.records import KINDS, LogEntry, LogRecord, Update
from tests.support.builders.log import digest

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
_GENS = st.integers(1, 200)
_DIGESTS = st.integers(1, 4).map(digest)
_REFS = st.sampled_from(["heads/main", "heads/x", "tags/v1", "tags/v2", "runs/a/1"])
_DATA_NAMES = [
    "id", "keep", "expires", "at", "list", "graves", "release", "generation", "placements", "add",
    "remove", "set", "other",
]  # fmt: skip


def json_values() -> SearchStrategy[object]:
    leaves = st.none() | st.booleans() | _INT64 | _TEXT
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
        max_leaves=8,
    )


def updates() -> SearchStrategy[Update]:
    values = st.none() | _DIGESTS
    return st.builds(Update, _REFS, values, values)


def _fitting_data() -> SearchStrategy[dict[str, object]]:
    """Data of some kind, mostly well-formed."""
    ids = st.sampled_from(["lease-1", "lease-2", "../bad", ""])
    digests = st.lists(_DIGESTS, max_size=2)
    gens = st.integers(0, 6)
    config = st.fixed_dictionaries(
        {},
        optional={
            "retention_seconds": st.none() | st.integers(-1, 9),
            "protected_refs": st.none() | st.lists(st.sampled_from(["heads/*", "tags/v1"])),
            "signers": st.dictionaries(_TEXT, _TEXT, max_size=1) | _INT64,
            "features": st.none() | st.lists(st.sampled_from(["new"]), max_size=1) | st.just([[]]),
            "url": _TEXT,
        },
    )
    return st.one_of(
        st.fixed_dictionaries({"id": ids, "keep": digests, "expires": st.none() | _INT64}),
        st.fixed_dictionaries({"id": ids}),
        st.fixed_dictionaries(
            {"at": gens, "list": _DIGESTS, "graves": _DIGESTS, "release": digests}
        ),
        st.fixed_dictionaries({"generation": gens}),
        st.fixed_dictionaries(
            {"placements": st.dictionaries(_DIGESTS, _DIGESTS, min_size=1, max_size=2)}
        ),
        st.fixed_dictionaries({"add": digests, "remove": digests}),
        st.fixed_dictionaries({"set": config}),
    )


def entries() -> SearchStrategy[LogEntry]:
    wild = st.dictionaries(st.sampled_from(_DATA_NAMES), json_values(), max_size=3)
    return st.builds(
        LogEntry,
        txn=st.sampled_from(["t1", "t2", "t3"]),
        kind=st.sampled_from([*sorted(KINDS), "from-the-future"]),
        actor=_TEXT,
        time_ns=_INT64,
        note=_TEXT,
        updates=st.lists(updates(), max_size=2).map(tuple),
        bulk=st.none() | _DIGESTS,
        data=st.just({}) | _fitting_data() | wild,
        signature=st.none() | _TEXT,
    )


def records(gens: SearchStrategy[int] = _GENS) -> SearchStrategy[LogRecord]:
    def of(gen: int) -> SearchStrategy[LogRecord]:
        state = _DIGESTS if gen % 64 == 0 else st.none()
        return st.builds(
            LogRecord, st.just(gen), _DIGESTS, state, st.lists(entries(), max_size=3).map(tuple)
        )

    return gens.flatmap(of)
