"""How many bytes come from afar for one tensor, for a tenth of its rows, and for rows by number?

The objects lie where nothing is mapped, and every request for a range is counted: planes, and the
directories of packs apart from them. The bound is 1.2 times what is stored of the rows, bases
included, and one frame for each tensor of the chain.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Case, CountingStore, Options
from model_cases.models import AS_THEY_ARE, DELTAS, grown, random_model

from tensorrepo.formats.model.layout.fingerprints import frame_bytes
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.objects.writer import ObjectWriter

MIB_OF_MODEL = 192


def slices(how: str) -> Case:
    def case(folder: Path, options: Options) -> dict[str, Any]:  # noqa: ARG001
        model = _stored(how, MIB_OF_MODEL * options.scale)
        name = max(model.keys(), key=lambda one: model.spec(one).size_bytes)
        spec = model.spec(name)
        frame, rows = frame_bytes(spec.type), spec.shape[0]
        members, chain = _needed(model, spec.fingerprint or "")
        whole, tenth = (
            _read(open_model(model.objects, model.entry), name, slice(start, stop))
            for start, stop in ((0, rows), (rows // 3, rows // 3 + rows // 10))
        )
        return {
            "tensor_mib": round(spec.size_bytes / 2**20, 1),
            "stored_share_of_raw": round(members / spec.size_bytes / chain, 3),
            "whole_to_stored": round(whole["bytes"] / members, 3),
            "whole_requests": whole["requests"],
            "tenth_to_stored": round(tenth["bytes"] / (members / 10), 3),
            "tenth_to_bound": round(
                tenth["bytes"] / (1.2 * members / 10 + members * frame / spec.size_bytes), 3
            ),
            "tenth_requests": tenth["requests"],
            "goal": "whole_to_stored <= 1.2, tenth_to_bound <= 1",
        }

    return case


def rows(how: str) -> Case:
    def case(folder: Path, options: Options) -> dict[str, Any]:  # noqa: ARG001
        import numpy as np

        name, length = "table", int(65536 * options.scale)
        table = np.random.default_rng(1).standard_normal((length, 384), "f4")
        backend = MemoryBackend()
        writer = ObjectWriter(CountingStore(backend), ())
        against = AS_THEY_ARE if how == "raw" else DeltaOptions()
        entry = write_model(writer, {name: table}, against=against)
        writer.flush()
        model = open_model(CountingStore(backend), entry)
        spec = model.spec(name)
        ids = np.random.default_rng(0).integers(0, spec.shape[0] // 8, 1000)
        members, chain = _needed(model, spec.fingerprint or "")
        read = _read(open_model(model.objects, model.entry), name, ids)
        touched = np.unique(ids * (spec.size_bytes // spec.shape[0]) // frame_bytes(spec.type))
        frames = -(-spec.size_bytes // frame_bytes(spec.type))
        return {
            "rows": len(ids),
            "table_rows": spec.shape[0],
            "frames_of_ids": len(touched),
            "frames": frames,
            "members_in_chain": chain,
            "read_to_stored": round(read["bytes"] / members, 3),
            "read_to_frames_of_ids": round(read["bytes"] / members * frames / len(touched), 3),
            "requests": read["requests"],
            "goal": "read_to_frames_of_ids <= 1.2",
        }

    return case


def _stored(how: str, mib: float) -> StoredModel:
    backend = MemoryBackend()
    objects = CountingStore(backend)
    writer = ObjectWriter(objects, ())
    if how == "delta":
        base, new = (grown(step, mib / 2) for step in (200, 201))
        under = write_model(writer, _joined(base))
        entry = write_model(writer, _joined(new), against=DeltaOptions(under, codecs=DELTAS))
    else:
        against = AS_THEY_ARE if how == "raw" else DeltaOptions()
        entry = write_model(writer, random_model(mib), against=against)
    writer.flush()
    return open_model(CountingStore(backend), entry)


def _joined(tensors: dict[str, Any]) -> dict[str, Any]:
    """All matrices of 256 columns as one: a tensor of many frames."""
    import numpy as np

    wide = [each for each in tensors.values() if each.shape[-1:] == (256,) and each.ndim == 2]
    return {"w": np.concatenate(wide)}


def _needed(model: StoredModel, fingerprint: str) -> tuple[int, int]:
    """Stored bytes of a tensor and all its bases, and how many tensors that are."""
    entries = model.packs.members.entries
    pending = list(model.packs.stored[bytes.fromhex(fingerprint)].members)
    depth = max(member.depth for member in pending)
    total, seen = 0, set()
    while pending:
        member = pending.pop()
        if member.place not in seen:
            seen.add(member.place)
            total += member.stored_bytes
            pending += [entries[base] for base in member.bases]
    return total, depth + 1


def _read(model: StoredModel, name: str, rows: Any) -> dict[str, int]:
    objects = model.objects
    assert isinstance(objects, CountingStore)
    for one in model.keys():  # noqa: SIM118  # a Model is no dict; directories are read once
        model.tensor(one)
    objects.requests = objects.bytes = 0
    if isinstance(rows, slice):
        model.slice(name, (rows,))
    else:
        model.rows(name, rows)
    return {"bytes": objects.bytes, "requests": objects.requests}


CASES: dict[str, Case] = {f"slice_{how}": slices(how) for how in ("raw", "planes", "delta")}
CASES |= {f"rows_{how}": rows(how) for how in ("raw", "planes")}
