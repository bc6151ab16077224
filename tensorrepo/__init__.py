"""tensorrepo: a versioned repository for datasets and models.

Names are loaded when they are first used, so that ``import tensorrepo`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorrepo._version import VERSION
from tensorrepo.lazy import public

if TYPE_CHECKING:
    from tensorrepo.catalog import Catalog
    from tensorrepo.dataset import Dataset
    from tensorrepo.draft import DatasetDraft
    from tensorrepo.formats.dataset.columns.present import decode_image
    from tensorrepo.formats.dataset.columns.schema import (
        Bytes,
        ClassLabel,
        Column,
        Embedding,
        Image,
        Json,
        Link,
        LinkValue,
        Schema,
        Tensor,
        Text,
        Timestamp,
    )
    from tensorrepo.formats.dataset.editing.where import col
    from tensorrepo.formats.dataset.streaming.batching.decode import Decode
    from tensorrepo.formats.model.graph.trace import trace_module as graph
    from tensorrepo.formats.model.training.lossy import Lossy
    from tensorrepo.lineage import Lineage
    from tensorrepo.mix import Mix
    from tensorrepo.model import Model
    from tensorrepo.query.sandbox import Limits
    from tensorrepo.repo.errors import (
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
    )
    from tensorrepo.repository import Repository
    from tensorrepo.retention import Keep
    from tensorrepo.sdk import init
    from tensorrepo.sdk import open_repository as open  # noqa: A004 - `tr.open`, as people type
    from tensorrepo.selection import s
    from tensorrepo.stream import Stream
    from tensorrepo.verbs.exchange import export, read
    from tensorrepo.view import View

__version__ = VERSION
__all__ = [
    "Bytes", "Catalog", "ClassLabel", "Column", "CommitExpired", "CommitOutcomeUnknown",
    "ConflictError", "CorruptError", "Dataset", "DatasetDraft", "Decode", "Embedding", "Error",
    "Image", "InvalidInputError", "Json", "Keep", "Limits", "Lineage", "Link", "LinkValue",
    "Lossy", "Mix", "Model", "NoSuchRowError", "NotFoundError", "PermissionDenied",
    "PurgedError", "Repository", "RepositoryRewound", "Schema", "StorageError", "Stream",
    "Tensor", "Text", "Timestamp", "UnsupportedError", "View", "__version__", "col",
    "decode_image", "export", "graph", "init", "open", "read", "s",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = public(name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
