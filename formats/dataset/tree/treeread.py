"""The metadata below the root of a dataset: leaves, and what covers their fragments.

Everything is checked against what its parent says of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tensorrepo.formats.dataset.tree.deletions import Deletions, decode_deletion_map
from tensorrepo.formats.dataset.tree.index import PageIndex, decode_index
from tensorrepo.formats.dataset.tree.manifest import (
    HAS_RUNS,
    Leaf,
    decode_leaf,
)
from tensorrepo.formats.dataset.tree.patches import PatchIndex, decode_patch_index
from tensorrepo.formats.dataset.tree.rowruns import decode_row_runs
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Digest, digest_from_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.tree.manifest import LeafEntry, Span
    from tensorrepo.repo.objects import Link, ObjectSource

Links = Mapping[Digest, "Link"]
_Found = TypeVar("_Found")


def read_leaf(objects: ObjectSource, root_links: Links, entry: LeafEntry) -> tuple[Leaf, Links]:
    """A leaf, and the links of the object that it stands in.

    Args:
        objects: where it is stored.
        root_links: those of the root object, for leaves that stand in it.
        entry: what the root says of it.
    """
    if not entry.digest:
        leaf, links = decode_leaf(entry.payload, "inline leaf"), root_links
    else:
        digest = digest_from_bytes(entry.digest)
        envelope = objects.get(digest)
        leaf = decode_leaf(envelope.payload, f"leaf {digest:.12}")
        links = {link.digest: link for link in envelope.links}
    rows, deleted = (int(leaf.fragments[name].sum(dtype=np.int64)) for name in ("rows", "deleted"))
    if (len(leaf.fragments), rows, deleted) != (entry.fragments, entry.rows, entry.deleted):
        raise CorruptError("dataset root: a leaf holds other counts than the root says")
    return leaf, links


def read_index(objects: ObjectSource, span: Span, links: Links) -> tuple[PageIndex, Links]:
    """The page index of a span, and the links of the object that it stands in."""
    return _read(objects, span, links, decode_index, "page index")


def read_patches(objects: ObjectSource, span: Span, links: Links) -> tuple[PatchIndex, Links]:
    """The patch index of a span, and the links of the object that it stands in."""
    return _read(objects, span, links, decode_patch_index, "patch")


def read_deletions(objects: ObjectSource, leaf: Leaf, links: Links) -> dict[int, Deletions]:
    """The deletions of every fragment of a leaf that has any."""
    found: dict[int, Deletions] = {}
    for span in leaf.deletions:
        some, _ = _read(objects, span, links, decode_deletion_map, "deletion map")
        found.update(_placed(some, span, "deletion map"))
    expected = leaf.fragments["deleted"]
    flagged = np.flatnonzero(expected).tolist()
    if sorted(found) != flagged or any(found[at].deleted != expected[at] for at in flagged):
        raise CorruptError("a leaf counts other deleted rows than its deletion maps hold")
    return found


def read_runs(objects: ObjectSource, leaf: Leaf, links: Links) -> dict[int, NDArray[Any]]:
    """RUN arrays of every fragment of a leaf whose rows were written elsewhere."""
    found: dict[int, NDArray[Any]] = {}
    for span in leaf.runs:
        some, _ = _read(objects, span, links, decode_row_runs, "row runs")
        found.update(_placed(some, span, "row runs"))
    flagged = np.flatnonzero(leaf.fragments["flags"] & HAS_RUNS).tolist()
    rows = leaf.fragments["rows"]
    if sorted(found) != flagged or any(
        int(found[at]["rows"].sum(dtype=np.int64)) != rows[at] for at in flagged
    ):
        raise CorruptError("row runs of a leaf do not name its rows")
    return found


def _read(
    objects: ObjectSource,
    span: Span,
    links: Links,
    decode: Callable[[Any, str], _Found],
    what: str,
) -> tuple[_Found, Links]:
    if isinstance(span.payload, memoryview):
        return decode(span.payload, f"inline {what}"), links
    envelope = objects.get(span.payload)
    found = decode(envelope.payload, f"{what} {span.payload:.12}")
    return found, {link.digest: link for link in envelope.links}


def _placed(some: Mapping[int, _Found], span: Span, what: str) -> dict[int, _Found]:
    """By fragment of the leaf instead of the span."""
    if any(fragment >= span.fragments for fragment in some):
        raise CorruptError(f"{what}: a fragment beyond the {span.fragments} that it covers")
    return {span.first_fragment + fragment: each for fragment, each in some.items()}


def covering(
    spans: Sequence[Span], group: str, fragments: int
) -> list[tuple[int, int, Span | None]]:
    """What covers fragments ``[0, fragments)`` of one group: start, stop, and span or None."""
    found: list[tuple[int, int, Span | None]] = []
    reached = 0
    for span in spans:
        if span.group == group:
            if span.first_fragment > reached:
                found.append((reached, span.first_fragment, None))
            found.append((span.first_fragment, span.stop_fragment, span))
            reached = span.stop_fragment
    if reached < fragments:
        found.append((reached, fragments, None))
    return found
