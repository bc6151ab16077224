"""Models for the cases: of any size, stored as they are, encoded, or against another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from harness import MIB, SEED
from model_cases import pairs
from model_cases.codecs import trained

from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter

Arrays = dict[str, np.ndarray[Any, Any]]

AS_THEY_ARE = DeltaOptions(codecs=frozenset())
DELTAS = frozenset({"delta"})


def random_model(mib: float) -> Arrays:
    """Weights of many sizes, as transformers have them."""
    rng = np.random.default_rng(SEED)
    width = 4096 if mib >= 128 else 512
    layers = max(1, round(mib * MIB / (4 * width * width + 800_000)))
    tensors: Arrays = {}
    for layer in range(layers):
        tensors[f"layers.{layer}.w"] = rng.standard_normal((width, width), dtype="f4")
        tensors[f"layers.{layer}.norm"] = rng.standard_normal(width, dtype="f4")
        tensors[f"layers.{layer}.bias"] = rng.standard_normal(200_000, dtype="f4")
    return tensors


def small_model(mib: float) -> Arrays:
    """Many tensors of 1 to 64 KiB."""
    rng = np.random.default_rng(SEED)
    sizes = rng.integers(256, 16_384, max(8, round(mib * MIB / 33_280)))
    return {f"t{at}": rng.standard_normal(size, dtype="f4") for at, size in enumerate(sizes)}


def grown(step: int, mib: float) -> Arrays:
    """The trained transformer's weights over and over, each time turned by some elements.

    Turned alike at every step, so that they move as the trained ones do, and no two are equal.
    """
    arrays = pairs.load(trained(), "transformer", step)
    named = {name: array for name, array in arrays.items() if not name.startswith(("m/", "v/"))}
    copies = max(1, round(mib * MIB / sum(array.nbytes for array in named.values())))
    return {
        f"{at}.{name}": np.roll(array.reshape(-1), at).reshape(array.shape)
        for at in range(copies)
        for name, array in named.items()
    }


def stacked(tensors: Arrays) -> Arrays:
    """All copies of each of the weights that `grown` made, as one: tensors of some 26 MiB."""
    copies: dict[str, list[np.ndarray[Any, Any]]] = {}
    for name, array in tensors.items():
        copies.setdefault(name.partition(".")[2], []).append(array)
    return {name: np.concatenate(arrays) for name, arrays in copies.items()}


class Stored:
    """Models in the objects of one folder."""

    def __init__(self, folder: Path) -> None:
        self.backend = LocalBackend(folder)

    def put(self, tensors: Any, against: DeltaOptions = AS_THEY_ARE) -> Entry:
        writer = ObjectWriter(ObjectStore(self.backend), ())
        entry = write_model(writer, tensors, against=against)
        writer.flush()
        return entry

    def open(self, entry: Entry) -> StoredModel:
        """As a process sees it that has just begun."""
        return open_model(ObjectStore(self.backend), entry)


def stored_bytes(model: StoredModel) -> int:
    """Bytes of all that a read of the whole model needs, bases as well."""
    return sum(entry.stored_bytes for entry in model.packs.members.entries.values())
