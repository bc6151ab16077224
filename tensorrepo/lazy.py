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
    from tensorrepo.datasets.sql_edit import row_selection
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
    "AllowedOutside", "DatasetMergeDriver", "Lineage", "ModelMergeDriver", "Registry",
    "RepackOptions", "Run", "Runs", "begin_transaction", "blame", "catalog_of", "checkpointer_of",
    "compare", "dataset_at", "every_tree", "measure_usage", "model_at", "models_at",
    "repack_models", "row_selection", "sql", "view_at",
]  # fmt: skip

# module: names of the package, and verbs that handles offer
_NAMES: Final = {
    "catalog.catalog": "Catalog catalog_of",
    "catalog.lineage": "Lineage",
    "catalog.registry": "Registry",
    "catalog.sql": "sql",
    "datasets.blame": "blame",
    "datasets.dataset": "Dataset View dataset_at view_at",
    "datasets.draft": "DatasetDraft",
    "datasets.sql_edit": "row_selection",
    "datasets.stream": "Mix Stream",
    "formats.dataset.external.outside_read": "AllowedOutside",
    "formats.dataset.merge": "DatasetMergeDriver",
    "formats.dataset.schema.convert": "decode_image",
    "formats.dataset.schema.schema": (
        "Bytes ClassLabel Column Embedding Image Json Link LinkValue Schema Tensor Text Timestamp"
    ),
    "formats.dataset.selecting.select_rows": "col",
    "formats.dataset.streaming.collate.decode": "Decode",
    "formats.model.graph.trace": "trace_module",
    "formats.model.maintenance.repack": "RepackOptions repack_models",
    "formats.model.maintenance.usage": "every_tree measure_usage models_at",
    "formats.model.merging.three_way": "ModelMergeDriver",
    "formats.model.state.lossy": "LossyState",
    "models.checkpointer": "RetentionPolicy checkpointer_of",
    "models.model": "Model model_at s",
    "query.untrusted.sandbox": "QueryLimits",
    "repo.errors": (
        "CommitExpired CommitOutcomeUnknown ConflictError CorruptError Error "
        "InvalidInputError NoSuchRowError NotFoundError PermissionDenied PurgedError "
        "RepositoryRewound StorageError UnsupportedError"
    ),
    "repository": "Repository",
    "runs.record": "Runs",
    "runs.run": "Run",
    "sdk": "init open_repository",
    "transaction": "begin_transaction",
    "verbs.compare": "compare",
    "verbs.exchange": "export read",
}
_HOMES: Final = {
    name: f"tensorrepo.{module}" for module, names in _NAMES.items() for name in names.split()
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
