"""Where do leaves and page indexes end?

Boundaries depend on the fragments alone, never on history: equal runs of fragments in two versions
of a dataset make equal objects, and a change rewrites one of them. Each fragment has a size (its
record in a leaf, its page entries in an index); a boundary falls after a fragment whose uid hashes
low enough, with a chance in proportion to its size.

Source:
    docs/spec/dataset.md, section "Boundaries".
"""

from __future__ import annotations

from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

MIN_BYTES = 64 << 10
MEAN_BYTES = 256 << 10
MAX_BYTES = 384 << 10  # with its root, a changed leaf stays under half a megabyte


@dataclass(frozen=True, slots=True)
class Cuts:
    """Bytes gathered since the last boundary. `closed` says that the next fragment starts anew."""

    bytes: int = 0
    closed: bool = False

    def must_end_before(self, fragment_bytes: int) -> bool:
        """Whether a boundary falls between what was gathered and the next fragment."""
        too_much = self.bytes > 0 and self.bytes + fragment_bytes > MAX_BYTES
        return self.closed or too_much

    def add(self, uid: int, fragment_bytes: int) -> Cuts:
        """With one more fragment, on whichever side of the boundary it falls."""
        before = 0 if self.must_end_before(fragment_bytes) else self.bytes
        total = before + fragment_bytes
        chance = (fragment_bytes << 64) // (MEAN_BYTES - MIN_BYTES)
        hashed = xxh3_64_intdigest(uid.to_bytes(8, "little"))
        return Cuts(total, total >= MIN_BYTES and hashed < chance)
