"""What does a repository hold after so many records?

A state is a value: refs, leases, graves and whatever else the entries of the log set. Two clients
that folded the same records hold equal states, and equal states have equal bytes. `fold` (in
`tensorrepo.repo.fold`) makes the next one.

Source:
    docs/spec/log.md, sections "State" and "Checkpoint".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tensorrepo.repo.records import KINDS, Json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.repo.ids import Digest

KNOWN_FEATURES: Final[frozenset[str]] = frozenset()
CONFIG_KEYS: Final = frozenset({"retention_seconds", "protected_refs", "signers", "features"})


@dataclass(frozen=True, slots=True)
class Lease:
    """A promise of gc to keep `keep`, and all that they link to, until somebody closes it.

    `expires_ns` (UTC) only tells people when nobody will miss it: nothing ends by itself,
    because no clock decides what may be deleted.
    """

    holder: str
    opened: int  # generation
    note: str
    keep: tuple[Digest, ...]
    expires_ns: int | None


@dataclass(frozen=True, slots=True)
class Grave:
    """One gc-condemn: at `generation` the keys in object `list` were given up.

    `graves` is the object with the table of their digests. `ended` once all keys are deleted.
    """

    generation: int
    list: Digest
    graves: Digest
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
        generation: of the last record that was folded; 0 before any.
        refs: full ref name to digest.
        retained: values that a ref-delete or ref-reset dropped, to the generation of the last
            one that did: roots until a gc-condemn lets go.
        leases: id to lease.
        graves: one for each gc-condemn, oldest first, for ever.
        supersedes: placement to the one that took its place; see `resolve`.
        config: the allow-listed keys that were set.
        shallow: commits whose parents this repository does not have.
        bulks: every ref-updates object that an entry named: kept, so that the log folds.
        kinds: entry kinds beyond those of version 1 that occurred.
    """

    generation: int = 0
    refs: Mapping[str, Digest] = field(default_factory=dict)
    retained: Mapping[Digest, int] = field(default_factory=dict)
    leases: Mapping[str, Lease] = field(default_factory=dict)
    graves: tuple[Grave, ...] = ()
    supersedes: Mapping[Digest, Digest] = field(default_factory=dict)
    config: Mapping[str, Json] = field(default_factory=dict)
    shallow: frozenset[Digest] = frozenset()
    bulks: frozenset[Digest] = frozenset()
    kinds: frozenset[str] = frozenset()

    @property
    def read_only_reason(self) -> str | None:
        """Why this version must neither append nor collect here; None when it may."""
        features = self.config.get("features", ())
        assert isinstance(features, (list, tuple))
        missing = sorted({str(feature) for feature in features} - KNOWN_FEATURES)
        unknown = sorted(self.kinds - KINDS)
        if not missing and not unknown:
            return None
        what = [f"feature {name!r}" for name in missing]
        what += [f"entries of kind {name!r}" for name in unknown]
        return f"the repository uses {', '.join(what)}: update tensorrepo to write to it"

    def resolve(self, placement: Digest) -> Digest:
        """Where a placement lives now, through all supersedes. Ends: the fold admits no circle."""
        while (newer := self.supersedes.get(placement)) is not None:
            placement = newer
        return placement

    def roots(self) -> Iterator[Digest]:
        """Every digest that gc must mark from, with repetitions.

        Refs, retained values, leases, and the objects that the log itself needs: ref-updates,
        tables of graves, lists of keys whose deletion has not ended.
        """
        yield from self.refs.values()
        yield from self.retained
        for lease in self.leases.values():
            yield from lease.keep
        yield from self.bulks
        for grave in self.graves:
            yield grave.graves
            if not grave.ended:
                yield grave.list
