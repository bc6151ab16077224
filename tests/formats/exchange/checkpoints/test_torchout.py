"""torch checkpoints written without torch: torch and our own reader find the same in them."""

from __future__ import annotations

import pickletools
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.tensors import TORCH_NAMES, TYPES, ArrayTensor
from tensorrepo.formats.exchange.checkpoints.torch import read_torch, write_torch
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.models import stored

PLAIN = {
    "BINPUT", "BINUNICODE", "BININT", "BININT1", "EMPTY_TUPLE", "GLOBAL", "MARK", "NEWFALSE",
    "PROTO", "REDUCE", "BINPERSID", "SETITEMS", "STOP", "TUPLE", "LONG1",
}  # fmt: skip


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def opcodes(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {code.name for code, _, _ in pickletools.genops(archive.read("archive/data.pkl"))}


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", TORCH_NAMES)
def test_torch_loads_every_type_without_unpickling(torch: Any, tmp_path: Path, name: str) -> None:
    element = TYPES[name]
    items = np.arange(24 * element.block_bytes, dtype="u1") % 2
    shape = (2, 3, 4 * element.block_elements)
    packed = items.view(f"V{element.block_bytes}").reshape(2, 3, 4)
    model = stored(ModelSource({"w": ArrayTensor(packed, element, shape)}))
    write_torch(model, tmp_path / "m.pt")
    tensor = torch.load(tmp_path / "m.pt", weights_only=True)["w"]
    assert str(tensor.dtype) == f"torch.{TORCH_NAMES[name]}"
    assert tuple(tensor.shape) == (2, 3, 4)
    assert tensor.is_contiguous()
    assert tensor.reshape(-1).view(torch.uint8).tolist() == items.tolist()
    again = stored(read_torch(tmp_path / "m.pt"))
    assert again.manifest.tensors == model.manifest.tensors
    assert opcodes(tmp_path / "m.pt") <= PLAIN


def test_storages_are_mapped_where_torch_wants_them(torch: Any, tmp_path: Path) -> None:
    weights = {"b": np.arange(5.0), "a": np.arange(1000, dtype="f4"), "none": np.zeros((0, 2))}
    write_torch(stored(weights), tmp_path / "m.pt")
    loaded = torch.load(tmp_path / "m.pt", weights_only=True, mmap=True)
    assert {name: value.numpy().tolist() for name, value in loaded.items()} == {
        name: value.tolist() for name, value in weights.items()
    }
    assert all(loaded[name].data_ptr() % 64 == 0 for name in ("a", "b"))


def test_a_model_without_tensors_is_an_empty_state_dict(torch: Any, tmp_path: Path) -> None:
    write_torch(stored({}), tmp_path / "m.pt")
    assert torch.load(tmp_path / "m.pt", weights_only=True) == {}


@pytest.mark.parametrize("name", ["Q4_0", "F6_E2M3", "OPAQUE"])
def test_types_that_torch_lacks_are_refused_by_name(name: str, tmp_path: Path) -> None:
    element = TYPES[name]
    items = np.zeros(element.block_bytes, "u1").view(f"V{element.block_bytes}")
    model = stored(ModelSource({"w": ArrayTensor(items, element, (element.block_elements,))}))
    with pytest.raises(InvalidInputError, match=rf"'w'.*{name}"):
        write_torch(model, tmp_path / "m.pt")
    assert list(tmp_path.iterdir()) == []


def test_torch_is_not_imported(tmp_path: Path) -> None:
    program = f"""
import sys
import numpy as np
from pathlib import Path
from tensorrepo.formats.exchange.checkpoints.torch import write_torch
from tests.support.builders.models import stored
write_torch(stored({{"w": np.ones(100)}}), Path({str(tmp_path / "m.pt")!r}))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert stored(read_torch(tmp_path / "m.pt"))["w"].tolist() == [1.0] * 100
