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
    from tensorrepo.credentials import stored_token
    from tensorrepo.datasets.blame import blame
    from tensorrepo.datasets.dataset import dataset_at, view_at
    from tensorrepo.datasets.feed import ChangeFeed, changes_of
    from tensorrepo.datasets.indexed_rows import answered, find_indexed, rows_by_index
    from tensorrepo.datasets.search import (
        FUSED_ROWS,
        SearchResult,
        fuse,
        search_text,
        search_vectors,
    )
    from tensorrepo.datasets.selection import Selection
    from tensorrepo.datasets.sql_edit import row_selection
    from tensorrepo.describe import repository_table
    from tensorrepo.formats.common.summaries import decoded_bytes
    from tensorrepo.formats.dataset.external.outside_read import AllowedOutside
    from tensorrepo.formats.dataset.merge import DatasetMergeDriver
    from tensorrepo.formats.dataset.read import open_dataset
    from tensorrepo.formats.dataset.selecting.select_rows import condition_rows
    from tensorrepo.formats.model.maintenance.repack import RepackOptions, repack_models
    from tensorrepo.formats.model.maintenance.usage import every_tree, measure_usage, models_at
    from tensorrepo.formats.model.maintenance.worn_packs import repack_worn, worn_packs
    from tensorrepo.formats.model.merging.recipe import METHODS
    from tensorrepo.formats.model.merging.three_way import ModelMergeDriver
    from tensorrepo.formats.search_index.merge import IndexMergeDriver
    from tensorrepo.hints import no_attribute
    from tensorrepo.models.checkpointer import checkpointer_of
    from tensorrepo.models.model import model_at
    from tensorrepo.pinned import PinnedRepository, handles
    from tensorrepo.query.compare.contents import (
        DatasetChange,
        compare_contents,
        row_documents,
        row_lines,
    )
    from tensorrepo.query.compare.descriptions import describe_entry
    from tensorrepo.query.compare.entry_change import shortened
    from tensorrepo.repo.backends.registry import open_backend
    from tensorrepo.repo.backends.service import create_http, open_http
    from tensorrepo.repo.changes.disk_usage import measure_trees
    from tensorrepo.repo.changes.expire import (
        expire,
        expire_kept,
        parse_keep,
        plan_expiry,
        plan_kept,
    )
    from tensorrepo.repo.changes.gc_collect import (
        CollectionRules,
        collect_garbage,
        plan_collection,
    )
    from tensorrepo.repo.changes.gc_packs import pack_history
    from tensorrepo.repo.changes.owner_usage import Owners, measure_owners
    from tensorrepo.report.page import write_report
    from tensorrepo.runs.record import Runs
    from tensorrepo.runs.run import Run
    from tensorrepo.sharing import (
        bundle,
        fetch,
        fetch_data,
        here_of,
        promote,
        pull,
        push,
    )
    from tensorrepo.transaction import begin_transaction
    from tensorrepo.verbs.comparison import compare, compare_entry
    from tensorrepo.verbs.dql import dql
    from tensorrepo.verbs.evaluate import EvaluationRequest, request_of
    from tensorrepo.verbs.indexes import IndexSearch, index_beside
    from tensorrepo.verbs.progressive import evaluate
    from tensorrepo.verbs.purge import plan_purge, purge, purge_request
    from tensorrepo.verbs.transfer import rate_limit
    from tensorrepo.verbs.watching import watch
    from tensorrepo.workspace.add_paths import add_changed
    from tensorrepo.workspace.checkout import update_tracked
    from tensorrepo.workspace.doctor import files_in_place, files_text

__all__ = [
    "FUSED_ROWS",
    "METHODS",
    "AllowedOutside",
    "ChangeFeed",
    "CollectionRules",
    "DatasetChange",
    "DatasetMergeDriver",
    "EvaluationRequest",
    "IndexMergeDriver",
    "IndexSearch",
    "Lineage",
    "ModelMergeDriver",
    "Owners",
    "PinnedRepository",
    "Registry",
    "RepackOptions",
    "Run",
    "Runs",
    "SearchResult",
    "Selection",
    "add_changed",
    "answered",
    "begin_transaction",
    "blame",
    "bundle",
    "catalog_of",
    "changes_of",
    "checkpointer_of",
    "collect_garbage",
    "compare",
    "compare_contents",
    "compare_entry",
    "condition_rows",
    "create_http",
    "dataset_at",
    "decoded_bytes",
    "describe_entry",
    "dql",
    "evaluate",
    "every_tree",
    "expire",
    "expire_kept",
    "fetch",
    "fetch_data",
    "files_in_place",
    "files_text",
    "find_indexed",
    "fuse",
    "handles",
    "here_of",
    "index_beside",
    "measure_owners",
    "measure_trees",
    "measure_usage",
    "model_at",
    "models_at",
    "no_attribute",
    "open_backend",
    "open_dataset",
    "open_http",
    "pack_history",
    "parse_keep",
    "plan_collection",
    "plan_expiry",
    "plan_kept",
    "plan_purge",
    "promote",
    "pull",
    "purge",
    "purge_request",
    "push",
    "rate_limit",
    "repack_models",
    "repack_worn",
    "repository_table",
    "request_of",
    "row_documents",
    "row_lines",
    "row_selection",
    "rows_by_index",
    "search_text",
    "search_vectors",
    "shortened",
    "sql",
    "stored_token",
    "update_tracked",
    "view_at",
    "watch",
    "worn_packs",
    "write_report",
]  # fmt: skip

