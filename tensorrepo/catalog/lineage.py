"""Lineage handle of the SDK: ancestors, descendants, and what they mean for a model.

`Repository.lineage` names the entry; the methods query the catalog, over all commits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
from sqlalchemy import Connection

from tensorrepo.catalog.catalog import catalog_of
from tensorrepo.catalog.sql import sql
from tensorrepo.context import Context
from tensorrepo.formats.common.arguments import check_instance, counted, flag, listed, text, whole
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.common.provenance import (
    CHECKPOINT_OF,
    CONSTRUCTED_FROM,
    DERIVED_FROM,
    LOSSY_OF,
    MADE_BY,
    MERGED_FROM,
    MERGED_ONTO,
    QUANTISED_FROM,
    RELATIONS,
    SLICED_FROM,
    TRAINED_ON,
    public_place,
    relation_of,
)
from tensorrepo.formats.dataset.diff import DatasetDiff, diff_datasets
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    live_rows,
    narrowed,
    open_dataset,
    row_id_table,
)
from tensorrepo.formats.dataset.selecting.row_bits import bits_of
from tensorrepo.formats.dataset.selecting.select_rows import matching_rows, rows_of_ids
from tensorrepo.formats.dataset.selecting.sql_condition import read_condition
from tensorrepo.formats.dataset.streaming.order.items import RowSelection
from tensorrepo.formats.views import open_view, physical_rows
from tensorrepo.query import lineage as core
from tensorrepo.query.catalog import database
from tensorrepo.query.drawing.lineage import Drawing, draw_steps
from tensorrepo.query.lineage import LineageNode, LineageStep
from tensorrepo.query.sql.repository_tables import SELF
from tensorrepo.query.untrusted.sandbox import QueryLimits
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, PermissionDenied
from tensorrepo.repo.ids import Digest, parse_digest
from tensorrepo.repo.suggest import did_you_mean
from tensorrepo.repo.tables import Cell, RecordList, RecordTable, Shown, printable
from tensorrepo.runs.record import RunRecord, Runs

_SHOWN: Final = frozenset(
    {"seed", "epoch", "position", "step", "weight", "sql", "function", "where", "view"}
)
# A condition that a lineage tells is as strange as its repository; rows are counted, not shown.
_CONDITION_LIMITS: Final = QueryLimits(seconds=60.0, rows=1 << 40, bytes=1 << 40)
_UNTRAINED: Final = frozenset(  # a model that is one of these learned what its origins did
    {DERIVED_FROM, MERGED_FROM, MERGED_ONTO, SLICED_FROM, CONSTRUCTED_FROM, QUANTISED_FROM}
    | {LOSSY_OF}
)
_SPACES: Final = ("datasets/", "models/", "views/", "files/", "runs/")


@dataclass(frozen=True, slots=True, repr=False)
class Kinship(Shown):
    """What something came from, or what came from it: edges, the nearest first.

    `versions` are the keys of all that was asked about, where that is more than `start`.
    """

    start: LineageNode
    steps: tuple[LineageStep, ...]
    up: bool
    versions: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[LineageStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def nodes(self) -> tuple[LineageNode, ...]:
        """What was found, each once, the nearest first; without the start."""
        ends = (step.origin if self.up else step.subject for step in self.steps)
        asked = {self.start.key, *self.versions}
        found = {node.key: node for node in ends if node.key not in asked}
        return tuple(found.values())

    @property
    def paths(self) -> list[str]:
        """Paths of `nodes`, each once."""
        return list(dict.fromkeys(node.path for node in self.nodes))

    def to_table(self) -> RecordTable:
        """A row for each edge."""
        columns: dict[str, Cell] = {
            "relation": "relation",
            "path": lambda step: self._end(step).path,
            "version": lambda step: _version(self._end(step)),
            ">edges away": "depth",
            "of": lambda step: (step.subject if self.up else step.origin).path,
        }
        return RecordTable.of(self.steps, columns, repr(self)[1:-1])

    def __str__(self) -> str:
        return "\n".join(map(printable, self.lines()))

    def __repr__(self) -> str:
        what = "came from" if self.up else "made of"
        return f"<{counted(len(self.nodes), 'thing')} {what} {_title(self.start)}>"

    def _end(self, step: LineageStep) -> LineageNode:
        return step.origin if self.up else step.subject

    def joined(self, other: Kinship) -> Kinship:
        """The edges of both, to be drawn."""
        return replace(self, steps=(*self.steps, *other.steps))

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins({"start": self.start, "steps": self.steps})
        return found

    def dot(self) -> str:
        """For Graphviz: an arrow from each thing to what it came from."""
        ends = [node for step in self.steps for node in (step.subject, step.origin)]
        nodes = {node.key: node for node in [*ends, self.start]}
        names = {key: f"n{number}" for number, key in enumerate(nodes)}
        lines = [f"{names[key]} [label={_quoted(_title(node))}]" for key, node in nodes.items()]
        lines += [
            f"{names[step.subject.key]} -> {names[step.origin.key]} "
            f"[label={_quoted(step.relation)}]"
            for step in self.steps
        ]
        return "\n".join(["digraph lineage {", *(f"  {line};" for line in lines), "}"])

    def lines(self) -> Iterator[str]:
        """A tree for people; what was shown before is not unfolded again."""
        yield _title(self.start)
        beyond: dict[str, list[LineageStep]] = {}
        for step in self.steps:
            near = (step.subject if self.up else step.origin).key
            key = self.start.key if near in self.versions else near
            beyond.setdefault(key, []).append(step)
        yield from _tree(beyond, self.start.key, up=self.up)


@dataclass(frozen=True, slots=True)
class SawDeleted:
    """A model that was trained on rows which the dataset has no more.

    Attributes:
        model: which.
        dataset: the version that it was trained on.
        deleted: rows of that version that are gone, of those that were chosen where that is known;
            None: that version is not stored any more, so which rows it had is unknown.
        seen: "all" of its rows, when it went through the whole of it at least once; else a "part",
            or "unknown".
        details: the place that the stream had reached.
    """

    model: LineageNode
    dataset: LineageNode
    deleted: int | None
    seen: str
    details: dict[str, Any]

    @property
    def summary(self) -> str:
        """How many rows are gone, or why that is not known."""
        if self.deleted is None:
            return "unknown: that version is not stored any more"
        return f"{self.deleted:,}"


class SawDeletedList(RecordList[SawDeleted]):
    """Models that were trained on rows which are gone."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "model": "model.path",
        "version": lambda saw: saw.model.key[:12],
        "trained on": lambda saw: saw.dataset.key[:12],
        "rows gone": "summary",
        "saw of it": "seen",
    }


