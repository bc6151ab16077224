"""Verification of a stored model: every byte, against digests, tags and the graph.

All tensors are read frame by frame and checked against their digests; files by their digests, and
files that are given back by their SHA-256. Memory is bounded, and one fault does not hide another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256

from tensorrepo.formats.common.arguments import bytes_text, counted
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, NotFoundError
from tensorrepo.repo.tables import RecordTable, Shown


@dataclass(frozen=True, slots=True, repr=False)
class VerificationReport(Shown):
    """What was read, and what is wrong with it: a sentence for each fault."""

    tensors: int
    files: int
    bytes: int
    faults: tuple[str, ...]

    def to_table(self) -> RecordTable:
        """What was read, then each fault."""
        read = f"{counted(self.tensors, 'tensor')} and {counted(self.files, 'file')}"
        state = counted(len(self.faults), "fault") if self.faults else "all whole"
        return RecordTable((f"{read}, {bytes_text(self.bytes)}: {state}", *self.faults))


def verify_model(
    model: StoredModel,
    progress: Callable[[int], None] = lambda _done: None,
    *,
    is_new: Callable[[tuple[object, ...]], bool] = lambda _: True,
) -> VerificationReport:
    """Read all of a model, every frame of every tensor.

    Args:
        model: what is verified.
        progress: told the bytes of tensors done so far.
        is_new: whether a tensor was not verified before, by what names it and its frames: versions
            share them.
    """
    faults: list[str] = []
    done = 0

    def read(name: str) -> None:
        nonlocal done
        if not is_new(_frames_of(model, name)):
            return
        for chunk in model.tensor_chunks(name):
            done += len(chunk)
            progress(done)

    checks: list[Callable[[], object]] = [partial(read, name) for name in model.tensors]
    checks += [partial(_check_file, model, name) for name in (*model.files, *model.originals)]
    checks.append(partial(model_graph, model))
    for check in checks:
        try:
            check()
        except (CorruptError, NotFoundError) as error:
            faults.append(str(error))
    return VerificationReport(
        len(model.tensors), len(model.files) + len(model.originals), done, (*dict.fromkeys(faults),)
    )


def _frames_of(model: StoredModel, name: str) -> tuple[object, ...]:
    """Content of a tensor, and where its frames lie: equal in versions that share them."""
    packs = model.packs.members.packs
    places = model.packs.places(model.tensors[name])
    return model.content(name), *((packs[pack].digest, member) for pack, member in places)


def _check_file(model: StoredModel, name: str) -> None:
    file, hasher = model.files.get(name), sha256()
    for chunk in model.file_chunks(name):
        if file is not None:  # of one that is made of tensors the sum is checked already
            hasher.update(chunk)
    if file is not None and hasher.digest() != file.sha256:
        raise CorruptError(
            f"file {name!r} of model {model.entry.digest:.12}: expected SHA-256 "
            f"{file.sha256.hex():.12}, found {hasher.hexdigest():.12}"
        )
