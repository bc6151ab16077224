"""Transaction handle of the SDK: a change of a branch, used in a ``with``, committed at its end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa

from tensorrepo.context import Context
from tensorrepo.datasets.dataset import RowsOfDataset
from tensorrepo.datasets.draft import DatasetDraft, Rows
from tensorrepo.formats.common.arguments import (
    byte_size,
    check_instance,
    checked_files,
    chosen,
    counted,
    flag,
    listed,
    mapping,
    path_in,
    text,
)
from tensorrepo.formats.common.buffer_codecs import DEFAULT_CODEC, parse_codec
from tensorrepo.formats.common.json import as_plain
from tensorrepo.formats.dataset.evolve import add_lineage
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.dataset.schema.lenient import Misfits, OnMisfit, parse_on_error
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.types import TypeLike, as_type, is_type
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.exchange.base import OpenedSource
from tensorrepo.formats.model.graph.graph import Graph
from tensorrepo.formats.model.merging.new_model import construct_model, merge_models, slice_model
from tensorrepo.formats.model.merging.recipe import ADAPTER, make_recipe
from tensorrepo.formats.model.parts import JoinedParts, TensorsPart, join_parts
from tensorrepo.formats.model.write.model_writer import WriteReport
from tensorrepo.formats.search_index.build import IndexReport
from tensorrepo.formats.search_index.paths import index_folder, indexes_of
from tensorrepo.formats.views import open_view
from tensorrepo.models.model import Model
from tensorrepo.query.untrusted.sandbox import QueryLimits
from tensorrepo.repo.changes.leases import close_leases
from tensorrepo.repo.changes.transaction import CommitTransaction as CoreTransaction
from tensorrepo.repo.changes.transaction import LandedCommit, begin, tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, Error, InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import file_entry
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.runs.run_context import note_committed, noted_edges
from tensorrepo.verbs.derive import DeriveRequest, Types, derive
from tensorrepo.verbs.exchange import AdoptionRequest, adopt, open_source
from tensorrepo.verbs.files import put_file
from tensorrepo.verbs.indexes import create_index
from tensorrepo.verbs.models import (
    adapter_edge,
    base_model,
    base_of,
    checked_metrics,
    known_models,
    model_of,
    placed,
    save,
    stage_new,
    to_store,
    tuned_edge,
)
from tensorrepo.verbs.part_values import ModelPart, PartLike, parsed, refuse_unreachable
from tensorrepo.verbs.provenance import edges_from, origin_of_rows
from tensorrepo.verbs.sync import source_edges
from tensorrepo.verbs.views import REFRESH_LIMITS, create_view, keep_rows


@dataclass(slots=True, repr=False)
class Transaction:
    """See `Repository.transaction`. `commit` is the commit made, None before and when nothing
    changed; `onto` in it tells that the branch had moved.
    """

    context: Context
    core: CoreTransaction
    message: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    commit: LandedCommit | None = None
    aborted: bool = False
    leases: list[str] = field(default_factory=list)  # on what this commits, closed after it
    entered: bool = False

    def create_dataset(
        self,
        name: str,
        data: Rows | None = None,
        *,
        columns: Mapping[str, TypeLike | Column] | Schema | None = None,
        exclude: Iterable[str] = (),
        on_error: OnMisfit = "raise",
        codec: str = DEFAULT_CODEC,
        derived_from: Any = (),
        how: Mapping[str, Any] | None = None,
    ) -> DatasetDraft:
        """A new dataset: of data, whose columns are inferred, or without rows.

        Args:
            name: name by the path grammar; may have folders.
            data: its rows: a data frame of pandas or polars, an Arrow table or reader, a relation
                of DuckDB, a dict of arrays or lists, a list, iterator or generator of dicts (the
                first 1,000 rows decide the columns), a dataset of torch or of Hugging Face, a path,
                or what `tensorrepo.read` opened. None: none yet.
            columns: name to type: ``{"image": Image("png"), "label": ClassLabel(names)}``, numpy
                dtypes for scalars, or a schema. With data: types of some columns, in place of those
                inferred; a schema says all of them.
            exclude: columns of the data that are left out.
            on_error: fate of rows that do not fit: "raise", "skip" or "null", as for `append`.
            codec: as for `append`.
            derived_from: a dataset, a model, a stream, ``REF:PATH``, a URL, or several: what its
                rows are made of.
            how: JSON that says how, such as ``{"sql": "SELECT ..."}``.

        Raises:
            ConflictError: there is one of that name.
            InvalidInputError: columns without a type, or a row that does not fit; names it.
            UnsupportedError: columns that no column type holds; names all of them.

        Example:
            ``tx.create_dataset("pets", frame, columns={"photo": tr.Image()}, exclude=["notes"])``
        """
        path = path_in("datasets", name)
        if self.core.entry(path) is not None:
            raise ConflictError(f"{path} exists: use `dataset({name!r})` to change it")
        edges = edges_from(derived_from, how, repository=self.context.core)
        if data is None:
            link = write_dataset(self.core.objects, schema_of(columns), (), edges=edges)
            self.core.stage(path, open_dataset(self.core.objects, link.digest).entry)
            return self.dataset(name)
        source = open_source(
            data,
            types=_types_of(data, columns),
            options={"exclude": (exclude,) if isinstance(exclude, str) else tuple(exclude)},
            on_error=parse_on_error(on_error),
        )
        misfits = Misfits(on_error)
        link = write_dataset(
            self.core.objects,
            source.schema,
            source.batches,
            codec=parse_codec(codec),
            misfits=misfits,
        )
        made = open_dataset(self.core.objects, link.digest)
        # After the rows: the next sync compares its source with them, as of what `add` made.
        is_source = isinstance(data, OpenedSource | str | Path)
        origin = (
            source_edges(self.core.objects, source, made)
            if is_source
            else origin_of_rows(data, source)
        )
        if edges := [*origin, *edges]:
            link = add_lineage(self.core.objects, made, edges)
        self.core.stage(path, open_dataset(self.core.objects, link.digest).entry)
        for item in source.damage.skipped:
            misfits.meet(item.row or 0, None, item.reason)
        draft = self.dataset(name)
        draft.misfits = misfits
        return draft.set_properties(**source.properties) if source.properties else draft

    def dataset(self, name: str) -> DatasetDraft:
        """An existing dataset, to be changed."""
        path = path_in("datasets", name)
        entry = self.core.entry(path)
        if entry is None or entry.kind is not Kind.DATASET:
            raise NotFoundError(f"no {path} in branch {self.core.branch!r}: make it first")
        return DatasetDraft(
            self.core,
            path,
            self.context.outside,
            repository=self.context.core,
            context=self.context,
            leases=self.leases,
        )

    def derive(  # noqa: PLR0913  the one call by which people derive
        self,
        name: str,
        source: str,
        fn: Callable[[pa.RecordBatch], Any],
        *,
        columns: Iterable[str] | None = None,
        types: Types = None,
        batch: int = 256,
        explode: bool = False,
        version: str | None = None,
        check: float = 0.0,
        executor: str = "thread",
        workers: int | None = None,
        codec: str = DEFAULT_CODEC,
        checkpoint: int | str = "1GiB",
        progress: Callable[[int, int], None] | None = None,
    ) -> DatasetDraft:
        """A dataset that a function makes of the rows of another; or one such, brought up to date.

        Called again after the source changed, it makes what is new or changed, and drops what is
        gone. All is made anew when the function is another one: by its source and that of the
        project's functions it calls, by values that it uses, by versions of packages, and by the
        columns that it reads. `derived` of what is returned tells what was done.

        Args:
            name: name of the dataset that is made.
            source: name of a dataset of the branch.
            fn: function of a `pyarrow.RecordBatch`, that gives a row for each, as `append` takes
                rows. What it makes of a row follows from the row alone. Threads call it.
            columns: columns that it receives; None: all.
            types: types of columns that it gives, in place of those inferred from the first rows.
            batch: most rows that it receives at once.
            explode: whether it gives a list of rows for each row. They have columns
                ``source_row``, the id of the source row, and ``source_part``, counted from 0.
            version: text that stands for all that a function is. One that uses what cannot be
                hashed, such as a model, needs it.
            check: share of all rows that are made a second time and compared.
            executor: "thread", or "ray": workers of the cluster call it.
            workers: number of calls at once; None: one for each CPU.
            codec: as for `append`.
            checkpoint: bytes of new rows after which a call that was killed goes on.
            progress: receives rows done so far, and those in all.

        Raises:
            InvalidInputError: a function that cannot be identified and has no `version`; rows that
                do not fit; or a check that found a difference.
            ConflictError: a dataset, or rows in it, that were not derived.

        Example:
            ``tx.derive("small", "photos", shrink, columns=["image"])``
        """
        request = DeriveRequest(
            name,
            source,
            fn,
            columns,
            types,
            batch,
            version,
            flag("explode", explode),
            check,
            executor,
            workers,
            codec,
            byte_size("checkpoint", checkpoint, 1),
            progress or (lambda _done, _total: None),
        )
        report, lease = derive(self.core, self.context.outside, request, self.context.author)
        self.leases += [] if lease is None else [lease]
        draft = self.dataset(name)
        draft.derived = report
        return draft

    def create_index(
        self,
        dataset: str,
        column: str,
        kind: str | None = None,
        *,
        metric: str | None = None,
        progress: Callable[[int, int, str], None] | None = None,
        **options: int,
    ) -> IndexReport:
        """An index that `Dataset.nearest`, `search` or `find` asks; or one brought up to date.

        It is an entry ``indexes/DATASET/COLUMN``, of values ``indexes/DATASET/COLUMN.values``.
        Where rows changed since it was made, searches compare these themselves, so that they never
        answer with what was; called again, this reads and indexes them alone. All is made anew when
        the kind, the metric or an option is another one.

        Args:
            dataset: name of a dataset of the branch.
            column: column of vectors, of text, or of one value a row.
            kind: "ivf_pq", "ivf_sq", "ivf_flat", "ivf_hnsw_sq" (or "hnsw") or "ivf_hnsw_pq" of
                vectors, "text" of words, "btree" of values, for equality and ranges. None: that of
                the index which is there, else "ivf_pq", "text" of a column of text, or "btree".
            metric: "l2", "cosine" or "dot": the distance that is asked for; None: likewise, else
                "l2".
            progress: receives how much is done of a stage, of how much, and what the stage is.
            options: ``partitions``, ``sub_vectors`` (of a product quantiser), ``m`` and
                ``ef_construction`` (of a graph).

        Returns:
            What was done.

        Raises:
            NotFoundError: no such dataset or column.
            InvalidInputError: a kind, metric or option that does not fit the column.
            UnsupportedError: pylance, which all but "btree" need, is not installed.

        Example:
            ``tx.create_index("photos", "embedding", kind="ivf_pq", metric="cosine")``
        """
        _, report = create_index(
            self.core,
            self.context.machine,
            self.context.outside,
            path_in("datasets", dataset),
            text("column", column),
            kind,
            metric,
            options,
            progress or (lambda _done, _total, _stage: None),
        )
        return report

    def create_view(self, name: str, rows: str | RowsOfDataset, *, replace: bool = False) -> None:
        """Keep which rows a query chooses of what the branch has, staged changes not counted.

        Args:
            name: name by the path grammar.
            rows: a query whose column ``row_id`` says which rows of one dataset are meant; or a
                selection, such as ``repo.dataset("photos").filter("label == 3")``.
            replace: whether there may be a view of that name.

        Raises:
            ConflictError: there is one of that name, and not `replace`; or a dataset of that name.
            InvalidInputError: a query that is wrong, or gives no ids of one dataset's rows.
        """
        path = path_in("views", name)
        if self.core.entry(path) is not None and not replace:
            raise ConflictError(f"{path} exists: refresh_view({name!r}) asks its query again")
        if isinstance(rows, RowsOfDataset):
            keep_rows(self.core, self.context, path, rows)
        else:
            self._stage_view(path, rows, None)

    def _stage_view(self, path: str, sql: str, limits: QueryLimits | None) -> None:
        if self.core.base is None:
            raise NotFoundError(f"branch {self.core.branch!r} has no commit to choose rows from")
        create_view(self.core, self.context, path, self.core.base, sql, limits)

    def refresh_view(self, name: str, *, limits: QueryLimits = REFRESH_LIMITS) -> None:
        """Ask the query of a view again, of what the branch has now.

        Somebody else may have written it, so a process of its own answers it, within limits.

        Args:
            name: name of the view.
            limits: what the query may take. One that needs more, or temporary files, is asked by
                `create_view` with ``replace=True``.

        Raises:
            InvalidInputError: it went beyond a limit, or chooses no rows of one dataset now.
            PermissionDenied: it asks for files, extensions or settings.
        """
        path = path_in("views", name)
        entry = self.core.entry(path)
        if entry is None or entry.kind is not Kind.VIEW:
            raise NotFoundError(f"no {path} in branch {self.core.branch!r}: make it first")
        sql = open_view(self.core.objects, entry.digest).sql
        if not sql:
            raise InvalidInputError(
                f"the rows of {path} were given one by one, and no query says which they are now: "
                f"choose them anew, create_view({name!r}, ..., replace=True)"
            )
        check_instance("limits", limits, QueryLimits, "tr.QueryLimits(seconds=..., ...)")
        self._stage_view(path, sql, limits)

    def adopt(
        self,
        name: str,
        paths: str | Path | Iterable[str | Path],
        *,
        format: str | None = None,  # noqa: A002  # the word of `read`
        columns: Iterable[str] | None = None,
        append: bool = False,
        hashed: bool | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> DatasetDraft:
        """A dataset whose rows stay in files: Parquet, WebDataset's tar, npy or safetensors.

        To read it, open the repository with ``outside=`` prefixes that allow its files.

        Args:
            name: name of the dataset; a new one unless `append`.
            paths: files or URLs, or a folder of files, in the order of their rows.
            format: "parquet", "tar", "npy" or "safetensors"; None: told by content.
            columns: only these, in this order.
            append: put the rows behind those of the dataset.
            hashed: read the files once for their hashes, by which copies of them are known; None:
                those of this machine.
            storage_options: credentials, endpoint and the like of the URLs.

        Raises:
            ConflictError: there is one of that name, and not `append`.
            InvalidInputError, UnsupportedError: a file that cannot be adopted; names it.
        """
        path = path_in("datasets", name)
        if self.core.entry(path) is not None and not append:
            raise ConflictError(f"{path} exists: append=True puts the rows behind its own")
        given = [paths] if isinstance(paths, str | Path) else listed("paths", paths)
        chosen = None if columns is None else tuple(columns)
        wish = AdoptionRequest(tuple(map(str, given)), format, chosen, hashed)
        adopt(self.core, path, wish, self.context.machine, append=append, options=storage_options)
        return self.dataset(name)

    def save_model(
        self,
        name: str,
        tensors: Mapping[str, Any],
        *,
        derived_from: Any = (),
        base: Model | str | None = None,
        adapter_of: Model | str | None = None,
        files: Mapping[str, bytes | Path] | None = None,
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        graph: Graph | None = None,
    ) -> WriteReport:
        """Store a model, over the one of that name if there is one.

        Args:
            name: name by the path grammar.
            tensors: a state dict: names to torch tensors or numpy arrays. Tensors whose content
                the branch has already are not stored again.
            derived_from: a dataset or a stream that it was trained on, of which digest, commit and
                the position that the stream reached are kept; a model that it was made of;
                ``REF:PATH``, a URL, or several.
            base: a model of the repository, or ``REF:models/NAME``, that it was tuned from: the
                difference is stored, and lineage says so. None: the difference from the most
                similar models of the branch is stored, of which lineage says nothing.
            adapter_of: these are tensors of an adapter (LoRA, IA3) to that model. What each changes
                is found by its name, checked against it, and kept: ``merge_models(..., "adapter")``
                puts it into its base. PEFT's config is ``adapter_config.json`` of `files`, or
                `adapter_config` of `metadata`.
            files: such as a config or a tokenizer: content, or where it lies.
            metadata: JSON.
            metrics: JSON, such as ``{"accuracy": 0.91}``; numbers are finite.
            graph: its architecture, as `tensorrepo.graph(module, args)` traces it; None: it is
                derived from names when somebody asks.

        Returns:
            What it took to store it: bytes by codec, and the models that it is encoded against.
        """
        path = path_in("models", name)
        if files is not None:
            checked_files(files)
        if metadata is not None:
            mapping("metadata", metadata, "JSON values")
        if graph is not None:
            made_by = "a graph, as tensorrepo.graph(module, args) traces it"
            check_instance("graph", graph, Graph, made_by)
        lineage = edges_from(derived_from, repository=self.context.core, of_model=True)
        declared = None if base is None else base_model(self.context, base)
        if declared is not None and adapter_of is None:
            lineage.insert(0, tuned_edge(declared))
        if adapter_of is not None:
            given = adapter_of
            under = model_of(self.context, given, "adapter_of") if isinstance(given, str) else given
            lineage.insert(0, adapter_edge(under, tensors, files, metadata))
        return save(
            self.core,
            path,
            to_store(tensors, graph, files),
            # It must be there when this commits: the fence sees to it.
            base=None if declared is None else self.context.core.current(declared.stored.entry),
            files=files,
            metadata=None if metadata is None else as_plain(metadata),
            metrics=metrics,
            lineage=noted_edges(lineage),
            known=known_models(
                self.context.core,
                tree_of(self.core.objects, self.core.base),
                tuple(self.core.staged.values()),
                path,
            ),
        ).report

    def save_model_parts(
        self,
        name: str,
        parts: Iterable[PartLike],
        *,
        verify: Literal["sample", "all"] = "sample",
        derived_from: Any = (),
        base: Model | str | None = None,
        files: Mapping[str, bytes | Path] | None = None,
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> JoinedParts:
        """A model of what ranks stored with `tensorrepo.parts.write_tensors`.

        Each part counts once, however often it was written or is given, and a commit whose outcome
        was unknown is simply repeated. No tensor is read or copied.

        Args:
            name: name by the path grammar; a model of that name gets another version.
            parts: what `tensorrepo.parts.write_tensors` gave on all ranks, or its JSON.
            verify: besides metadata and fingerprints, which are always proved, frames to decode and
                compare with their digests: 128 of all parts together, or all.
            derived_from: as for `save_model`.
            base: the model that it was tuned from, for lineage.
            files: as for `save_model`.
            metadata: JSON.
            metrics: JSON, such as ``{"accuracy": 0.91}``; numbers are finite.

        Raises:
            CommitExpired: objects of a part were collected: it has to be written again.
            CorruptError: a part is not what it says.
            InvalidInputError: parts that do not make up whole tensors, or hold different values of
                the same; or a part of another repository.
            PermissionDenied: who commits may read only some refs of a service's repository.

        Example:
            ``tx.save_model_parts("net", parts, metrics={"loss": 0.2})``
        """
        path, known = path_in("models", name), [parsed(each, ModelPart) for each in parts]
        if not known:
            raise InvalidInputError("a model is made of the parts of all ranks, and none was given")
        refuse_unreachable(known, self.context.core)
        chosen("verify", verify, ("sample", "all"))
        if files is not None:
            checked_files(files)
        lineage = edges_from(derived_from, repository=self.context.core, of_model=True)
        if base is not None:
            lineage.insert(0, tuned_edge(base_model(self.context, base)))
        entry, report = join_parts(
            self.core.objects,
            [TensorsPart(each.key, each.root, each.placement) for each in known],
            verify=verify,
            files=files,
            metadata=None if metadata is None else as_plain(mapping("metadata", metadata, "JSON")),
            metrics=checked_metrics(metrics),
            lineage=noted_edges(lineage),
        )
        there = self.core.entry(path)
        if there is None or there.digest != entry.digest:  # else a repetition, stored elsewhere
            self.core.stage(path, entry)
        self.leases += [each.lease for each in known]
        return report

    def merge_models(
        self,
        name: str,
        models: Sequence[Model],
        method: str = "average",
        *,
        base: Model | None = None,
        weights: Sequence[float] | None = None,
        density: float = 0.2,
        scale: float = 1.0,
        strict: bool = True,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Blend models of one architecture into a new one. How is kept in it: see `Model.remake`.

        Args:
            name: name of the new model.
            models: to blend; files and metadata are the first one's. Or adapters, all of one base,
                whose files and metadata the new model gets.
            method: "average", "slerp" (of two), "task-arithmetic", "ties", or "adapter".
            base: what they were tuned from, of the latter three; None: of an adapter, its own.
            weights: one for each model; None: equal ones. Of adapters: 1, beside their own scale.
            density: share of each tensor's changes that "ties" keeps.
            scale: factor of the joint change, of methods with a base.
            strict: refuse models whose tensors differ in name, shape or type, and adapters of
                another base; else those are the first model's, and the base is any that fits.
            metrics: JSON, measured of the blend.
        """
        parents = [placed(model) for model in listed("models", models)]
        if base is None and method == ADAPTER and models:
            base = base_of(models[0])
        under = None if base is None else placed(base)
        recipe = make_recipe(
            method,
            tuple(one.digest for one in parents),
            base=None if under is None else under.digest,
            weights=None if weights is None else tuple(weights),
            density=density,
            scale=scale,
            strict=strict,
        )
        checked = checked_metrics(metrics)
        made = merge_models(self.core.objects, recipe, parents, under, metrics=checked)
        stage_new(self.core, path_in("models", name), made)

    def slice_model(self, name: str, source: Model, first: str, last: str) -> None:
        """The sub-network between two nodes of a model's graph, both included, as a new model."""
        made = slice_model(self.core.objects, placed(source), first, last)
        stage_new(self.core, path_in("models", name), made)

    def construct_model(
        self,
        name: str,
        target: Graph | Model | Mapping[str, Any],
        donors: Iterable[Model] = (),
        *,
        tensors: Mapping[str, Any] | None = None,
        rule: str | None = None,
        seed: int = 0,
    ) -> None:
        """A model of a new architecture, with all tensors of donors that fit.

        Args:
            name: name of the new model.
            target: a graph; a model whose architecture is meant; or a state dict, of which only
                types and shapes count (torch's device "meta" is enough).
            donors: the first that has a tensor gives it: by name, else by the common prefix.
            tensors: values that are known.
            rule: for what nobody has: "default", "normal", "uniform", "ones" or "zeros"; None:
                refuse.
            seed: seed of the rules that draw numbers.
        """
        found = [placed(donor) for donor in listed("donors", donors)]
        kinds = "a graph, a model or a state dict"
        check_instance("target", target, Graph | Model | Mapping, kinds)
        wanted = target.stored if isinstance(target, Model) else target
        made = construct_model(
            self.core.objects, wanted, found, tensors=tensors, rule=rule, seed=seed
        )
        stage_new(self.core, path_in("models", name), made)

    def save_file(self, name: str, content: bytes | Path) -> None:
        """Store a file as it is."""
        expected = "bytes, or a Path whose bytes are meant"
        check_instance("content", content, Path | bytes | bytearray | memoryview, expected)
        path, writer = path_in("files", name), self.core.objects
        if not isinstance(content, Path):
            self.core.stage(path, file_entry(writer.put(Kind.BLOB, content)))
            return
        if not content.is_file():
            raise InvalidInputError(f"cannot read {content!s}: there is no such file")
        self.core.stage(path, put_file(writer, content))

    def remove(self, path: str) -> None:
        """Leave an entry out of the commit, a dataset with its search indexes.

        `path` is whole: ``datasets/fashion``.
        """
        if self.core.entry(text("path", path)) is None:
            raise NotFoundError(f"no {path} in branch {self.core.branch!r}")
        tree = tree_of(self.core.objects, self.core.base)
        below = self.context.core.entries(tree, index_folder(path))
        known = {each for each, _ in below} | self.core.staged.keys()
        for each in (path, *indexes_of(known, path)):
            if self.core.entry(each) is not None:
                self.core.remove(each)

    def restore(self, path: str, ref: str) -> None:
        """Stage an entry as it was at another commit, also one that the branch has no more.

        Args:
            path: whole: ``datasets/fashion``.
            ref: which commit.

        Raises:
            NotFoundError: no such ref, or nothing at `path` in its commit.
        """
        revision = self.context.resolve(ref)
        entry = self.context.core.entry(revision.commit.tree, text("path", path))
        if entry is None:
            listed = [at for at, _ in self.context.core.entries(revision.commit.tree)]
            there = f"There are {', '.join(listed[:8])}." if listed else "It is empty."
            raise NotFoundError(f"no {path} in commit {revision.digest:.12} ({ref}). {there}")
        # A commit that no ref leads to may have been condemned before this transaction began.
        self.core.stage(path, entry, since=0)

    def abort(self) -> None:
        """Commit nothing; what was staged is forgotten, and the ``with`` ends well."""
        self.aborted = True
        self.core.abort()

    def __enter__(self) -> Self:
        self.entered = True
        return self

    def __del__(self) -> None:
        if self.core.staged and not (self.entered or self.aborted):
            warnings.warn(
                f"{self!r} was dropped, and nothing is committed: it commits at the end of its "
                "`with repo.transaction(...) as tx:`",
                stacklevel=2,
            )

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        try:
            if error is None and not self.aborted:
                paths = ", ".join(sorted(self.core.staged)[:5])
                self.commit = self.core.commit(
                    self.message or f"Change {paths or 'nothing'}",
                    author=self.context.author,
                    metadata=self.metadata,
                )
            if self.commit is not None:
                note_committed(self.commit.digest, self.core.staged)
            if self.leases and error is None and not self.aborted:
                # They run out by themselves; what was committed must not look as if it was not.
                with suppress(Error):
                    close_leases(self.context.core, self.leases, holder=self.context.author)
        finally:
            self.core.abort()

    def __repr__(self) -> str:
        return f"<transaction on {self.core.branch!r}: {counted(len(self.core.staged), 'change')}>"