# module: names of the package, and verbs that handles offer
_NAMES: Final = {
    "catalog.catalog": "Catalog catalog_of",
    "credentials": "stored_token",
    "catalog.lineage": "Lineage",
    "catalog.registry": "Registry",
    "catalog.sql": "sql",
    "datasets.blame": "blame",
    "datasets.dataset": "Dataset View dataset_at view_at",
    "datasets.draft": "DatasetDraft",
    "datasets.feed": "ChangeFeed changes_of",
    "datasets.indexed_rows": "answered find_indexed rows_by_index",
    "datasets.search": "FUSED_ROWS SearchResult fuse search_text search_vectors",
    "datasets.selection": "Selection",
    "datasets.sql_edit": "row_selection",
    "describe": "repository_table",
    "datasets.stream": "Mix Stream",
    "formats.common.summaries": "decoded_bytes",
    "formats.dataset.external.outside_read": "AllowedOutside",
    "formats.dataset.merge": "DatasetMergeDriver",
    "formats.dataset.read": "open_dataset",
    "formats.dataset.schema.convert": "decode_image",
    "formats.dataset.schema.schema": (
        "Bytes ClassLabel Column Date Decimal Duration Embedding Image Json Link LinkValue List "
        "Map Null Schema Struct Tensor Text Time Timestamp"
    ),
    "formats.dataset.selecting.predicate": "col",
    "formats.dataset.selecting.select_rows": "condition_rows",
    "formats.dataset.streaming.collate.decode": "Decode",
    "formats.dataset.streaming.options": "DerivedCache Loading Ranks Sampling",
    "formats.dataset.streaming.order.feedback": "Feedback",
    "formats.model.graph.trace": "trace_module",
    "formats.model.maintenance.repack": "RepackOptions repack_models",
    "formats.model.maintenance.usage": "every_tree measure_usage models_at",
    "formats.model.merging.recipe": "METHODS",
    "formats.model.maintenance.worn_packs": "repack_worn worn_packs",
    "formats.model.merging.three_way": "ModelMergeDriver",
    "formats.model.state.lossy": "LossyState",
    "formats.search_index.merge": "IndexMergeDriver",
    "hints": "no_attribute",
    "models.checkpointer": "RetentionPolicy checkpointer_of",
    "models.model": "Model model_at",
    "pinned": "PinnedRepository handles",
    "query.compare.contents": "DatasetChange compare_contents row_documents row_lines",
    "query.compare.descriptions": "describe_entry",
    "query.compare.entry_change": "shortened",
    "query.untrusted.sandbox": "QueryLimits",
    "repo.backends.registry": "open_backend",
    "repo.backends.service": "create_http open_http",
    "repo.changes.disk_usage": "measure_trees",
    "repo.changes.expire": "expire expire_kept parse_keep plan_expiry plan_kept",
    "repo.changes.gc_packs": "pack_history",
    "repo.changes.owner_usage": "Owners measure_owners",
    "repo.changes.gc_collect": "CollectionRules collect_garbage plan_collection",
    "repo.errors": (
        "CollectedError CommitExpired CommitOutcomeUnknown ConflictError CorruptError Error "
        "InvalidInputError NoSuchRowError NotFoundError PermissionDenied PurgedError "
        "RepositoryRewound StorageError UnsupportedError WorkerLostError"
    ),
    "report.page": "write_report",
    "repository": "Repository",
    "runs.record": "Runs",
    "runs.run": "Run",
    "sdk": "init open_repository",
    "sharing": "bundle clone fetch fetch_data here_of promote pull push",
    "transaction": "begin_transaction",
    "verbs.comparison": "compare compare_entry",
    "verbs.dql": "dql",
    "verbs.evaluate": "EvaluationRequest request_of",
    "verbs.progressive": "evaluate",
    "verbs.exchange": "export read",
    "verbs.indexes": "IndexSearch index_beside",
    "verbs.transfer": "rate_limit",
    "verbs.watching": "watch",
    "verbs.import_history": "import_history",
    "verbs.purge": "plan_purge purge purge_request",
    "workspace.add_paths": "add_changed",
    "workspace.checkout": "update_tracked",
    "workspace.doctor": "files_in_place files_text",
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
