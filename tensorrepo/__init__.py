"""tensorrepo: a versioned repository for datasets and models.

Names are loaded when they are first used, so that ``import tensorrepo`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensorrepo._version import VERSION

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
    from tensorrepo.sdk import export, init, read
    from tensorrepo.sdk import open_repository as open  # noqa: A004 - `tr.open`, as people type
    from tensorrepo.selection import s
    from tensorrepo.stream import Stream
    from tensorrepo.view import View

__version__ = VERSION
_SCHEMA = "tensorrepo.formats.dataset.columns.schema"
_ERRORS = "tensorrepo.repo.errors"
_HOMES = {
    "Bytes": (_SCHEMA, "Bytes"),
    "Catalog": ("tensorrepo.catalog", "Catalog"),
    "ClassLabel": (_SCHEMA, "ClassLabel"),
    "Column": (_SCHEMA, "Column"),
    "CommitExpired": (_ERRORS, "CommitExpired"),
    "CommitOutcomeUnknown": (_ERRORS, "CommitOutcomeUnknown"),
    "ConflictError": (_ERRORS, "ConflictError"),
    "CorruptError": (_ERRORS, "CorruptError"),
    "Dataset": ("tensorrepo.dataset", "Dataset"),
    "DatasetDraft": ("tensorrepo.draft", "DatasetDraft"),
    "Decode": ("tensorrepo.formats.dataset.streaming.batching.decode", "Decode"),
    "Embedding": (_SCHEMA, "Embedding"),
    "Error": (_ERRORS, "Error"),
    "Image": (_SCHEMA, "Image"),
    "InvalidInputError": (_ERRORS, "InvalidInputError"),
    "Json": (_SCHEMA, "Json"),
    "Keep": ("tensorrepo.retention", "Keep"),
    "Limits": ("tensorrepo.query.sandbox", "Limits"),
    "Lineage": ("tensorrepo.lineage", "Lineage"),
    "Link": (_SCHEMA, "Link"),
    "LinkValue": (_SCHEMA, "LinkValue"),
    "Lossy": ("tensorrepo.formats.model.training.lossy", "Lossy"),
    "Mix": ("tensorrepo.mix", "Mix"),
    "Model": ("tensorrepo.model", "Model"),
    "NoSuchRowError": (_ERRORS, "NoSuchRowError"),
    "NotFoundError": (_ERRORS, "NotFoundError"),
    "PermissionDenied": (_ERRORS, "PermissionDenied"),
    "PurgedError": (_ERRORS, "PurgedError"),
    "Repository": ("tensorrepo.repository", "Repository"),
    "RepositoryRewound": (_ERRORS, "RepositoryRewound"),
    "Schema": (_SCHEMA, "Schema"),
    "StorageError": (_ERRORS, "StorageError"),
    "Stream": ("tensorrepo.stream", "Stream"),
    "Tensor": (_SCHEMA, "Tensor"),
    "Text": (_SCHEMA, "Text"),
    "Timestamp": (_SCHEMA, "Timestamp"),
    "UnsupportedError": (_ERRORS, "UnsupportedError"),
    "View": ("tensorrepo.view", "View"),
    "col": ("tensorrepo.formats.dataset.editing.where", "col"),
    "decode_image": ("tensorrepo.formats.dataset.columns.present", "decode_image"),
    "export": ("tensorrepo.sdk", "export"),
    "graph": ("tensorrepo.formats.model.graph.trace", "trace_module"),
    "init": ("tensorrepo.sdk", "init"),
    "open": ("tensorrepo.sdk", "open_repository"),
    "read": ("tensorrepo.sdk", "read"),
    "s": ("tensorrepo.selection", "s"),
}
__all__ = [
    "Bytes",
    "Catalog",
    "ClassLabel",
    "Column",
    "CommitExpired",
    "CommitOutcomeUnknown",
    "ConflictError",
    "CorruptError",
    "Dataset",
    "DatasetDraft",
    "Decode",
    "Embedding",
    "Error",
    "Image",
    "InvalidInputError",
    "Json",
    "Keep",
    "Limits",
    "Lineage",
    "Link",
    "LinkValue",
    "Lossy",
    "Mix",
    "Model",
    "NoSuchRowError",
    "NotFoundError",
    "PermissionDenied",
    "PurgedError",
    "Repository",
    "RepositoryRewound",
    "Schema",
    "StorageError",
    "Stream",
    "Tensor",
    "Text",
    "Timestamp",
    "UnsupportedError",
    "View",
    "__version__",
    "col",
    "decode_image",
    "export",
    "graph",
    "init",
    "open",
    "read",
    "s",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
