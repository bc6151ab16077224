"""Repository handle of the SDK: history, and verbs that load what does the work when called."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from tensorrepo import lazy
from tensorrepo.formats.common.arguments import listed, real, text, whole
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.merge_branches import MergeOutcome, cherry_pick, merge, revert
from tensorrepo.repo.changes.moments import parse_span
from tensorrepo.repo.changes.revisions import Revision
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import commit_lines, walk
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log import append
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.tables import Cell, RecordList, RecordMap, RecordTable, Shown, moment_text
from tensorrepo.repository_exchange import RepositoryExchange
from tensorrepo.repository_models import RepositoryModels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tensorrepo.catalog.catalog import Catalog
    from tensorrepo.catalog.lineage import Lineage
    from tensorrepo.catalog.registry import Registry
    from tensorrepo.context import Context
    from tensorrepo.datasets.blame import Blame
    from tensorrepo.datasets.dataset import Dataset, View
    from tensorrepo.formats.dataset.selecting.select_rows import Where
    from tensorrepo.formats.model.state.lossy import LossyState
    from tensorrepo.models.checkpointer import Checkpointer, RetentionPolicy, Saved
    from tensorrepo.models.model import Model
    from tensorrepo.pinned import EntryHandles, PinnedRepository
    from tensorrepo.query.compare.comparison import Comparison
    from tensorrepo.query.sql.duck import Params
    from tensorrepo.query.sql.results import Result
    from tensorrepo.query.untrusted.sandbox import QueryLimits
    from tensorrepo.repo.changes.disk_usage import StoreUsage
    from tensorrepo.repo.changes.expire import Expiry
    from tensorrepo.repo.changes.gc_collect import CollectionReport
    from tensorrepo.repo.changes.owner_usage import OwnersUsage
    from tensorrepo.repo.changes.transaction import LandedCommit
    from tensorrepo.repo.history.commits import Commit
    from tensorrepo.report.page import WrittenReport
    from tensorrepo.runs.record import Runs
    from tensorrepo.runs.run import Run
    from tensorrepo.transaction import Transaction
    from tensorrepo.verbs.purge import PurgePlan, PurgeReport
    from tensorrepo.verbs.watching import WatchedCommit


@dataclass(frozen=True, slots=True, repr=False)
class LoggedCommit(Shown):
    """One commit of a history."""

    digest: Digest
    commit: Commit

    def to_table(self) -> RecordTable:
        """Which, by whom, when, and its message."""
        return RecordTable(commit_lines(self.digest, self.commit))

    def __repr__(self) -> str:
        subject = self.commit.message.partition("\n")[0]
        return f"<commit {self.digest:.12} by {self.commit.author}: {subject}>"


class CommitList(RecordList[LoggedCommit]):
    """Commits of a history, the newest first."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "commit": lambda one: one.digest[:12],
        "author": lambda one: one.commit.author.partition(" <")[0],
        "date": lambda one: moment_text(one.commit.time_ns),
        "message": lambda one: one.commit.message.partition("\n")[0],
    }


class RefMap(RecordMap[Digest]):
    """Refs by name, and the commits they stand at."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "name": itemgetter(0),
        "commit": lambda pair: pair[1][:12],
    }


class EntryMap(RecordMap[Entry]):
    """Entries of a commit by path."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "path": itemgetter(0),
        "kind": lambda pair: pair[1].kind.noun,
        "digest": lambda pair: pair[1].digest[:12],
    }


