"""Verification of a stored model: every byte, against digests, tags and the graph.

All tensors are read frame by frame and checked against their digests; files by their digests, and
files that are given back by their SHA-256. Memory is bounded, and one fault does not hide another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.repo.errors import CorruptError, NotFoundError

if TYPE_CHECKING:
    from tensorrepo.formats.model.stored_model import StoredModel


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """What was read, and what is wrong with it: a sentence for each fault."""

    tensors: int
    files: int
    bytes: int
    faults: tuple[str, ...]


def verify_model(
    model: StoredModel, progress: Callable[[int], None] = lambda _done: None
) -> VerificationReport:
    """Read all of a model.

    Args:
        model: the stored one.
        progress: told the bytes of tensors done so far.
    """
    faults: list[str] = []
    done = 0

    def read(name: str) -> None:
        nonlocal done
        for chunk in model.tensor_chunks(name):
            done += len(chunk)
            progress(done)

    for name in model.tensors:
        _try(faults, lambda name=name: read(name))  # type: ignore[misc]  # mypy cannot infer it
    for name, file in model.files.items():
        expected = file.sha256
        _try(faults, lambda name=name, sha=expected: _check_file(model, name, sha))  # type: ignore[misc]
    for name in model.originals:
        _try(faults, lambda name=name: _consume(model, name))  # type: ignore[misc]
    _try(faults, lambda: model_graph(model))
    return VerificationReport(
        len(model.tensors), len(model.files) + len(model.originals), done, tuple(faults)
    )


def _try(faults: list[str], check: Callable[[], object]) -> None:
    try:
        check()
    except (CorruptError, NotFoundError) as error:
        faults.append(str(error))


def _consume(model: StoredModel, name: str) -> None:
    for _ in model.file_chunks(name):
        pass  # checked at the end, by its SHA-256


def _check_file(model: StoredModel, name: str, expected: bytes) -> None:
    hasher = sha256()
    for chunk in model.file_chunks(name):
        hasher.update(chunk)
    if hasher.digest() != expected:
        raise CorruptError(
            f"file {name!r} of model {model.entry.digest:.12}: expected SHA-256 "
            f"{expected.hex():.12}, found {hasher.hexdigest():.12}"
        )
