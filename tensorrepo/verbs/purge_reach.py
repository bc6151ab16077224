"""Reach of erased data along lineage: what learned from it, was made of it, or read it.

A purge erases rows and tensors, not what others made of them. Lineage says who did: a model that is
trained on the rows, another one that begins with its weights, a run that read them. Each entry of
history is asked, and whoever leads to what is reached is reached itself, until nobody is added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tensorrepo.formats.common.provenance import (
    DERIVED_FROM,
    EVALUATED_ON,
    ProvenanceEdge,
    edges_of,
)
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.runs.run_record import decode_run
from tensorrepo.formats.views import open_view
from tensorrepo.repo.changes.purge import HeldEntry
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import PurgedError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind


@dataclass(frozen=True, slots=True)
class HeldNode:
    """An entry of history, and what it says that it came from.

    Attributes:
        held: the entry.
        names: digests that lineage of others may call it by.
        edges: what it came from.
        words: other texts of it: metadata of a model, parameters of a run.
    """

    held: HeldEntry
    names: frozenset[str]
    edges: tuple[ProvenanceEdge, ...]
    words: Any = None


@dataclass(frozen=True, slots=True)
class ReachedNode:
    """An entry that leads to what is erased, and by which edge."""

    node: HeldNode
    edge: ProvenanceEdge

    def __str__(self) -> str:
        held = self.node.held
        if held.entry.kind is Kind.MODEL:
            where = f"{held.path} of {held.commit:.12}"
            return f"{where}, a model that is {self.edge.relation} {self.edge.path}"
        if held.entry.kind is Kind.RUN:
            return f"{held.path}, a run that read {self.edge.path}"
        return f"{held.path}, made of {self.edge.path}: name it too, if it may hold the same"


def lineage_nodes(core: RepositoryCore, held: Iterable[HeldEntry]) -> tuple[HeldNode, ...]:
    """All entries of history that lineage knows of."""
    return tuple(node for each in held if (node := _node(core, each)) is not None)


def _node(core: RepositoryCore, held: HeldEntry) -> HeldNode | None:
    entry, objects = held.entry, core.objects
    names = frozenset({entry.digest, objects.living(entry.digest)})
    if entry.kind is Kind.MODEL:
        manifest = open_model(objects, core.current(entry)).manifest
        words = [manifest.metadata, manifest.metrics]
        return HeldNode(held, names, manifest.lineage, words)
    if entry.kind is Kind.DATASET:
        root = open_dataset(objects, entry.digest).root
        return HeldNode(held, names, tuple(edges_of(root.lineage)))
    if entry.kind is Kind.VIEW:
        view = open_view(objects, entry.digest)
        edge = ProvenanceEdge(DERIVED_FROM, view.path, view.dataset, view.commit)
        return HeldNode(held, names, (edge,))
    if entry.kind is Kind.RUN:
        run = decode_run(objects.get(entry.digest).payload, entry.digest)
        return HeldNode(held, names | {run.id}, run.inputs, run.params)
    return None


def reached(
    core: RepositoryCore,
    nodes: Collection[HeldNode],
    erased: Iterable[str],
    paths: Collection[str],
) -> Iterator[ReachedNode]:
    """Entries that lead to erased ones, each once, the nearest first.

    Args:
        core: the repository.
        nodes: all entries.
        erased: digests of what loses something, as it is now.
        paths: paths of that. They count for edges to what history does not know.
    """
    known = frozenset().union(*(node.names for node in nodes))
    digests, named = set(erased), set(paths)
    left = [node for node in nodes if digests.isdisjoint(node.names)]
    while left:
        hits = [
            (node, edge)
            for node in left
            if (edge := _leading(core, node, known, digests, named)) is not None
        ]
        if not hits:
            return
        for node, edge in hits:
            digests |= node.names
            named |= {node.held.path} - {""}
            yield ReachedNode(node, edge)
        done = {id(node) for node, _ in hits}
        left = [node for node in left if id(node) not in done]


def _leading(
    core: RepositoryCore,
    node: HeldNode,
    known: Collection[str],
    digests: Collection[str],
    paths: Collection[str],
) -> ProvenanceEdge | None:
    """The first edge of a node that leads to one of `digests`, or to an unknown one of `paths`."""
    for edge in node.edges:
        if edge.relation == EVALUATED_ON:  # that left figures, not data
            continue
        if _living(core, edge.digest) in digests or edge.digest in digests:
            return edge
        if edge.path in paths and edge.path != node.held.path and edge.digest not in known:
            return edge
    return None


def _living(core: RepositoryCore, digest: str) -> str:
    try:
        return core.objects.living(Digest(digest))
    except PurgedError:
        return digest


def repeating(nodes: Iterable[HeldNode], repeats: Callable[[str], bool]) -> Iterator[str]:
    """Models and runs whose metadata, parameters or lineage repeat an erased text."""
    for node in nodes:
        kind = node.held.entry.kind
        if kind in (Kind.MODEL, Kind.RUN) and node.held.path:
            told = [node.words, msgspec.to_builtins(node.edges)]
            if any(map(repeats, texts_in(told))):
                what = "model" if kind is Kind.MODEL else "run"
                where = f"{node.held.path} of {node.held.commit:.12}"
                yield f"{where}, a {what} whose metadata or lineage repeats an erased text"


def texts_in(value: object) -> Iterator[str]:
    """All texts of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from (name, *texts_in(each))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_in(each)