@dataclass(frozen=True, slots=True)
class DataChange:
    """What differs in one dataset between the trainings of two models; None: it had none of it."""

    path: str
    old: str | None
    new: str | None
    diff: DatasetDiff | None

    @property
    def summary(self) -> str:
        """In a few words."""
        if self.old == self.new:
            return "the same version"
        if self.old is None or self.new is None:
            return "only the new one" if self.old is None else "only the old one"
        return "a version is not stored any more" if self.diff is None else self.diff.summary


class DataChangeList(RecordList[DataChange]):
    """What differs in the data of two models, by dataset."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "dataset": "path",
        "old": lambda change: (change.old or "-")[:12],
        "new": lambda change: (change.new or "-")[:12],
        "what differs": "summary",
    }


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that making a model again needs: `ok`, and why, or why not."""

    what: str
    ok: bool
    why: str


class FindingList(RecordList[Finding]):
    """What making a model again needs, and whether it is there."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "": lambda one: "yes" if one.ok else "NO",
        "needed": "what",
        "why": "why",
    }


class Lineage(Shown):
    """Of one thing. See `Repository.lineage`."""

    def __init__(
        self,
        context: Context,
        start: LineageNode,
        keys: tuple[str, ...],
        below: tuple[str, ...] | None = None,
    ) -> None:
        """Made by `Repository.lineage`."""
        self.start = start
        self._context = context
        self._keys = keys  # of the versions whose ancestors are asked for
        self._below = below or keys  # of those whose descendants are

    @classmethod
    def of(
        cls,
        context: Context,
        path: str,
        ref: str | None = None,
        *,
        all_versions: bool = False,
        at: str = "main",
    ) -> Lineage:
        """See `Repository.lineage`; `at` is the commit that is looked at where no `ref` is said."""
        flag("all_versions", all_versions)
        if "://" in text("path", path):
            place = public_place(path)
            return cls(context, LineageNode("url", place, place), (place,))
        if path.startswith("runs/"):
            run = Runs(context)[path.removeprefix("runs/")]
            return cls(context, LineageNode("run", run.id, path, None, True), (run.id,))
        path = _whole_path(context, path, ref or at)
        start = _stored(context, path, ref or at)
        own = (start.key,)
        if ref is not None and not all_versions:
            return cls(context, start, own)
        with catalog_of(context).reading() as connection:
            every = tuple({*own, *core.versions_of(connection, path)})
        return cls(context, start, every if all_versions else own, every)

    def ancestors(
        self, *, depth: int | None = None, relations: Iterable[str] | str = ()
    ) -> Kinship:
        """What it came from.

        Args:
            depth: how many edges away at most; None: as far as it goes.
            relations: only over these, such as ``["trained-on"]``; none: over all.

        Raises:
            NotFoundError: no such relation; names near ones.
        """
        return self._walk(depth, relations, up=True)

    def descendants(
        self, *, depth: int | None = None, relations: Iterable[str] | str = ()
    ) -> Kinship:
        """What came from it; arguments are those of `ancestors`.

        Of a name without a ref: from any version that was ever there, since what was trained on
        last week's version of a dataset was trained on that dataset.
        """
        return self._walk(depth, relations, up=False)

    def saw_deleted(self) -> SawDeletedList:
        """Of a dataset: models that were trained on rows which this version of it has no more.

        Also those trained on versions that are not stored any more: they may have been.
        """
        self._need("dataset")
        with catalog_of(self._context).reading() as connection:
            steps = core.trained_on(connection, self.start.path)
        found = [self._saw(step) for step in steps]
        return SawDeletedList(
            sorted(
                (one for one in found if one.deleted != 0),
                key=lambda one: (one.model.path, one.model.key, one.dataset.key),
            )
        )

    def data_changes(self, other: Lineage) -> DataChangeList:
        """Of a model: what `other` was trained on in place of its datasets."""
        check_instance(
            "other", other, Lineage, "the lineage of a model, as repo.lineage(...) gives it"
        )
        old, new = self._trained_on(), other._trained_on()
        return DataChangeList(
            self._changed(path, old.get(path), new.get(path)) for path in sorted({*old, *new})
        )

    def reproducible(self) -> FindingList:
        """Of a model: what making it again from what is stored needs, and whether it is there."""
        self._need("model")
        steps = [step for step in self.ancestors() if step.origin.kind not in {"run", "url"}]
        own = self.ancestors(depth=1)
        stored = (_stored_finding(step) for step in steps if step.subject.kind == "model")
        found = FindingList(stored)
        made_of = any(step.relation in _UNTRAINED for step in own)
        if not any(step.relation == TRAINED_ON for step in (steps if made_of else own)):
            found.append(Finding("data", False, "not known what it was trained on"))
        found += [_order_finding(step) for step in own if step.relation == TRAINED_ON]
        runs = [run for step in own if (run := self._run(step)) is not None]
        found += [_code_finding(run) for run in runs]
        if not runs:
            found.append(Finding("run", False, "no run is known that made it, so no code is"))
        return found

    def draw(
        self,
        to: str | Path | None = None,
        *,
        up: bool = True,
        down: bool = True,
        depth: int | None = None,
        relations: Iterable[str] | str = (),
        overwrite: bool = False,
    ) -> Drawing:
        """Draw what it came from and what came from it: origins on the left.

        Args:
            to: path of a file to write, ending in ``.svg`` or ``.png``; None: none is written.
            up: whether its ancestors are drawn.
            down: whether its descendants are drawn.
            depth: how many edges away at most; None: as far as it goes.
            relations: only over these, such as ``["trained-on"]``; none: over all.
            overwrite: whether a file that is there is replaced.

        Returns:
            The drawing, which a notebook shows.

        Raises:
            InvalidInputError: more than `MOST_DRAWN` things, neither `up` nor `down`, or a file
                that is there.
            UnsupportedError: PNG, without matplotlib.
        """
        if not up and not down:
            raise InvalidInputError("draw takes up=True, down=True, or both: neither draws nothing")
        asked = [each for each, on in ((self.ancestors, up), (self.descendants, down)) if on]
        kin = [ask(depth=depth, relations=relations) for ask in asked]
        drawing = draw_steps(self.start, [step for one in kin for step in one.steps])
        if to is not None:
            drawing.save(to, overwrite=overwrite)
        return drawing

    def to_table(self) -> RecordTable:
        """What it came from, and what came from it, as trees."""
        lines = [repr(self)[1:-1], "came from:", *self.ancestors().lines()]
        return RecordTable((*lines, "made of it:", *self.descendants().lines()))

    def __repr__(self) -> str:
        return f"<lineage of {_title(self.start)}>"

    def _walk(self, depth: int | None, relations: Iterable[str] | str, *, up: bool) -> Kinship:
        words = [relations] if isinstance(relations, str) else listed("relations", relations)
        most = None if depth is None else whole("depth", depth, 1)
        with catalog_of(self._context).reading() as connection:
            _check_relations(connection, words)
            keys = self._keys if up else self._below
            steps = core.walk(connection, keys, up=up, depth=most, relations=words)
        return Kinship(self.start, tuple(steps), up, keys)

    def _need(self, kind: str) -> None:
        if self.start.kind != kind:
            raise InvalidInputError(f"{self.start.path} is a {self.start.kind}, not a {kind}")

    def _trained_on(self) -> dict[str, str]:
        """Versions of datasets that it, or what it was tuned from, was trained on: the nearest."""
        self._need("model")
        steps = [step for step in self.ancestors() if step.relation == TRAINED_ON]
        return {step.origin.path: step.origin.key for step in reversed(steps)}

    def _saw(self, step: LineageStep) -> SawDeleted:
        old = step.origin.key
        diff = self._diff(old, self.start.key) if old != self.start.key else None
        deleted = diff.rows_removed if diff is not None else None if old != self.start.key else 0
        if deleted:
            chosen = self._gone_of_chosen(step)
            deleted = deleted if chosen is None else chosen
        seen = _seen(step.details, None if diff is None else diff.old_rows)
        return SawDeleted(step.subject, step.origin, deleted, seen, step.details)

    def _gone_of_chosen(self, step: LineageStep) -> int | None:
        """Rows that are gone of those that were chosen to be seen; None: not known which."""
        objects, told = self._context.core.objects, step.details
        if "selection" not in told or not ("where" in told or "view_digest" in told):
            return None
        try:
            old, new = (
                open_dataset(objects, Digest(key)) for key in (step.origin.key, self.start.key)
            )
            rows = _told_rows(self._context, old, told)
        except (NotFoundError, InvalidInputError, PermissionDenied):
            return None
        numbers = live_rows(old).live(rows)
        # What was read is known by its digest: the text may mean other rows by now.
        if RowSelection(bits_of(old.rows, [numbers]), None, "").digest != told["selection"]:
            return None
        return int((rows_of_ids(new, row_id_table(old).of(rows)) < 0).sum())

    def _run(self, step: LineageStep) -> RunRecord | None:
        """The run that made it, where the edge says so and the repository has it."""
        runs, name = Runs(self._context), step.origin.path.removeprefix("runs/")
        if step.relation not in {MADE_BY, CHECKPOINT_OF} or name not in runs:
            return None
        return runs[name] if runs[name].id == step.origin.key else None

    def _changed(self, path: str, old: str | None, new: str | None) -> DataChange:
        both = old is not None and new is not None and old != new
        return DataChange(path, old, new, self._diff(old, new) if both else None)

    def _diff(self, old: Any, new: Any) -> DatasetDiff | None:
        """None where one of the versions is not stored any more."""
        try:
            return diff_datasets(self._context.core.objects, old, new)
        except NotFoundError:
            return None


def _told_rows(context: Context, dataset: StoredDataset, told: Mapping[str, Any]) -> Ints:
    """Physical rows that a lineage tells of.

    Raises:
        NotFoundError: the view that they were chosen from is not stored any more.
        InvalidInputError: a condition that does not fit, or takes too much to answer.
    """
    chosen = dataset
    if "view_digest" in told:
        view = open_view(context.core.objects, parse_digest(told["view_digest"]))
        chosen = narrowed(dataset, physical_rows(dataset, view))
    every = np.arange(chosen.rows)
    if "where" in told:
        condition = read_condition(text("a condition", told["where"]), chosen.schema)
        found = None if condition.expression is None else matching_rows(chosen, condition)
        every = _asked(context, chosen, condition.sql) if found is None else found
    return live_rows(chosen).physical(every)


def _asked(context: Context, dataset: StoredDataset, condition: str) -> Ints:
    query = f"SELECT row_number FROM {SELF} WHERE (\n{condition}\n)"  # noqa: S608 - in a sandbox
    answer = sql(context, query, this=dataset, untrusted=_CONDITION_LIMITS)
    parts = [batch.column(0).to_numpy() for batch in answer.batches()]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))


def _seen(place: Mapping[str, Any], rows: int | None) -> str:
    """How much of a dataset a stream had given; None: how many rows there were is not known."""
    position, epoch = place.get("position"), place.get("epoch")
    if not isinstance(position, int) or not isinstance(epoch, int):
        return "unknown"
    if "selection" in place:
        return "part"
    if epoch > 0:
        return "all"
    return "unknown" if rows is None else "all" if position >= rows else "part"


def _check_relations(connection: Connection, words: Iterable[str]) -> None:
    """Whether each is a relation of ours, or one that an edge has: others are carried along."""
    unknown = [word for word in words if relation_of(text("a relation", word)) not in RELATIONS]
    if not unknown:
        return
    known = sorted({*RELATIONS, *database.relations(connection)})
    for word in unknown:
        if word not in known:
            there = did_you_mean(word, known, f"There are {', '.join(known)}.")
            raise NotFoundError(f"no relation {word!r:.80}.{there}")


def _whole_path(context: Context, path: str, ref: str) -> str:
    """The path that a name means at `ref`: ``net`` is ``models/net`` if nothing else is so called.

    Raises:
        InvalidInputError: there is none, or several.
    """
    if path.startswith(_SPACES):
        return path
    tree = context.resolve(ref).commit.tree
    paths = [f"{space}{path}" for space in _SPACES if context.core.entry(tree, space + path)]
    if len(paths) != 1:
        raise InvalidInputError(
            f"lineage of {path!r:.200}: expected a whole path, such as "
            f"{' or '.join(paths) or f'models/{path:.80}'}, runs/NAME, or a URL"
        )
    return paths[0]


def _stored(context: Context, path: str, ref: str) -> LineageNode:
    revision = context.resolve(ref)
    entry = context.core.entry(revision.commit.tree, path)
    if entry is None:
        there = [at for at, _ in context.core.entries(revision.commit.tree)]
        raise NotFoundError(
            f"no {path} in commit {revision.digest:.12} ({ref})"
            + (f"; there are {', '.join(there[:8])}" if there else "")
        )
    return LineageNode(entry.kind.label, entry.digest, path, revision.digest, True)


def _stored_finding(step: LineageStep) -> Finding:
    what = f"{step.relation} {step.origin.path}"
    if step.origin.stored:
        return Finding(what, True, f"version {step.origin.key:.12} is stored")
    return Finding(what, False, f"version {step.origin.key:.12} is not stored any more")


def _order_finding(step: LineageStep) -> Finding:
    what = f"order of {step.origin.path}"
    if {"seed", "epoch", "position"} <= step.details.keys():
        place = ", ".join(f"{name} {step.details[name]}" for name in ("seed", "epoch", "position"))
        return Finding(what, True, place)
    return Finding(what, False, "seed and position of the stream were not noted")


def _code_finding(run: RunRecord) -> Finding:
    what, code = f"code of runs/{run.name}", run.document.attempts[-1].code
    if code is None:
        return Finding(what, False, "it did not lie in a git checkout")
    if code.dirty:
        return Finding(what, False, f"files differed from git commit {code.commit:.12}")
    return Finding(what, True, f"git commit {code.commit:.12}")


def _title(node: LineageNode) -> str:
    version = _version(node)
    return f"{node.path or node.kind} ({version})" if version else node.path or node.kind


def _tree(beyond: Mapping[str, list[LineageStep]], start: str, *, up: bool) -> Iterator[str]:
    """Lines of a tree, from a stack: lineages may be deeper than Python's own reaches."""
    shown = {start}
    waiting = [("", step, step is beyond[start][-1]) for step in reversed(beyond.get(start, []))]
    while waiting:
        indent, step, last = waiting.pop()
        node = step.origin if up else step.subject
        told = [f"{name} {value}" for name, value in step.details.items() if name in _SHOWN]
        if not (up or indent) and step.origin.key != start:
            told.insert(0, f"version {step.origin.key:.12}")
        below = beyond.get(node.key, [])
        again = node.key in shown and bool(below)
        title = ", ".join([f"{step.relation} {_title(node)}", *told])
        yield f"{indent}{'└─' if last else '├─'} {title}{' (see above)' if again else ''}"
        if not again:
            shown.add(node.key)
            deeper = f"{indent}{'   ' if last else '│  '}"
            waiting += [(deeper, one, one is below[-1]) for one in reversed(below)]


def _version(node: LineageNode) -> str:
    # What has no digest is no version.
    shown = "" if node.kind in {"url", "run"} or node.key == node.path else node.key[:12]
    return shown if node.stored or not shown else f"{shown}, not stored"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
