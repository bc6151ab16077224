"""Weights that came without a file, as one of safetensors: its bytes, and their SHA-256.

The bytes are made when they are read, and the same each time. Their hash is computed by reading all
of the tensors once, on a thread of its own, and kept on disk. Whoever cannot wait for it asks
again: the thread goes on.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

import xxhash

from tensorrepo.api.content.commit_content import CommitContent, ContentMemory
from tensorrepo.api.content.model_bytes import pieces_of
from tensorrepo.formats.files.models import made_file
from tensorrepo.formats.model.read.byte_ranges import ModelBytes
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.repo.deferred_dataclass import dataclass

# Hashing takes a core, and a service has other things to do.
_HASHED_AT_ONCE: Final = 2
_HASHING: Final = threading.BoundedSemaphore(_HASHED_AT_ONCE)


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
        return self.hashing().result()

    def known_sha256(self) -> str | None:
        """SHA-256 as hex digits, where it was computed before; nothing is read for it."""
        begun = self.memory.hashes.get(self.name)
        if begun is not None and begun.done() and begun.exception() is None:
            return begun.result()
        return self._kept()

    def hashing(self) -> Future[str]:
        """The SHA-256 that a thread computes, unless it is known; one thread for all who ask."""
        hashes = self.memory.hashes
        begun = hashes.get_or_load(self.name, lambda: (self._begin(), 1))
        if begun.done() and begun.exception() is not None:
            hashes.drop(self.name)  # what was damaged may have been mended
            begun = hashes.get_or_load(self.name, lambda: (self._begin(), 1))
        return begun

    def _begin(self) -> Future[str]:
        begun, known = Future[str](), self._kept()
        if known is not None:
            begun.set_result(known)
        else:
            # A daemon: nobody waits for it when the service ends.
            threading.Thread(
                target=self._compute, args=(begun,), name="made-weights", daemon=True
            ).start()
        return begun

    def _compute(self, begun: Future[str]) -> None:
        try:
            with _HASHING:
                digest = self._hash()
        except BaseException as error:  # noqa: BLE001  raised where it is asked for
            begun.set_exception(error)
        else:
            begun.set_result(digest.hex())

    def _hash(self) -> bytes:
        hasher = hashlib.sha256()
        for piece in self.pieces(0, self.size_bytes):
            hasher.update(piece)
        kept = self.memory.profiles
        if kept is not None:
            kept.put(self.name, (hasher.digest(),))
        return hasher.digest()

    def _kept(self) -> str | None:
        kept = self.memory.profiles
        known = None if kept is None else kept.get(self.name)
        return None if known is None else bytes(known).hex()


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
