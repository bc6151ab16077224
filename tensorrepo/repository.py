"""Repository handle of the SDK: its verbs load the modules that do the work when first called."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tensorrepo import lazy
from tensorrepo.formats.arguments import real, whole
from tensorrepo.given import listed, path_in, text
from tensorrepo.history import History
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tensorrepo.blame import Blame
    from tensorrepo.catalog import Catalog
    from tensorrepo.checkpointer import Checkpointer, Saved
    from tensorrepo.compare import Comparison
    from tensorrepo.dataset import Dataset
    from tensorrepo.formats.model.repack.run import Repacked
    from tensorrepo.formats.model.space.usage import SpaceUsage
    from tensorrepo.formats.model.training.lossy import Lossy
    from tensorrepo.lineage import Lineage
    from tensorrepo.model import Model
    from tensorrepo.query.duck import Params
    from tensorrepo.query.results import Result
    from tensorrepo.query.sandbox import Limits
    from tensorrepo.registry import Registry
    from tensorrepo.repo.trees import Entry
    from tensorrepo.retention import Keep
    from tensorrepo.run import Run
    from tensorrepo.runrecord import Runs
    from tensorrepo.transaction import Transaction
    from tensorrepo.view import View


class Repository(History):
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

    def diff(self, old: str, new: str, paths: Iterable[str] = ()) -> Comparison:
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

    def entries(self, ref: str = "main", prefix: str = "") -> dict[str, Entry]:
        """Paths and what lies at them, in one commit."""
        tree = self.resolve(ref).commit.tree
        return dict(self.context.core.entries(tree, text("prefix", prefix)))

    def dataset(self, name: str, ref: str = "main") -> Dataset:
        """A dataset as it is in the commit that `ref` names now.

        Raises:
            NotFoundError: no such ref, or no dataset of that name in it.
        """
        return lazy.dataset_at(self.context, name, ref)

    def view(self, name: str, ref: str = "main", *, sql: str | None = None) -> View:
        """Rows of a dataset that a query chose, as they were chosen.

        Args:
            name: of the view.
            ref: the commit that has it; with `sql` the branch to commit to.
            sql: make it, and commit that, too: a query whose column ``row_id`` says which rows are
                meant. Their order is that of the dataset.

        Example:
            ``repo.view("rare", sql="SELECT row_id FROM fashion WHERE label = 3").stream(...)``
        """
        if sql is not None:
            with self.transaction(ref, f"View {name}") as tx:
                tx.create_view(name, sql)
        return lazy.view_at(self.context, name, ref)

    def model(self, name: str, ref: str = "main") -> Model:
        """A model as it is in the commit that `ref` names now; tensors are read when asked for."""
        return lazy.model_at(self.context, name, ref)

    def model_usage(self, ref: str = "main", *, every_ref: bool = False) -> SpaceUsage:
        """What the models of a commit, or of every ref, take: by model, by codec and in all.

        Unique bytes are those that no other of these models reaches. No tensor is read.
        """
        core = self.context.core
        trees = lazy.every_tree(core) if every_ref else {ref: self.resolve(ref).commit.tree}
        return lazy.measure_usage(core.objects, lazy.models_at(core, trees))

    def repack_models(
        self,
        paths: Iterable[str] = (),
        *,
        alpha: float = 1.5,
        depth: int = 2,
        dry_run: bool = False,
    ) -> Repacked:
        """Store models anew, so that they take the fewest bytes; commits stay as they are.

        Args:
            paths: models at these, or below, in all commits; none: all.
            alpha: how many times as much as reading it whole reading a model may cost.
            depth: how many bases a read may pass through.
            dry_run: measure and plan, and store nothing.

        Raises:
            ConflictError: somebody else repacked meanwhile. Nothing changed.
        """
        wishes = lazy.Wishes(
            self.author,
            time.time_ns(),
            alpha=real("alpha", alpha, 1),
            depth=whole("depth", depth),
            paths=tuple(path_in("models", name) for name in listed("paths", paths)),
            dry_run=dry_run,
        )
        return lazy.repack_models(self.context.core, wishes, time.thread_time)

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
        untrusted: Limits | None = None,
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
            memory: of sorting, joining and grouping; what is beyond it goes to temporary files.
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
            message: of the commit.
            unchanged: paths that the change relies on: if others change them, it conflicts.
        """
        return lazy.begin_transaction(self.context, branch, message, unchanged)

    def checkpointer(
        self,
        run: str,
        *,
        keep: Keep | None = None,
        optimizer: Lossy | None = None,
        start: str | None = None,
        staging: int | str = "4GiB",
        on_saved: Callable[[Saved], None] | None = None,
    ) -> Checkpointer:
        """Saves and loads the checkpoints of a run, at the refs ``runs/<run>/<step>``.

        Args:
            run: its name, such as ``"exp1"``.
            keep: which checkpoints stay; None: the last 3.
            optimizer: ``tr.Lossy(relative=2**-8)`` keeps an optimizer's moments in fewer bits, each
                within that share of its size; None: all is kept bit by bit.
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
        inputs: Any = (),
        resume: bool = False,
    ) -> Run:
        """A training, to be used in a ``with``: notes what it reads, makes and logs.

        Args:
            name: such as ``"exp1"``; its checkpoints have the same.
            params: JSON values by name.
            inputs: what it reads beside datasets and models of this repository that it opens: one
                thing or several, see `Run.use`.
            resume: go on with the run of that name, if there is one. Whoever runs it still writes
                it no more.

        Example:
            ``with repo.run("exp1", params={"lr": 0.1}) as run: run.log_metric("loss", loss, step)``

        Raises:
            ConflictError: there is a run of that name, and not `resume`; when the ``with`` begins.
        """
        return lazy.Run(self.context, name, params=params, inputs=inputs, resume=resume)

    def runs(self) -> Runs:
        """All runs by name, as they were last stored: ``repo.runs()["exp1"].points("loss")``."""
        return lazy.Runs(self.context)

    def lineage(self, path: str, ref: str = "main", *, all_versions: bool = False) -> Lineage:
        """What something came from, and what came from it, over all commits.

        Args:
            path: whole: ``models/net``, ``datasets/photos``, ``runs/exp1``; or a URL.
            ref: the commit of `path`.
            all_versions: ask about all that was ever at `path`, not about the version in `ref`.

        Example:
            ``repo.lineage("models/net").ancestors().paths``
        """
        return lazy.Lineage.of(self.context, path, ref, all_versions=all_versions)

    def close(self) -> None:
        self.context.core.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Repository, (self.context,)

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
            name: of the dataset.
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
