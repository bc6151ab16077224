"""A model as a folder: its files as they came, and tensors that came without one as safetensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from functools import cached_property
from typing import Final

from tensorrepo.formats.common.tensors import SAFETENSORS_TYPES
from tensorrepo.formats.exchange.checkpoints.safetensors import new_layout
from tensorrepo.formats.files.base import PathIndex
from tensorrepo.formats.model.layout.manifest import Original
from tensorrepo.formats.model.read.byte_ranges import ModelBytes, ProvedFrames, file_bytes
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.ids import digest_bytes
from tensorrepo.repo.objects.envelope import Kind, ObjectSink

MADE: Final = "model.safetensors"  # of tensors that did not come as a file of weights
_MADE_METADATA: Final = {"format": "pt"}


def has_made_file(model: StoredModel) -> bool:
    """Whether it has tensors that are in no file, and safetensors holds all of these."""
    if MADE in model.files or MADE in model.originals:
        return False
    loose = model.loose
    return bool(loose) and all(model.spec(name).type.name in SAFETENSORS_TYPES for name in loose)


def made_file(model: StoredModel) -> ModelBytes | None:
    """The file `MADE`: the tensors that are in no file, as a new one; None: there is none.

    Its bytes are a function of these tensors, and the same each time.
    """
    if not has_made_file(model):
        return None
    head, ordered = new_layout(model, _MADE_METADATA, model.loose)
    return ModelBytes(model, (head, *ordered))


def keep_made_file(objects: ObjectSink, made: ModelBytes, sha256: bytes) -> Original:
    """What `made_file` made, of that SHA-256, as a file that came: its header is stored."""
    head, *names = made.parts
    assert not isinstance(head, str), "it begins with its header"
    blob = digest_bytes(objects.put(Kind.BLOB, head).digest)
    parts: list[int | str] = [len(head)]
    parts += (name for name in names if isinstance(name, str))
    return Original(MADE, "safetensors", blob, tuple(parts), (), made.size_bytes, sha256)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model."""

    content: ModelBytes
    size_bytes: int
    pool: Executor
    proved: ProvedFrames

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """See `PresentedFile`. `pool` decodes ahead."""
        return self.content.pieces(start, stop, self.pool, self.proved)

    def piece_start(self, at: int) -> int:
        """See `PresentedFile`: where a tensor begins, or one of its frames."""
        return self.content.piece_start(at)


@dataclass(frozen=True)
class ModelFolder:
    """See `PresentedFolder`. `pool` decodes what is read; `proved` is shared by all models."""

    model: StoredModel
    pool: Executor
    proved: ProvedFrames

    def names(self, folder: str) -> Mapping[str, int | None] | None:
        return self._sizes.names(folder)

    def file(self, path: str) -> ModelFile | None:
        size_bytes = self._sizes.get(path)
        if size_bytes is None:
            return None
        known = path in self.model.files or path in self.model.originals
        content = file_bytes(self.model, path) if known else self._made
        assert content is not None, "it is listed"
        return ModelFile(content, size_bytes, self.pool, self.proved)

    @cached_property
    def _sizes(self) -> PathIndex[int]:
        sizes = {name: file.size_bytes for name, file in self.model.files.items()}
        sizes |= {name: file.size_bytes for name, file in self.model.originals.items()}
        if self._made is not None:
            sizes[MADE] = self._made.size_bytes
        return PathIndex(sorted(sizes.items()))

    @cached_property
    def _made(self) -> ModelBytes | None:
        return made_file(self.model)
