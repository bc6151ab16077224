"""tensorrepo: a versioned repository for datasets and models.

Names are loaded when they are first used, so that ``import tensorrepo`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorrepo._version import VERSION
from tensorrepo.lazy import public

if TYPE_CHECKING:
    from tensorrepo.catalog.catalog import Catalog
    from tensorrepo.catalog.lineage import Lineage
    from tensorrepo.datasets.dataset import Dataset, View
    from tensorrepo.datasets.draft import DatasetDraft
    from tensorrepo.datasets.selection import Selection
    from tensorrepo.datasets.stream import Mix, Stream
    from tensorrepo.formats.dataset.schema.convert import decode_image
    from tensorrepo.formats.dataset.schema.schema import (
        Bytes,
        ClassLabel,
        Column,
        Date,
        Decimal,
        Duration,
        Embedding,
        Image,
        Json,
        Link,
        LinkValue,
        List,
        Map,
        Null,
        Schema,
        Struct,
        Tensor,
        Text,
        Time,
        Timestamp,
    )
    from tensorrepo.formats.dataset.selecting.predicate import col
    from tensorrepo.formats.dataset.streaming.collate.decode import Decode
    from tensorrepo.formats.dataset.streaming.options import (
        DerivedCache,
        Loading,
        Ranks,
        Sampling,
    )
    from tensorrepo.formats.dataset.streaming.order.feedback import Feedback
    from tensorrepo.formats.model.graph.trace import trace_module as graph
    from tensorrepo.formats.model.state.lossy import LossyState
    from tensorrepo.models.checkpointer import RetentionPolicy
    from tensorrepo.models.model import Model
    from tensorrepo.query.untrusted.sandbox import QueryLimits
    from tensorrepo.repo.errors import (
        CollectedError,
        CommitExpired,
        CommitOutcomeUnknown,
        ConflictError,
        CorruptError,
        Error,
        InvalidInputError,
        NoSuchRowError,
        NotFoundError,
        PermissionDenied,
        PurgedError,
        RepositoryRewound,
        StorageError,
        UnsupportedError,
        WorkerLostError,
    )
    from tensorrepo.repository import Repository
    from tensorrepo.sdk import init
    from tensorrepo.sdk import open_repository as open  # noqa: A004 - `tr.open`, as people type
    from tensorrepo.sharing import clone
    from tensorrepo.verbs.exchange import export, read

__version__ = VERSION
__all__ = [
    "Bytes", "Catalog", "ClassLabel", "CollectedError", "Column", "CommitExpired",
    "CommitOutcomeUnknown", "ConflictError", "CorruptError", "Dataset", "DatasetDraft", "Date",
    "Decimal", "Decode", "DerivedCache", "Duration", "Embedding", "Error", "Feedback", "Image",
    "InvalidInputError", "Json", "Lineage", "Link", "LinkValue", "List", "Loading", "LossyState",
    "Map", "Mix", "Model", "NoSuchRowError", "NotFoundError", "Null", "PermissionDenied",
    "PurgedError", "QueryLimits", "Ranks", "Repository", "RepositoryRewound", "RetentionPolicy",
    "Sampling", "Schema", "Selection", "StorageError", "Stream", "Struct", "Tensor", "Text",
    "Time", "Timestamp", "UnsupportedError", "View", "WorkerLostError", "__version__", "clone",
    "col", "decode_image", "export", "graph", "init", "open", "read",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = public(name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
