"""Late loading: the one table of names that are imported when they are first used.

The package's public names, and the verbs that handles offer (``repo.sql``, ``ds.stream``, ...). So
``import tensorrepo`` loads nothing, and opening a repository neither numpy nor an engine. Own
modules load late nowhere else: a test sees to it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tensorrepo.catalog.catalog import catalog_of
    from tensorrepo.catalog.lineage import Lineage
    from tensorrepo.catalog.registry import Registry
    from tensorrepo.catalog.sql import sql
    from tensorrepo.datasets.blame import blame
    from tensorrepo.datasets.dataset import dataset_at, view_at
    from tensorrepo.formats.dataset.external.outside_read import AllowedOutside
    from tensorrepo.formats.dataset.merge import DatasetMergeDriver
    from tensorrepo.formats.model.maintenance.repack import RepackOptions, repack_models
    from tensorrepo.formats.model.maintenance.usage import every_tree, measure_usage, models_at
    from tensorrepo.formats.model.merging.three_way import ModelMergeDriver
    from tensorrepo.models.checkpointer import checkpointer_of
    from tensorrepo.models.model import model_at
    from tensorrepo.runs.record import Runs
    from tensorrepo.runs.run import Run
    from tensorrepo.transaction import begin_transaction
    from tensorrepo.verbs.compare import compare

__all__ = [
    "AllowedOutside",
    "DatasetMergeDriver",
    "Lineage",
    "ModelMergeDriver",
    "Registry",
    "RepackOptions",
    "Run",
    "Runs",
    "begin_transaction",
    "blame",
    "catalog_of",
    "checkpointer_of",
    "compare",
    "dataset_at",
    "every_tree",
    "measure_usage",
    "model_at",
    "models_at",
    "repack_models",
    "sql",
    "view_at",
]  # fmt: skip

_PUBLIC: Final = (
    "tensorrepo.catalog.catalog.Catalog",
    "tensorrepo.datasets.dataset.Dataset",
    "tensorrepo.datasets.draft.DatasetDraft",
    "tensorrepo.formats.dataset.schema.convert.decode_image",
    "tensorrepo.formats.dataset.schema.schema.Bytes",
    "tensorrepo.formats.dataset.schema.schema.ClassLabel",
    "tensorrepo.formats.dataset.schema.schema.Column",
    "tensorrepo.formats.dataset.schema.schema.Embedding",
    "tensorrepo.formats.dataset.schema.schema.Image",
    "tensorrepo.formats.dataset.schema.schema.Json",
    "tensorrepo.formats.dataset.schema.schema.Link",
    "tensorrepo.formats.dataset.schema.schema.LinkValue",
    "tensorrepo.formats.dataset.schema.schema.Schema",
    "tensorrepo.formats.dataset.schema.schema.Tensor",
    "tensorrepo.formats.dataset.schema.schema.Text",
    "tensorrepo.formats.dataset.schema.schema.Timestamp",
    "tensorrepo.formats.dataset.selecting.select_rows.col",
    "tensorrepo.formats.dataset.streaming.collate.decode.Decode",
    "tensorrepo.formats.model.graph.trace.trace_module",
    "tensorrepo.formats.model.state.lossy.LossyState",
    "tensorrepo.catalog.lineage.Lineage",
    "tensorrepo.datasets.stream.Mix",
    "tensorrepo.models.model.Model",
    "tensorrepo.query.untrusted.sandbox.QueryLimits",
    "tensorrepo.repo.errors.CommitExpired",
    "tensorrepo.repo.errors.CommitOutcomeUnknown",
    "tensorrepo.repo.errors.ConflictError",
    "tensorrepo.repo.errors.CorruptError",
    "tensorrepo.repo.errors.Error",
    "tensorrepo.repo.errors.InvalidInputError",
    "tensorrepo.repo.errors.NoSuchRowError",
    "tensorrepo.repo.errors.NotFoundError",
    "tensorrepo.repo.errors.PermissionDenied",
    "tensorrepo.repo.errors.PurgedError",
    "tensorrepo.repo.errors.RepositoryRewound",
    "tensorrepo.repo.errors.StorageError",
    "tensorrepo.repo.errors.UnsupportedError",
    "tensorrepo.repository.Repository",
    "tensorrepo.models.checkpointer.RetentionPolicy",
    "tensorrepo.sdk.init",
    "tensorrepo.sdk.open_repository",
    "tensorrepo.models.model.s",
    "tensorrepo.datasets.stream.Stream",
    "tensorrepo.verbs.exchange.export",
    "tensorrepo.verbs.exchange.read",
    "tensorrepo.datasets.dataset.View",
)
_VERBS: Final = (
    "tensorrepo.datasets.blame.blame",
    "tensorrepo.catalog.catalog.catalog_of",
    "tensorrepo.models.checkpointer.checkpointer_of",
    "tensorrepo.verbs.compare.compare",
    "tensorrepo.datasets.dataset.dataset_at",
    "tensorrepo.formats.dataset.external.outside_read.AllowedOutside",
    "tensorrepo.formats.dataset.merge.DatasetMergeDriver",
    "tensorrepo.formats.model.merging.three_way.ModelMergeDriver",
    "tensorrepo.formats.model.maintenance.repack.RepackOptions",
    "tensorrepo.formats.model.maintenance.repack.repack_models",
    "tensorrepo.formats.model.maintenance.usage.every_tree",
    "tensorrepo.formats.model.maintenance.usage.models_at",
    "tensorrepo.formats.model.maintenance.usage.measure_usage",
    "tensorrepo.models.model.model_at",
    "tensorrepo.catalog.registry.Registry",
    "tensorrepo.runs.run.Run",
    "tensorrepo.runs.record.Runs",
    "tensorrepo.catalog.sql.sql",
    "tensorrepo.transaction.begin_transaction",
    "tensorrepo.datasets.dataset.view_at",
)
_HOMES: Final = {
    name: module for module, _, name in (each.rpartition(".") for each in _PUBLIC + _VERBS)
}
_CALLED: Final = {"graph": "trace_module", "open": "open_repository"}  # of the package


def public(name: str) -> Any:
    """A name of the package. Raises KeyError for what it does not offer."""
    return load(_CALLED.get(name, name))


def load(name: str) -> Any:
    return getattr(importlib.import_module(_HOMES[name]), name)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = load(name)
    return value