def schema_of(columns: Mapping[str, TypeLike | Column] | Schema | None) -> Schema:
    """Columns, however they were given. Raises InvalidInputError for None."""
    if columns is None:
        raise InvalidInputError("a dataset is made of data, or of columns={name: type}")
    if isinstance(columns, Schema):
        return columns
    given = mapping("columns", columns, "types")
    return Schema(
        tuple(
            kind if isinstance(kind, Column) else Column(name, as_type(kind))
            for name, kind in given.items()
        )
    )


def _types_of(
    data: object, columns: Mapping[str, TypeLike | Column] | Schema | None
) -> Mapping[str, TypeLike | Column]:
    """Types by name, of columns that the caller says.

    Raises:
        InvalidInputError: types were given for data.
    """
    of_types = isinstance(data, Mapping) and data and all(map(is_type, data.values()))
    if isinstance(data, Schema) or of_types:
        raise InvalidInputError(
            "data has types where rows are expected: create_dataset(name, columns=...)"
        )
    if isinstance(columns, Schema):
        return {column.name: column for column in columns.without_ids().columns}
    return {} if columns is None else mapping("columns", columns, "types")


def begin_transaction(
    context: Context, branch: str, message: str, unchanged: Iterable[str] = ()
) -> Transaction:
    """See `Repository.transaction`."""
    name, said = text("branch", branch), text("message", message)
    return Transaction(context, begin(context.core, name, unchanged=unchanged), said)
