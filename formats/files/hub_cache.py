"""Layout of Hugging Face's cache, for machines without a network: its libraries find a model there.

    models--NS--NAME/blobs/SHA256              the bytes of each file, once
    models--NS--NAME/snapshots/COMMIT/FILE     links to them, by the name of the file
    models--NS--NAME/refs/main                 the commit

Source:
    huggingface_hub, guide "Manage your cache".
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tensorrepo.formats.files.models import ModelFolder
from tensorrepo.formats.model.read.byte_ranges import ProvedFrames
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, StorageError
from tensorrepo.repo.objects.cache import partial_name

HUB_CACHE: Final = "hf-cache"  # what the format is called on the command line
COMMIT_DIGITS: Final = 40  # that a commit has there
_ID: Final = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    """What was written: the folder of the snapshot, its files, and their bytes."""

    path: Path
    files: int
    bytes: int


def write_hub_cache(
    model: StoredModel,
    hub: Path,
    repo_id: str,
    *,
    commit: str,
    ref: str = "main",
    progress: Callable[[int], None] = lambda _bytes: None,
) -> HubSnapshot:
    """Write a model's files into a cache; what is there already is kept.

    Args:
        model: what to write.
        hub: folder of the cache, such as ``~/.cache/huggingface/hub``; it is made.
        repo_id: ``namespace/name`` by which libraries ask.
        commit: digest of the commit that the model is of.
        ref: branch or tag that libraries ask for.
        progress: callback that receives the bytes written since its last call.

    Raises:
        InvalidInputError: another form of `repo_id`, or a model without a file.
        StorageError: the cache cannot be written.
    """
    if not _ID.fullmatch(repo_id):
        raise InvalidInputError(f"{repo_id!r:.200} is no name of a model there: NAMESPACE/NAME")
    folder = hub / ("models--" + repo_id.replace("/", "--"))
    snapshot = folder / "snapshots" / commit[:COMMIT_DIGITS]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="model-bytes") as pool:
        content = ModelFolder(model, pool, ProvedFrames())
        names = list(_names(content))
        if not names:
            raise InvalidInputError("the model has no tensors that safetensors holds, and no files")
        try:
            total = sum(_write(content, name, folder, snapshot, progress) for name in names)
            _put(folder / "refs" / ref, commit[:COMMIT_DIGITS].encode())
        except OSError as error:
            raise StorageError(f"{error.filename or folder}: {error.strerror}") from error
    return HubSnapshot(snapshot, len(names), total)


def _names(content: ModelFolder, folder: str = "") -> Iterator[str]:
    for name, size in (content.names(folder) or {}).items():
        path = f"{folder}/{name}" if folder else name
        if size is None:
            yield from _names(content, path)
        else:
            yield path


def _write(
    content: ModelFolder, name: str, folder: Path, snapshot: Path, progress: Callable[[int], None]
) -> int:
    """One file: its bytes under their digest, and the link that has its name."""
    file = content.file(name)
    assert file is not None, "it was listed"
    blobs, hasher = folder / "blobs", hashlib.sha256()
    blobs.mkdir(parents=True, exist_ok=True)
    partial = blobs / partial_name()
    try:
        with partial.open("wb") as written:
            for piece in file.pieces(0, file.size_bytes):
                hasher.update(piece)
                written.write(piece)
                progress(len(piece))
        blob = blobs / hasher.hexdigest()
        partial.replace(blob)
    finally:
        partial.unlink(missing_ok=True)
    link = snapshot / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    return file.size_bytes


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(partial_name())
    partial.write_bytes(content)
    partial.replace(path)
