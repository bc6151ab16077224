"""The model whose bytes are kept in tests/golden/model: one of everything that version 2 writes.

`python -m tests.support.golden.model` writes the files anew, which changes the stored format.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.common.tensors import TYPES, ArrayTensor, tensor_of
from tensorrepo.formats.model.write.model_source import ModelSource, OriginalFile
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.hashing.digests import object_digest
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind, decode_object
from tests.support.architecture.sources import ROOT
from tests.support.builders.models import noise
from tests.support.builders.objects import MemoryObjects

GOLDEN = ROOT / "tests/golden/model"
HEAD = b"\x02\0\0\0\0\0\0\0{}"
VALUES = {
    "embed.weight": noise(0, 300_000).view("<u4"),  # two frames
    "norm.bias": np.arange(50, dtype="<f8") / 4,
    "scalar": np.array(1.5, "<f4"),
    "empty": np.zeros((0, 3), "<i8"),
}


BASE_WEIGHT = (16_000 + np.arange(70_000) // 41).astype("<u2")
TUNED_WEIGHT = BASE_WEIGHT + (np.arange(70_000, dtype="<u2") % 11 == 0)
LONG = 1 << 18  # numbers: 64 coders take turns
LONG_BASE = 16_000 + ((noise(0, LONG) & 15 < 1).astype("<u2") << np.uint16(7))
LONG_TUNED = LONG_BASE + (noise(LONG, 2 * LONG) & 255 < 4)


def golden_objects() -> dict[str, bytes]:
    """File name and stored bytes of the model's own objects.

    Of the large pack the members are left out: what follows them is kept, directory and footer.
    """
    objects = MemoryObjects()
    entry = write_model(
        objects,
        golden_source(),
        files={"config.json": b'{"layers": 2}'},
        metadata={"epoch": 3, "nested": {"b": [1, None, True, "x"], "a": 0.5}},
        metrics={"accuracy": 0.91},
        lineage=[ProvenanceEdge("trained_on", "datasets/digits", "1" * 64, "2" * 64, {"seed": 7})],
    )
    assert entry.storage is not None, "a model has a placement"
    packs = [digest for digest, link in objects.links.items() if link.kind is Kind.PACK]
    small, large = sorted((objects.stored[digest] for digest in packs), key=len)
    directory_start = 4096 + VALUES["embed.weight"].nbytes
    return {
        "manifest.bin": objects.stored[entry.digest],
        "placement.bin": objects.stored[entry.storage],
        "pack-small.bin": small,
        "pack-large-tail.bin": large[directory_start:],
    }


def golden_family() -> tuple[dict[str, bytes], Entry]:
    """The objects of a model that is stored as the difference from another, and its entry."""
    return _tuned("family", family_source(BASE_WEIGHT), family_source(TUNED_WEIGHT))


def golden_long() -> tuple[dict[str, bytes], Entry]:
    """The same of one long tensor."""
    base, tuned = (
        ModelSource({"long": ArrayTensor(weight, TYPES["BF16"], (512, LONG // 512))})
        for weight in (LONG_BASE, LONG_TUNED)
    )
    return _tuned("long", base, tuned)


def _tuned(kind: str, base: ModelSource, tuned: ModelSource) -> tuple[dict[str, bytes], Entry]:
    objects = MemoryObjects()
    entry = write_model(objects, tuned, known=[write_model(objects, base)])
    return {f"{kind}-{name:.12}.bin": data for name, data in objects.stored.items()}, entry


def kept_objects(kind: str) -> MemoryObjects:
    """The objects of the golden files of one of these models."""
    objects = MemoryObjects()
    for path in GOLDEN.glob(f"{kind}-*.bin"):
        data = path.read_bytes()
        envelope = decode_object(data)
        digest = object_digest((data,))
        objects.stored[digest], objects.links[digest] = data, envelope.link(digest)
    return objects


def family_source(weight: NDArray[np.uint16]) -> ModelSource:
    tensor = ArrayTensor(weight, TYPES["BF16"], (700, 100))
    return ModelSource({"norm": tensor_of("norm", VALUES["norm.bias"]), "weight": tensor})


def golden_source() -> ModelSource:
    readers = {name: tensor_of(name, value) for name, value in VALUES.items()}
    half = ArrayTensor(np.arange(100, dtype="<u2"), TYPES["BF16"], (10, 10))
    four_bit = ArrayTensor(np.arange(100, dtype="u1"), TYPES["F4"], (2, 100))
    original = GOLDEN / "original.bin"
    return ModelSource(
        {**readers, "half": half, "four": four_bit},
        aliases={"head.weight": "embed.weight"},
        originals=(OriginalFile("model.bin", "test", original, (HEAD, "norm.bias")),),
    )


def write_golden() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    (GOLDEN / "original.bin").write_bytes(HEAD + VALUES["norm.bias"].tobytes())
    for name, data in golden_objects().items():
        (GOLDEN / name).write_bytes(data)
    for old in (*GOLDEN.glob("family-*.bin"), *GOLDEN.glob("long-*.bin")):
        old.unlink()
    for name, data in (golden_family()[0] | golden_long()[0]).items():
        (GOLDEN / name).write_bytes(data)


if __name__ == "__main__":
    write_golden()
