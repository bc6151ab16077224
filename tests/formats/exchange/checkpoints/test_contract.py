"""What every format of models promises: byte for byte out again, and no lie believed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.common.tensors import TYPES, ArrayTensor
from tensorrepo.formats.exchange.checkpoints.models import export_model, read_model, usual_format
from tensorrepo.formats.exchange.checkpoints.snapshot import READERS
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.repo.errors import Error, InvalidInputError, NotFoundError, UnsupportedError
from tests.support.builders import model_files
from tests.support.builders.models import stored
from tests.support.effort import sampled

FILES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "safetensors": ("m.safetensors", model_files.write_safetensors),
    "gguf": ("m.gguf", model_files.write_gguf),
    "onnx": ("m.onnx", model_files.write_onnx),
    "torch": ("m.pt", model_files.write_torch),
    "npz": ("m.npz", model_files.write_npz),
    "packed npz": ("m.npz", model_files.write_packed_npz),
    "npy": ("m.npy", model_files.write_npy),
}
EACH = pytest.mark.parametrize("kind", FILES)


def made(kind: str, folder: Path) -> Path:
    name, write = FILES[kind]
    return write(folder / name)


def form_of(kind: str) -> str:
    return kind.rpartition(" ")[2]


def values(model: StoredModel) -> dict[str, bytes]:
    return {name: b"".join(map(bytes, model.tensor_chunks(name))) for name in list(model)}


def copied(model: StoredModel) -> StoredModel:
    """The same tensors, of no file."""
    return stored(
        ModelSource(
            {name: model.tensor(name) for name in model.tensors}, dict(model.aliases),
            metadata=model.metadata,
        )
    )  # fmt: skip


@EACH
def test_a_file_comes_out_byte_for_byte_in_its_own_format(kind: str, tmp_path: Path) -> None:
    path = made(kind, tmp_path)
    model = stored(read_model(path))
    assert usual_format(model) == form_of(kind)
    export_model(model, tmp_path / "out", usual_format(model))
    assert (tmp_path / "out").read_bytes() == path.read_bytes()


@EACH
def test_new_files_hold_the_same_tensors(kind: str, tmp_path: Path) -> None:
    model = stored(read_model(made(kind, tmp_path)))
    new = copied(model)
    assert not new.originals
    form = form_of(kind)
    export_model(new, tmp_path / "again", form)
    back = stored(read_model(tmp_path / "again", form))
    only = {"again": values(new).popitem()[1]} if form == "npy" else values(new)
    assert values(back) == only


@EACH
def test_writing_twice_makes_the_same_file(kind: str, tmp_path: Path) -> None:
    new, form = copied(stored(read_model(made(kind, tmp_path)))), form_of(kind)
    export_model(new, tmp_path / "one", form)
    export_model(new, tmp_path / "two", form)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@EACH
def test_a_file_that_changes_between_reading_and_storing_is_refused(
    kind: str, tmp_path: Path
) -> None:
    path = made(kind, tmp_path)
    source = read_model(path)
    data = bytearray(path.read_bytes())
    data[12] ^= 1  # in what was read already
    path.write_bytes(data)
    with pytest.raises(InvalidInputError):
        stored(source)


def outcome(path: Path, data: bytes) -> str:
    """Read whole, or refused; nothing else may come of it, nor more memory than the file has."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        source = read_model(path)
        for tensor in source.tensors.values():
            buffer = bytearray(min(tensor.type.bytes_of(tensor.shape), 1 << 20))
            tensor.read_into(
                0,
                memoryview(
                    buffer[: len(buffer) // tensor.type.block_bytes * tensor.type.block_bytes]
                ),
            )
        found = "read" if source.tensors else "kept"
    except (InvalidInputError, UnsupportedError, NotFoundError):
        found = "refused"
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 40 * len(data) + 4_000_000
    return found


@EACH
def test_a_file_cut_anywhere_is_never_taken_for_a_whole_one(kind: str, tmp_path: Path) -> None:
    path = made(kind, tmp_path)
    data = path.read_bytes()
    cuts = sorted({*range(min(64, len(data))), *range(64, len(data), max(len(data) // 60, 1))})
    found = {outcome(path, data[:cut]) for cut in sampled(cuts, 50)}
    assert found <= {"refused", "kept"}


@EACH
def test_no_flipped_byte_makes_another_error(kind: str, tmp_path: Path) -> None:
    path = made(kind, tmp_path)
    data = path.read_bytes()
    places = sorted({*range(min(128, len(data))), *range(128, len(data), max(len(data) // 150, 1))})
    for at in sampled(places, 40):
        outcome(path, data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])


@pytest.mark.parametrize("form", ["safetensors", "gguf", "onnx", "torch", "npz"])
def test_a_type_that_a_format_lacks_is_refused_by_the_tensors_name(
    form: str, tmp_path: Path
) -> None:
    odd = ArrayTensor(np.zeros(3, "u1"), TYPES["OPAQUE"], (3,))
    with pytest.raises(InvalidInputError, match=r"'odd\.one'.*OPAQUE"):
        export_model(stored(ModelSource({"odd.one": odd})), tmp_path / "out", form)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", READERS)
def test_nonsense_of_a_named_format_is_refused(form: str, tmp_path: Path) -> None:
    path = tmp_path / "m.x"
    path.write_bytes(b"nonsense" * 100)
    with pytest.raises(Error):
        read_model(path, form)


@pytest.mark.parametrize("suffix", ["safetensors", "gguf", "onnx"])
def test_a_whole_file_that_cannot_be_parsed_is_kept_with_a_note(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"m.{suffix}"
    path.write_bytes({"gguf": b"GGUF" + bytes(100)}.get(suffix, (2).to_bytes(8, "little") + b"[]"))
    source = read_model(path)
    assert "kept as a file" in source.notes[0]
    export_model(stored(source), tmp_path / "out")
    assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
