"""Weights that came without a file, as one of safetensors: its bytes, and their SHA-256.

The bytes are made when they are read, and the same each time. Their hash is computed by reading all
of the tensors once, and kept on disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from tensorrepo.api.content.commit_content import CommitContent, ContentMemory
from tensorrepo.api.content.model_bytes import pieces_of
from tensorrepo.formats.files.models import made_file
from tensorrepo.formats.model.read.byte_ranges import ModelBytes
from tensorrepo.formats.model.stored_model import StoredModel


@dataclass(frozen=True, slots=True)
class MadeWeights:
    """The file of a model that is made of its tensors.

    Attributes:
        content: what it is made of.
        name: name of its bytes, other ones of which have another name.
        memory: where its hash is kept.
    """

    content: ModelBytes
    name: str
    memory: ContentMemory

    @property
    def size_bytes(self) -> int:
        return self.content.size_bytes

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """Bytes ``[start, stop)``, proved."""
        return pieces_of(lambda: self.content, start, stop)

    def sha256(self) -> str:
        """SHA-256 as hex digits; the first call reads all of it, for all who ask meanwhile."""
        return self.memory.hashes.get_or_load(self.name, lambda: (self._hash(), 1))

    def _hash(self) -> str:
        kept = self.memory.profiles
        known = None if kept is None else kept.get(self.name)
        if known is not None:
            return bytes(known).hex()
        hasher = hashlib.sha256()
        for piece in self.pieces(0, self.size_bytes):
            hasher.update(piece)
        if kept is not None:
            kept.put(self.name, (hasher.digest(),))
        return hasher.hexdigest()


def made_weights(content: CommitContent, model: StoredModel) -> MadeWeights:
    """The tensors of a model of a commit that are in none of its files, as one; there are some."""

    def make() -> tuple[ModelBytes, int]:
        made = made_file(model)
        assert made is not None, "asked for where there is one"
        return made, 1

    made = content.memory.weights.get_or_load(content.model_key(model.entry), make)
    # The digest says which tensors they are, the first part where each lies.
    head = made.parts[0]
    assert not isinstance(head, str), "it begins with its header"
    layout = xxhash.xxh3_128_hexdigest(head)
    return MadeWeights(made, f"{model.entry.digest}.{layout}.sha256", content.memory)