class RepositoryHistory:
    """What a repository tells of its history, and what changes it. See `Repository`."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @property
    def author(self) -> str:
        """``Name <email>`` of commits. Raises InvalidInputError when no setting names one."""
        return self.context.author

    def branches(self) -> RefMap:
        """Names of branches, and the commits they stand at."""
        return self._refs(refs.BRANCHES)

    def tags(self) -> RefMap:
        """Names of tags, and the commits they name."""
        return self._refs(refs.TAGS)

    def resolve(self, ref: str) -> Revision:
        """The commit that `ref` names. Raises NotFoundError with near names."""
        return self.context.resolve(ref)

    def log(self, ref: str = "main", *, limit: int | None = None) -> CommitList:
        """Commits that lead to `ref`, the newest first."""
        most = None if limit is None else whole("limit", limit)
        history = walk(self.context.core.objects, [self.resolve(ref).digest])
        return CommitList(LoggedCommit(*each) for each in islice(history, most))

    def watch(
        self,
        ref: str = "main",
        *,
        since: str | None = None,
        path: str = "",
        poll_seconds: float = 2.0,
        timeout: str | None = None,
    ) -> Iterator[WatchedCommit]:
        """New commits of a branch as they come, oldest first, for ever.

        Behind a service they come as its events tell; else the log is looked at. After a reset of
        the branch its tip comes again.

        Args:
            ref: a branch, or the whole name of a ref, such as ``runs/exp1/100``.
            since: the commit to begin behind; None: where the branch stands now.
            path: only commits that changed this entry.
            poll_seconds: seconds between two looks at the log.
            timeout: span of time, such as "1h", after which it ends when nothing comes.

        Raises:
            NotFoundError: no such ref.

        Example:
            ``for new in repo.watch("main"): print(new.digest, new.before)``
        """
        return lazy.watch(
            self.context.core,
            text("ref", ref),
            None if since is None else self.resolve(since).digest,
            path=text("path", path),
            poll_seconds=real("poll_seconds", poll_seconds, 0.01),
            timeout_seconds=None if timeout is None else parse_span(text("timeout", timeout)),
        )

    def create_branch(self, name: str, ref: str = "main") -> None:
        refs.create_branch(
            self.context.core, text("name", name), self.resolve(ref).digest, actor=self.author
        )

    def delete_branch(self, name: str) -> None:
        refs.delete_ref(self.context.core, refs.BRANCHES + text("name", name), actor=self.author)

    def create_tag(self, name: str, ref: str = "main", *, note: str = "") -> None:
        """Name a commit for ever: a tag never moves."""
        at = self.resolve(ref).digest
        refs.create_tag(self.context.core, text("name", name), at, actor=self.author, note=note)

    def merge(
        self,
        ref: str,
        into: str = "main",
        *,
        message: str | None = None,
        strategy: str | Mapping[str, str] = "fail",
    ) -> MergeOutcome:
        """Bring the history of `ref` into a branch: one merge commit, or nothing.

        Args:
            ref: what to merge.
            into: the branch.
            message: message of the commit.
            strategy: for what both sides changed: "fail", "ours", "theirs"; of models also
                "average", "slerp", "task-arithmetic" and "ties", which blend the tensors that both
                changed. As a mapping: of single paths, such as ``{"models/net": "average"}``.

        Raises:
            ConflictError: `conflicts` names paths and reasons. Nothing changed.
        """
        return merge(
            self.context.core,
            into,
            self.resolve(ref).digest,
            author=self.author,
            message=message or f"Merge {ref} into {into}",
            called=ref,
            strategy=strategy if isinstance(strategy, str) else "fail",
            by_path={} if isinstance(strategy, str) else strategy,
        )

    def revert(
        self,
        ref: str,
        branch: str = "main",
        *,
        message: str | None = None,
        mainline: int | None = None,
        strategy: str = "fail",
    ) -> LandedCommit | None:
        """Take back on a branch what one commit changed, as a new commit; the rest stays.

        Args:
            ref: the commit to take back.
            branch: what to commit to.
            message: message of the new commit; None: one that says what is reverted.
            mainline: parent of a merge, counted from 1, whose side stays.
            strategy: for conflicts: "fail", "ours" (the branch stays) or "theirs".

        Returns:
            The commit made, None when it would change nothing.

        Raises:
            ConflictError: `conflicts` names paths and reasons. Nothing changed.
            InvalidInputError: a merge without `mainline`, or no such parent.
        """
        return revert(
            self.context.core,
            branch,
            self.resolve(ref).digest,
            author=self.author,
            message=message,
            mainline=mainline,
            strategy=strategy,
        )

    def cherry_pick(
        self,
        ref: str,
        branch: str = "main",
        *,
        message: str | None = None,
        mainline: int | None = None,
        strategy: str = "fail",
    ) -> LandedCommit | None:
        """Repeat on a branch what one commit changed elsewhere; its author and message are kept.

        Arguments, result and errors are those of `revert`.
        """
        return cherry_pick(
            self.context.core,
            branch,
            self.resolve(ref).digest,
            committer=self.author,
            message=message,
            mainline=mainline,
            strategy=strategy,
        )

    def undo(self, branch: str = "main") -> refs.Move:
        """Take back your last change of a branch."""
        return refs.undo(self.context.core, branch, actor=self.author)

    def redo(self, branch: str = "main") -> refs.Move:
        """Take back the last `undo` of a branch."""
        return refs.redo(self.context.core, branch, actor=self.author)

    def status_of(self, txn: str, generation: int | None = None, *, settle: bool = False) -> str:
        """What became of a commit whose outcome was unknown: "landed", "lost" or "unknown".

        Args:
            txn: as `CommitOutcomeUnknown` named it.
            generation: likewise; None: as this machine noted it.
            settle: make an unknown outcome a definite one.

        Raises:
            NotFoundError: no generation was given, and this machine noted none.
        """
        if generation is None:
            pending = self.context.core.log.pending
            noted = {one.txn: one.generation for one in (pending.unresolved() if pending else ())}
            if txn not in noted:
                raise NotFoundError(
                    f"this machine has no note of transaction {txn!r}: give its generation, too"
                )
            generation = noted[txn]
        return append.resolve(self.context.core.log, txn, generation, settle=settle)

    def _refs(self, space: str) -> RefMap:
        refs = sorted(self.context.core.log.refresh().state.refs.items())
        return RefMap((ref.removeprefix(space), at) for ref, at in refs if ref.startswith(space))


class Repository(Shown, RepositoryHistory, RepositoryModels, RepositoryExchange):
    """A repository at one URL. Picklable: another process opens the URL again.

    `ref` arguments are branches, tags, digests (8 digits or more) and ``~n``, ``^n``, ``@{n}``.
    """

    @property
    def url(self) -> str:
        return self.context.url

    @property
    def id(self) -> str:
        """What tells this repository from every other, wherever it is copied to."""
        return self.context.core.id

    @property
    def catalog(self) -> Catalog:
        """The SQL catalog over everything committed; made when it is first asked."""
        return lazy.catalog_of(self.context)

    def diff(self, old: str, new: str = "main", paths: Iterable[str] = ()) -> Comparison:
        """What differs between two commits: entries, columns and rows, tensors.

        ``diff(...).datasets["datasets/photos"]`` compares rows, too: `rows` and `to_arrow` give
        those that were updated, deleted and added, with the values of both sides.
        """
        return lazy.compare(
            self.context.core,
            self.resolve(old).commit.tree,
            self.resolve(new).commit.tree,
            tuple(paths),
            outside=self.context.outside,
        )

    def entries(self, ref: str = "main", prefix: str = "") -> EntryMap:
        """Paths and what lies at them, in one commit."""
        tree = self.resolve(ref).commit.tree
        return EntryMap(self.context.core.entries(tree, text("prefix", prefix)))

    def at(self, ref: str) -> PinnedRepository:
        """The repository as it is in the commit that `ref` names now, to be read.

        Example:
            ``old = repo.at("v1"); old.datasets(), old.sql("SELECT count(*) FROM fashion")``
        """
        return lazy.PinnedRepository(self.context, ref)

    def datasets(self, ref: str = "main") -> EntryHandles[Dataset]:
        """Datasets of a commit by name; each is opened when it is asked for."""
        return lazy.handles(self.context, ref, "datasets")

    def models(self, ref: str = "main") -> EntryHandles[Model]:
        """Models of a commit by name; each is opened when it is asked for."""
        return lazy.handles(self.context, ref, "models")

    def views(self, ref: str = "main") -> EntryHandles[View]:
        """Views of a commit by name; each is opened when it is asked for."""
        return lazy.handles(self.context, ref, "views")

    def dataset(self, name: str, ref: str = "main") -> Dataset:
        """A dataset as it is in the commit that `ref` names now.

        Raises:
            NotFoundError: no such ref, or no dataset of that name in it.
        """
        return lazy.dataset_at(self.context, name, ref)

    def view(self, name: str, ref: str = "main", *, sql: str | None = None) -> View:
        """Rows of a dataset that a query chose, as they were chosen.

        Args:
            name: name of the view.
            ref: the commit that has it; with `sql` the branch to commit to.
            sql: make it, and commit that, too: a query whose column ``row_id`` says which rows are
                meant. Their order is that of the dataset.

        Example:
            ``repo.view("rare", sql="SELECT row_id FROM fashion WHERE label = 'bag'").stream(...)``
        """
        if sql is not None:
            with self.transaction(ref, f"View {name}") as tx:
                tx.create_view(name, sql)
        return lazy.view_at(self.context, name, ref)

    def model(self, name: str, ref: str = "main") -> Model:
        """A model as it is in the commit that `ref` names now; tensors are read when asked for."""
        return lazy.model_at(self.context, name, ref)

    def disk_usage(
        self, path: str = "", ref: str = "main", *, every_ref: bool = False
    ) -> StoreUsage:
        """What entries of a commit, or of every ref, take in the store: what `tensorrepo du` tells.

        Args:
            path: path or name of one entry, or path of a folder of them; "": all.
            ref: the commit.
            every_ref: whether entries of every branch, tag and run are counted instead.

        Example:
            ``repo.disk_usage()["datasets/photos"].unique_bytes``
        """
        core = self.context.core
        trees = lazy.every_tree(core) if every_ref else {ref: self.resolve(ref).commit.tree}
        return lazy.measure_trees(core, trees, path.strip("/"))

    def storage_usage(self, by: Literal["ref", "dataset", "model"] = "ref") -> OwnersUsage:
        """What refs, datasets or models take with all their history: `tensorrepo du --by`.

        Example:
            ``repo.storage_usage("dataset")["datasets/photos"].reclaimable_bytes``
        """
        return lazy.measure_owners(self.context.core, lazy.Owners(by), lazy.decoded_bytes)

    def gc(
        self,
        *,
        grace: str = "3d",
        retention: str | None = None,
        close_leases: bool = False,
        compact: bool = False,
        dry_run: bool = False,
    ) -> CollectionReport:
        """Delete what no branch, tag or run leads to. Safe while others work.

        Before that, branches whose rules say what they keep give up the rest.

        Args:
            grace: span of time, such as "12h": garbage that is younger stays.
            retention: span for which deleted and reset refs are kept; None: the repository's, or 14
                days.
            close_leases: close leases that ran out longer ago than the grace.
            compact: first store models anew whose packs are used by less than half, and put old
                commits and trees together; the report's `packing` tells how many.
            dry_run: change nothing, and tell what would go and what refs hold.

        Raises:
            UnsupportedError: a newer version uses this repository.
        """
        rules = lazy.CollectionRules(
            parse_span(text("grace", grace)),
            None if retention is None else parse_span(text("retention", retention)),
            close_leases,
        )
        core = self.context.core
        now = time.time_ns()
        if dry_run:
            ends = {end for each in lazy.plan_kept(core, now_ns=now) for end in each.ends}
            return lazy.plan_collection(core, rules=rules, ends=ends)
        if compact:
            options = lazy.RepackOptions(self.author, time.time_ns())
            lazy.repack_worn(core, options, time.thread_time)
        lazy.expire_kept(core, actor=self.author, now_ns=now)
        packing = lazy.pack_history(core, actor=self.author, rules=rules) if compact else None
        return replace(lazy.collect_garbage(core, actor=self.author, rules=rules), packing=packing)

    def expire(self, branch: str, keep: str | None = None, *, dry_run: bool = False) -> Expiry:
        """Give up old commits of a branch; `gc` takes what only they led to.

        Args:
            branch: name of the branch.
            keep: commits that stay: "30d" those of the last 30 days, "100" the newest hundred,
                "30d,100" both; None: what the rule of the branch says.
            dry_run: change nothing, and tell what would be given up.
        """
        core, now = self.context.core, time.time_ns()
        rule = None if keep is None else lazy.parse_keep(text("keep", keep))
        if dry_run:
            return lazy.plan_expiry(core, branch, rule, now_ns=now)
        return lazy.expire(core, branch, rule, actor=self.author, now_ns=now)

    def purge(
        self,
        *names: str,
        where: Where | None = None,
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
        tensors: Sequence[str] = (),
        reason: str,
    ) -> PurgeReport:
        """Erase rows or columns of datasets, or tensors of models, from all history, for good.

        Commits keep their digests, and show the data without what was purged; who asks for it gets
        `PurgedError`. `purge_plan` tells before what would go. What held it is collected.

        Args:
            names: names of datasets, or with `tensors` of models; those that are gone by now too.
            where: condition on rows, looked for in every version; or values of key columns.
            rows: ids of rows.
            columns: names of columns.
            tensors: names of tensors; models that hold the same bytes lose them as well.
            reason: why, for the log.

        Raises:
            NotFoundError: no commit has such an entry, or no version of it such a part.
            InvalidInputError: something that is not named has the same bytes; names it.
        """
        request = lazy.purge_request(
            names,
            where=where,
            rows=listed("rows", rows),
            columns=listed("columns", columns),
            tensors=listed("tensors", tensors),
        )
        return lazy.purge(self.context, request, reason=text("reason", reason))

    def purge_plan(
        self,
        *names: str,
        where: Where | None = None,
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
        tensors: Sequence[str] = (),
    ) -> PurgePlan:
        """What `purge` would erase, and what it would not reach. Changes nothing."""
        request = lazy.purge_request(
            names,
            where=where,
            rows=listed("rows", rows),
            columns=listed("columns", columns),
            tensors=listed("tensors", tensors),
        )
        return lazy.plan_purge(self.context, request)

    def file(self, name: str, ref: str = "main") -> bytes:
        """Content of a file."""
        _, _, entry = self.context.entry("files", name, ref, Kind.BLOB)
        return bytes(self.context.core.objects.get(entry.digest).payload)

    @property
    def registry(self) -> Registry:
        """Registered models: versions by number, and aliases that name one of them."""
        return lazy.Registry(self.context)

    def sql(
        self,
        query: str,
        *,
        ref: str = "main",
        params: Params = None,
        memory: int | str = "1GiB",
        untrusted: QueryLimits | None = None,
    ) -> Result:
        """Rows of a query over datasets and the catalog, in DuckDB's SQL.

        Tables are datasets at `ref`, as ``fashion``; at other commits, as ``"fashion@v1"``; and
        those of the catalog, as ``catalog.model_version``. Only the columns and pages that the
        query needs are read. Columns ``row_id`` and ``row_number`` are there for who names them.

        Args:
            query: one statement, or several of which the last one gives the rows.
            ref: the commit of names without one.
            params: values for ``?``, as a list, or for ``$name``, as a mapping: never paste them
                into the text.
            memory: bytes for sorting, joining and grouping; what is beyond goes to temporary files.
            untrusted: answer one SELECT in a process of its own, which can read nothing but these
                tables and is killed at these limits. `memory` is not looked at.

        Raises:
            InvalidInputError: what DuckDB says about the query, or a limit that it went beyond.
            NotFoundError: no such table; names near ones.
            PermissionDenied: an untrusted query asked for something else.

        Example:
            ``repo.sql("SELECT label, count(*) FROM fashion GROUP BY 1").df()``
        """
        return lazy.sql(
            self.context, query, ref=ref, params=params, memory=memory, untrusted=untrusted
        )

    def transaction(
        self, branch: str = "main", message: str = "", *, unchanged: Iterable[str] = ()
    ) -> Transaction:
        """A change of `branch`, to be used in a ``with``: commits at its end, nothing on an error.

        Args:
            branch: what to commit to; the first commit makes it.
            message: message of the commit.
            unchanged: paths that the change relies on: if others change them, it conflicts.
        """
        return lazy.begin_transaction(self.context, branch, message, unchanged)

    def checkpointer(
        self,
        run: str,
        *,
        keep: RetentionPolicy | None = None,
        optimizer: LossyState | None = None,
        start: str | None = None,
        staging: int | str = "4GiB",
        on_saved: Callable[[Saved], None] | None = None,
    ) -> Checkpointer:
        """Saves and loads the checkpoints of a run, at the refs ``runs/<run>/<step>``.

        Args:
            run: its name, such as ``"exp1"``.
            keep: which checkpoints stay; None: the last 3.
            optimizer: ``tr.LossyState(relative=2**-8)`` keeps an optimizer's moments in fewer
                bits, each within that share of its size; None: all is kept bit by bit.
            start: the commit that the run began at, its checkpoints' parent; None: that of branch
                main, where there is one.
            staging: bytes of copies that may wait to be stored.
            on_saved: called on another thread when a checkpoint is durable.

        Example:
            ``checkpointer.save(step, {"model": model.state_dict()}, metrics={"loss": loss})``
        """
        return lazy.checkpointer_of(
            self.context,
            run,
            keep=keep,
            optimizer=optimizer,
            start=start,
            staging=staging,
            on_saved=on_saved,
        )

    def run(
        self,
        name: str,
        *,
        params: Mapping[str, Any] | None = None,
        derived_from: Any = (),
        resume: bool = False,
        system_seconds: float | None = 10.0,
    ) -> Run:
        """A training, to be used in a ``with``: notes what it reads, makes and logs.

        Args:
            name: such as ``"exp1"``; its checkpoints have the same.
            params: JSON values by name.
            derived_from: what it reads beside datasets and models of this repository that it
                opens: one thing or several, see `Run.use`.
            resume: go on with the run of that name, if there is one. Whoever runs it still writes
                it no more.
            system_seconds: seconds between samples of the use of CPU, memory and GPUs, which are
                metrics named ``system/...``; None: none are taken.

        Example:
            ``with repo.run("exp1", params={"lr": 0.1}) as run: run.log_metric("loss", loss, step)``

        Raises:
            ConflictError: there is a run of that name, and not `resume`; when the ``with`` begins.
        """
        return lazy.Run(
            self.context,
            name,
            params=params,
            derived_from=derived_from,
            resume=resume,
            system_seconds=system_seconds,
        )

    def runs(self) -> Runs:
        """All runs by name, as they were last stored: ``repo.runs()["exp1"].points("loss")``."""
        return lazy.Runs(self.context)

    def lineage(self, path: str, ref: str | None = None, *, all_versions: bool = False) -> Lineage:
        """What something came from, and what came from it, over all commits.

        Args:
            path: whole: ``models/net``, ``datasets/photos``, ``runs/exp1``; or a URL.
            ref: the commit whose version at `path` is meant. None: ancestors are those of the
                version in ``main``, descendants those of all versions that were ever at `path`.
            all_versions: ask about the ancestors, too, of all that was ever at `path`.

        Example:
            ``repo.lineage("models/net").ancestors().paths``
        """
        return lazy.Lineage.of(self.context, path, ref, all_versions=all_versions)

    def report(
        self,
        to: str | Path = "report.html",
        ref: str = "main",
        *,
        limit: int | str = "16MB",
        overwrite: bool = False,
    ) -> WrittenReport:
        """Write one self-contained page on a commit: datasets, models, runs, lineage, history.

        Args:
            to: path of the file to write.
            ref: the commit.
            limit: bytes that the page may take.
            overwrite: whether a file that is there is replaced.

        Raises:
            InvalidInputError: the file is there, and not `overwrite`.
        """
        return lazy.write_report(self.context, to, ref, limit=limit, overwrite=overwrite)

    def close(self) -> None:
        self.context.core.close()

    def __getattr__(self, name: str) -> NoReturn:
        raise lazy.no_attribute(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Repository, (self.context,)

    def to_table(self) -> RecordTable:
        """What lies in its branch main: what ``print`` and notebooks show."""
        at = self.branches().get("main")
        tree = None if at is None else self.resolve(at).commit.tree
        return lazy.repository_table(repr(self), self.context.core, tree)

    def __repr__(self) -> str:
        return f"Repository({self.url!r}, id={self.id:.8})"

    def blame(
        self,
        name: str,
        *,
        row: int | None = None,
        row_id: str | None = None,
        key: Mapping[str, Any] | None = None,
        columns: Iterable[str] | None = None,
        ref: str = "main",
    ) -> Blame:
        """Which commits added a row of a dataset, and gave it its values.

        Args:
            name: name of the dataset.
            row: the row's number in `ref`; or
            row_id: its lasting id, also that of a deleted row; or
            key: columns, and the values by which they name this one row.
            columns: only these.
            ref: look back from here.

        Raises:
            InvalidInputError: not exactly one of `row`, `row_id` and `key`.
            NotFoundError: no such row.
        """
        revision, path, _ = self.context.entry("datasets", name, ref, Kind.DATASET)
        return lazy.blame(
            self.context.core.objects,
            path,
            revision.digest,
            row=row,
            row_id=row_id,
            key=key,
            columns=columns,
            outside=self.context.outside,
        )
