"""Late loading: the one table of names that are imported when they are first used.

The package's public names, and the verbs that handles offer (``repo.sql``, ``ds.stream``, ...). So
``import tensorrepo`` loads nothing, and opening a repository neither numpy nor an engine. Own
modules load late nowhere else: a test sees to it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tensorrepo.blame import blame
    from tensorrepo.catalog import catalog_of
    from tensorrepo.checkpointer import checkpointer_of
    from tensorrepo.compare import compare
    from tensorrepo.dataset import dataset_at
    from tensorrepo.formats.dataset.elsewhere.outsideread import AllowedOutside
    from tensorrepo.formats.dataset.merge import DatasetMergeDriver
    from tensorrepo.formats.model.merge import ModelMergeDriver
    from tensorrepo.formats.model.repack.run import Wishes, repack_models
    from tensorrepo.formats.model.space.reach import every_tree, models_at
    from tensorrepo.formats.model.space.usage import measure_usage
    from tensorrepo.lineage import Lineage
    from tensorrepo.model import model_at
    from tensorrepo.registry import Registry
    from tensorrepo.run import Run
    from tensorrepo.runrecord import Runs
    from tensorrepo.sql import sql
    from tensorrepo.transaction import begin_transaction
    from tensorrepo.view import view_at

__all__ = [
    "AllowedOutside", "DatasetMergeDriver", "Lineage", "ModelMergeDriver", "Registry", "Run",
    "Runs", "Wishes", "begin_transaction", "blame", "catalog_of", "checkpointer_of", "compare",
    "dataset_at", "every_tree", "measure_usage", "model_at", "models_at", "repack_models", "sql",
    "view_at",
]  # fmt: skip

_PUBLIC: Final = (
    "tensorrepo.catalog.Catalog",
    "tensorrepo.dataset.Dataset",
    "tensorrepo.draft.DatasetDraft",
    "tensorrepo.formats.dataset.columns.present.decode_image",
    "tensorrepo.formats.dataset.columns.schema.Bytes",
    "tensorrepo.formats.dataset.columns.schema.ClassLabel",
    "tensorrepo.formats.dataset.columns.schema.Column",
    "tensorrepo.formats.dataset.columns.schema.Embedding",
    "tensorrepo.formats.dataset.columns.schema.Image",
    "tensorrepo.formats.dataset.columns.schema.Json",
    "tensorrepo.formats.dataset.columns.schema.Link",
    "tensorrepo.formats.dataset.columns.schema.LinkValue",
    "tensorrepo.formats.dataset.columns.schema.Schema",
    "tensorrepo.formats.dataset.columns.schema.Tensor",
    "tensorrepo.formats.dataset.columns.schema.Text",
    "tensorrepo.formats.dataset.columns.schema.Timestamp",
    "tensorrepo.formats.dataset.editing.where.col",
    "tensorrepo.formats.dataset.streaming.batching.decode.Decode",
    "tensorrepo.formats.model.graph.trace.trace_module",
    "tensorrepo.formats.model.training.lossy.Lossy",
    "tensorrepo.lineage.Lineage",
    "tensorrepo.mix.Mix",
    "tensorrepo.model.Model",
    "tensorrepo.query.sandbox.Limits",
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
    "tensorrepo.retention.Keep",
    "tensorrepo.sdk.init",
    "tensorrepo.sdk.open_repository",
    "tensorrepo.selection.s",
    "tensorrepo.stream.Stream",
    "tensorrepo.verbs.exchange.export",
    "tensorrepo.verbs.exchange.read",
    "tensorrepo.view.View",
)
_VERBS: Final = (
    "tensorrepo.blame.blame",
    "tensorrepo.catalog.catalog_of",
    "tensorrepo.checkpointer.checkpointer_of",
    "tensorrepo.compare.compare",
    "tensorrepo.dataset.dataset_at",
    "tensorrepo.formats.dataset.elsewhere.outsideread.AllowedOutside",
    "tensorrepo.formats.dataset.merge.DatasetMergeDriver",
    "tensorrepo.formats.model.merge.ModelMergeDriver",
    "tensorrepo.formats.model.repack.run.Wishes",
    "tensorrepo.formats.model.repack.run.repack_models",
    "tensorrepo.formats.model.space.reach.every_tree",
    "tensorrepo.formats.model.space.reach.models_at",
    "tensorrepo.formats.model.space.usage.measure_usage",
    "tensorrepo.model.model_at",
    "tensorrepo.registry.Registry",
    "tensorrepo.run.Run",
    "tensorrepo.runrecord.Runs",
    "tensorrepo.sql.sql",
    "tensorrepo.transaction.begin_transaction",
    "tensorrepo.view.view_at",
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
