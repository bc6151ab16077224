"""Provenance edges: what an entry was made from, and by which relation.

An edge stands with what was made: "this is `relation` that". Words are hyphenated, and read from
the made thing to its origin: a model is ``trained-on`` a dataset. An origin may lie in another
repository, or be gone: an edge is no link.

Source:
    docs/spec/lineage.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final, TypeVar

import msgspec

from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.ids import Digest, parse_digest
from tensorrepo.repo.json_rules import check_json
from tensorrepo.repo.typed_decoding import from_plain

T = TypeVar("T")
DERIVED_FROM: Final = "derived-from"
TRAINED_ON: Final = "trained-on"
FINE_TUNED_FROM: Final = "fine-tuned-from"
MERGED_FROM: Final = "merged-from"
MERGED_ONTO: Final = "merged-onto"
SLICED_FROM: Final = "sliced-from"
CONSTRUCTED_FROM: Final = "constructed-from"
QUANTISED_FROM: Final = "quantised-from"
CHECKPOINT_OF: Final = "checkpoint-of"
ADAPTER_OF: Final = "adapter-of"
LOSSY_OF: Final = "lossy-of"
EVALUATED_ON: Final = "evaluated-on"
IMPORTED_FROM: Final = "imported-from"
SYNCED_WITH: Final = "synced-with"
USED: Final = "used"
MADE_BY: Final = "made-by"

RELATIONS: Final[Mapping[str, str]] = {
    DERIVED_FROM: "made of a dataset, a view or a model, by a query or a function",
    TRAINED_ON: "learned from rows of a dataset",
    FINE_TUNED_FROM: "trained on, beginning with the weights of a model",
    MERGED_FROM: "blended of several models",
    MERGED_ONTO: "the model that differences were added to in a merge",
    SLICED_FROM: "a part of a model",
    CONSTRUCTED_FROM: "a new architecture with tensors of a model",
    QUANTISED_FROM: "a model in fewer bits",
    CHECKPOINT_OF: "a state of a training, saved by a run",
    ADAPTER_OF: "an adapter to a model",
    LOSSY_OF: "a model, stored with an error within stated bounds",
    EVALUATED_ON: "measured on a dataset",
    IMPORTED_FROM: "read from files or a URL",
    SYNCED_WITH: "made what files or a URL were, and to be made so again",
    USED: "a run read it",
    MADE_BY: "made in a run",
}
_EARLIER: Final[Mapping[str, str]] = {"parent": FINE_TUNED_FROM}

IDENTITY: Final = "identity"  # in the details of an edge: what it tells of is repeated
MAX_EDGES: Final = 1024  # of one dataset: an edge a day is three years of appending
_MAX_WORD: Final = 64


class ProvenanceEdge(msgspec.Struct, frozen=True, array_like=True):
    """What something came from.

    Attributes:
        relation: a word, such as `TRAINED_ON`; others are carried along.
        path: path of the origin where it was found: ``datasets/photos``, ``runs/exp1``, or a URL.
        digest: 64 hex digits; "" where the origin is not of a repository.
        commit: 64 hex digits, of which `path` is meant.
        details: JSON. Of `TRAINED_ON`: "seed", "epoch" and "position", the place that the stream
            had reached.
    """

    relation: str
    path: str
    digest: str
    commit: str | None = None
    details: dict[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        """As a map with all members, which is how a dataset holds it."""
        return msgspec.structs.asdict(self)


def details_of(
    lineage: Iterable[ProvenanceEdge], relation: str, kind: type[T]
) -> tuple[ProvenanceEdge, T] | None:
    """The first edge of that relation, and its details as a `kind`; None without one.

    Raises:
        CorruptError: what the edge says is not to be understood.
    """
    for edge in lineage:
        if edge.relation == relation:
            try:
                return edge, from_plain(edge.details, kind)
            except msgspec.ValidationError as error:
                raise CorruptError(f"lineage {relation} {edge.path}: {error}") from error
    return None


def relation_of(word: str) -> str:
    """The word of today for one that an earlier version wrote: ``trained_on``, ``parent``."""
    hyphenated = word.replace("_", "-")
    return _EARLIER.get(hyphenated, hyphenated)


def check_edge(edge: ProvenanceEdge) -> ProvenanceEdge:
    """The edge, when it is well-formed. Raises InvalidInputError."""
    if not edge.relation or len(edge.relation) > _MAX_WORD:
        raise InvalidInputError(f"lineage: relation {edge.relation!r:.80}")
    if edge.digest:
        parse_digest(edge.digest)
    if edge.commit is not None:
        parse_digest(edge.commit)
    check_json(edge.path, "the path of an edge of lineage")
    check_json(edge.details, f"lineage of {edge.path!r:.80}")
    return edge


def imported_from(path: str, **details: Any) -> ProvenanceEdge:
    """The edge to what was read from outside of any repository.

    Args:
        path: a URL, which may hold secrets, or a path on this machine, whose folders are nobody
            else's business.
        details: such as "format", "etag" and "sha256"; None is left out.
    """
    known = {name: value for name, value in details.items() if value is not None}
    return ProvenanceEdge(IMPORTED_FROM, public_place(path), "", None, known)


def edges_of(told: Iterable[Mapping[str, Any]]) -> tuple[ProvenanceEdge, ...]:
    """The edges in a dataset's lineage; maps that are none, of other writers, are passed over."""
    return tuple(edge for one in told if (edge := _edge_of(one)) is not None)


def with_edges(
    told: Iterable[Mapping[str, Any]], more: Iterable[ProvenanceEdge]
) -> tuple[Mapping[str, Any], ...]:
    """A dataset's lineage with more edges: each once, the newest `MAX_EDGES`.

    Of syncs with a source the newest alone stays: the digest of its edge is linked. Of derivations
    that are repeated as well: the dataset is what the newest made of it.
    """
    found = [*told]
    for edge in more:
        form = check_edge(edge).to_json()
        same: Callable[[Mapping[str, Any]], bool] = form.__eq__
        if edge.relation == SYNCED_WITH:
            same = _is_sync_with(edge.path)
        elif is_derivation(form):
            same = is_derivation
        found = [one for one in found if not same(one)] + [form]
    return tuple(found[-MAX_EDGES:])


def synced_states(told: Iterable[Mapping[str, Any]]) -> dict[str, Digest]:
    """Datasets of the rows that sources had when they were last synced, by path of the source."""
    return {
        edge.path: Digest(edge.digest)
        for edge in edges_of(told)
        if edge.relation == SYNCED_WITH and edge.digest
    }


def is_derivation(one: Mapping[str, Any]) -> bool:
    """Whether an edge, as a map, is of a derivation that is repeated when its source changes."""
    details = one.get("details")
    known = isinstance(details, Mapping) and isinstance(details.get(IDENTITY), str)
    return known and one.get("relation") == DERIVED_FROM


def _is_sync_with(path: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda one: one.get("relation") == SYNCED_WITH and one.get("path") == path


def public_place(path: str) -> str:
    """A URL without user, password, query and fragment; of a local path the last component.

    These are what may hold secrets, and a user's own folders are nobody's business.
    """
    if "://" not in path or path.startswith("file://"):
        return PurePath(path.removeprefix("file://")).name or "."
    scheme, _, rest = path.partition("://")
    authority, slash, place = rest.partition("?")[0].partition("#")[0].partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{place}"


def _edge_of(told: Mapping[str, Any]) -> ProvenanceEdge | None:
    try:
        return check_edge(ProvenanceEdge(**told))
    except (TypeError, AttributeError, ValueError, InvalidInputError):
        return None
