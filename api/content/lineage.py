"""Lineage of what a commit holds: what it came from and what came from it, as a graph.

Edges are what things say of themselves, as the catalog has them of all commits. A caller is given
those of things that they may read; whether anything else is stored is not told.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from tensorrepo.api.content.catalogs import Catalogs
from tensorrepo.api.content.commit_content import CommitContent, Record
from tensorrepo.api.content.runs import find_run
from tensorrepo.formats.common.provenance import RELATIONS, public_place, relation_of
from tensorrepo.query.lineage import LineageNode, LineageStep, versions_of, walk
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.suggest import did_you_mean

MOST_EDGES: Final = 10_000


class LineageThing(Record):
    """A version of something, a run, or a place outside."""

    key: str = Field(description="Digest, id of a run, or URL: names it in the edges.")
    kind: str = Field(description="dataset, model, run, view, file or url.")
    path: str
    commit: str | None = None
    stored: bool = Field(description="Whether it is here, for this caller.")


class LineageEdge(Record):
    """`subject` was <relation> `origin`."""

    subject: str = Field(description="Key of the thing that came from the other.")
    relation: str = Field(examples=["trained-on"])
    origin: str
    depth: int = Field(description="How many edges away from what was asked about.")
    up: bool = Field(description="Whether it leads to what it came from.")
    details: dict[str, Any] = Field(description="How: seed, position of a stream, rows, ...")


class LineageGraph(Record):
    """Things and edges around one of them."""

    start: str = Field(description="Key of what was asked about.")
    things: list[LineageThing]
    edges: list[LineageEdge]
    complete: bool = Field(description="Whether these are all; else give a depth.")


@dataclass(frozen=True, slots=True)
class LineageRequest:
    """What is asked of a lineage.

    Attributes:
        up: whether what it came from is wanted.
        down: whether what came from it is.
        depth: how many edges away at most; None: as far as it goes.
        relations: only over these; none: over all.
        every_version: whether all versions that were ever at this path are meant.
    """

    up: bool = True
    down: bool = True
    depth: int | None = None
    relations: tuple[str, ...] = ()
    every_version: bool = False

    def __post_init__(self) -> None:
        if not (self.up or self.down):
            raise InvalidInputError("a lineage is of what came before, or behind, or both")
        for word in self.relations:
            if relation_of(word) not in RELATIONS:
                known = sorted(RELATIONS)
                there = did_you_mean(word, known, f"There are {', '.join(known)}.")
                raise NotFoundError(f"no relation {word!r:.80}.{there}")


@dataclass(frozen=True, slots=True)
class EntryLineage:
    """Edges around one thing, the nearest first, as drawings take them.

    Attributes:
        start: what was asked about.
        up: edges to what it came from.
        down: edges to what came from it.
        is_complete: whether these are all.
    """

    start: LineageNode
    up: tuple[LineageStep, ...]
    down: tuple[LineageStep, ...]
    is_complete: bool

    def graph(self) -> LineageGraph:
        """The same as things and edges."""
        steps = [*((True, step) for step in self.up), *((False, step) for step in self.down)]
        things = {self.start.key: self.start}
        for _, step in steps:
            for node in (step.subject, step.origin):
                things.setdefault(node.key, node)
        return LineageGraph(
            start=self.start.key,
            things=[_thing(node) for node in things.values()],
            edges=[_edge(step, up=up) for up, step in steps],
            complete=self.is_complete,
        )


def lineage_of(
    content: CommitContent, catalogs: Catalogs, path: str, asked: LineageRequest | None = None
) -> EntryLineage:
    """The lineage of the entry at `path` of a commit, or of a URL.

    Raises:
        NotFoundError: there is no such entry.
    """
    wanted = asked or LineageRequest()
    start = _start(content, path)
    with catalogs.reading(content.access) as (connection, visible):
        keys = [start.key]
        if wanted.every_version:
            keys = sorted({start.key, *versions_of(connection, path, visible)})
        found = [
            walk(
                connection,
                keys,
                up=up,
                depth=wanted.depth,
                relations=wanted.relations,
                limit=MOST_EDGES,
                visible=visible,
            )
            if on
            else []
            for up, on in ((True, wanted.up), (False, wanted.down))
        ]
    complete = all(len(steps) < MOST_EDGES for steps in found)
    return EntryLineage(start, tuple(found[0]), tuple(found[1]), complete)


def _start(content: CommitContent, path: str) -> LineageNode:
    if "://" in path:
        place = public_place(path)
        return LineageNode("url", place, place)
    if path.startswith("runs/"):
        run = find_run(content.access, path.removeprefix("runs/"))
        return LineageNode("run", run.id, path, None, stored=True)
    entry = content.entry(path)
    return LineageNode(entry.kind.label, entry.digest, path, content.commit, stored=True)


def _thing(node: LineageNode) -> LineageThing:
    return LineageThing(
        key=node.key, kind=node.kind, path=node.path, commit=node.commit, stored=node.stored
    )


def _edge(step: LineageStep, *, up: bool) -> LineageEdge:
    return LineageEdge(
        subject=step.subject.key,
        relation=step.relation,
        origin=step.origin.key,
        depth=step.depth,
        up=up,
        details=step.details,
    )
