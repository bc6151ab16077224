"""torch checkpoints, read without torch and without unpickling."""

from __future__ import annotations

import math
import pickle
import random
import subprocess
import sys
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.tensors import TORCH_NAMES
from tensorrepo.formats.exchange.checkpoints.torch import read_torch, write_torch
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError
from tests.support.builders.models import stored
from tests.support.faults.damage import places

CHECKED = sorted(name for name in TORCH_NAMES.values() if name != "complex32")


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def saved(torch: Any, path: Path, value: Any, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


def loaded(path: Path) -> Any:
    return stored(read_torch(path)).load(output="torch")


@pytest.mark.parametrize("name", CHECKED)
def test_every_type_comes_back(torch: Any, tmp_path: Path, name: str) -> None:
    raw = torch.arange(256, dtype=torch.uint8).reshape(4, 64)
    tensor = raw.view(getattr(torch, name)) if name != "bool" else raw > 7
    back = loaded(saved(torch, tmp_path / "m.pt", {"w": tensor}))["w"]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.together
@pytest.mark.parametrize(
    "view",
    [
        lambda tensor: tensor.t(),
        lambda tensor: tensor[3:7],
        lambda tensor: tensor[:, 2],
        lambda tensor: tensor[::2, 1::3],
        lambda tensor: tensor[5, 5],
        lambda tensor: tensor[:0],
        lambda tensor: tensor.reshape(4, 5, 15).permute(2, 0, 1),
        lambda tensor: tensor[0].expand(3, 30),
        lambda tensor: tensor.as_strided((4, 4), (1, 1)),
    ],
    ids=[
        "transposed",
        "rows",
        "column",
        "steps",
        "one",
        "none",
        "permuted",
        "expanded",
        "diagonals",
    ],
)
@pytest.mark.parametrize("type_name", ["float32", "bfloat16", "complex128"])
def test_every_view_is_stored_as_it_reads(
    torch: Any, tmp_path: Path, view: Any, type_name: str
) -> None:
    tensor = view(torch.arange(300.0).reshape(10, 30).to(getattr(torch, type_name)))
    padding = torch.zeros(1000)
    back = loaded(saved(torch, tmp_path / "m.pt", {"w": tensor, "padding": padding}))["w"]
    assert torch.equal(back, tensor)


def test_a_large_strided_tensor_is_read_range_by_range(torch: Any, tmp_path: Path) -> None:
    tensor = torch.arange(3_000_000.0).reshape(1500, 2000).t()
    back = loaded(saved(torch, tmp_path / "m.pt", {"w": tensor}))["w"]
    assert torch.equal(back, tensor)


def test_a_checkpoint_of_training_has_dotted_names_and_plain_values(
    torch: Any, tmp_path: Path
) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40))
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.randn(8, 30)).sum().backward()
    optimizer.step()
    checkpoint = {
        "model": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "best": math.inf,
        "name": "run é",
        "shape": torch.Size((3, 4)),
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "history": [{"loss": 1.5}, {"loss": 0.5}],
    }
    source = read_torch(saved(torch, tmp_path / "m.pt", checkpoint))
    model = stored(source)
    back = model.load(output="torch")
    assert torch.equal(back["model.0.weight"], module[0].weight)
    assert torch.equal(
        back["optimizer.state.0.exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"]
    )
    assert model.metadata["optimizer"]["param_groups"][0]["betas"] == [0.9, 0.999]
    plain = {key: model.metadata[key] for key in ("epoch", "best", "name", "shape", "history")}
    assert plain == {
        "epoch": 3,
        "best": math.inf,
        "name": "run é",
        "shape": [3, 4],
        "history": [{"loss": 1.5}, {"loss": 0.5}],
    }
    assert "model" not in model.metadata


def test_tied_weights_are_aliases_and_come_out_tied(torch: Any, tmp_path: Path) -> None:
    weight = torch.randn(50, 4)
    state = {"head": weight, "embed": weight, "apart": weight.clone(), "part": weight[:3]}
    model = stored(read_torch(saved(torch, tmp_path / "m.pt", state)))
    assert model.aliases == {"head": "embed"}
    write_torch(model, tmp_path / "out.pt")
    back = torch.load(tmp_path / "out.pt")
    assert back["head"].data_ptr() == back["embed"].data_ptr() != back["apart"].data_ptr()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_a_parameter_and_a_lone_tensor_are_tensors(torch: Any, tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.randn(40))
    assert torch.equal(loaded(saved(torch, tmp_path / "p.pt", parameter))["tensor"], parameter)
    listed = loaded(saved(torch, tmp_path / "l.pt", [torch.ones(2), parameter]))
    assert sorted(listed) == ["0", "1"]


def test_reading_needs_no_torch(torch: Any, tmp_path: Path) -> None:
    path = saved(torch, tmp_path / "m.pt", {"w": torch.arange(100.0).to(torch.bfloat16)})
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from tests.support.builders.models import stored\n"
        "from tensorrepo.formats.exchange.checkpoints.torch import read_torch\n"
        f"print(stored(read_torch(Path({str(path)!r})))['w'].sum())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expected = np.arange(100.0, dtype="f4").view("u4") >> 16
    assert (ran.stdout.strip(), ran.returncode) == (str(expected.sum()), 0), ran.stderr


class Evil:
    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


class Custom:
    """Somebody's own class."""


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Evil(exec, ("raise SystemExit",)), "exec"),
        (Evil(subprocess.run, (["false"],)), "run"),
        (Custom(), "Custom"),
        (random.Random(1), r"random\.Random"),
        (np.float64(1.5), "numpy"),
        ({1, 2}, "set"),
        (pickle.PickleError, "PickleError"),
    ],
    ids=["exec", "run", "class", "random", "numpy", "set", "exception"],
)
def test_what_is_no_tensor_and_no_plain_value_is_refused_by_name(
    torch: Any, tmp_path: Path, value: Any, name: str
) -> None:
    path = saved(torch, tmp_path / "m.pt", {"w": torch.ones(3), "x": value})
    with pytest.raises(InvalidInputError, match=name) as caught:
        read_torch(path)
    assert "state_dict" in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_whole_module_is_refused_and_says_what_to_save(torch: Any, tmp_path: Path) -> None:
    path = saved(torch, tmp_path / "m.pt", torch.nn.Linear(2, 3))
    with pytest.raises(InvalidInputError, match=r"torch\.nn\.modules\.linear\.Linear.*state_dict"):
        read_torch(path)


def test_sparse_and_quantized_tensors_are_refused_by_name(torch: Any, tmp_path: Path) -> None:
    path = saved(torch, tmp_path / "m.pt", {"w": torch.eye(3).to_sparse()})
    with pytest.raises(InvalidInputError, match="_rebuild_sparse_tensor"):
        read_torch(path)


def test_old_and_other_forms_say_how_to_convert_them(torch: Any, tmp_path: Path) -> None:
    old = saved(
        torch, tmp_path / "old.pt", {"w": torch.ones(3)}, _use_new_zipfile_serialization=False
    )
    with pytest.raises(UnsupportedError, match=r"torch\.save"):
        read_torch(old)
    (tmp_path / "tar.pt").write_bytes(bytes(257) + b"ustar" + bytes(300))
    with pytest.raises(UnsupportedError, match=r"torch\.save"):
        read_torch(tmp_path / "tar.pt")


def test_a_torchscript_program_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path, {"m/data.pkl": b"\x80\x02}.", "m/constants.pkl": b"\x80\x02)."})
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/code/__torch__.py", "class M:" * 99)  # torch compresses it
    with pytest.raises(UnsupportedError, match="TorchScript"):
        read_torch(path)


def zipped(folder: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    path = folder / "made.pt"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def pickled(
    offset: Any = 0,
    size: Any = (2,),
    stride: Any = (1,),
    *,
    key: Any = "0",
    rebuild: str = "torch._utils _rebuild_tensor_v2",
    kind: str = "torch FloatStorage",
) -> bytes:
    """A checkpoint ``{"w": tensor}`` as torch pickles it, with what one likes in it."""

    def made(value: Any) -> bytes:
        return pickle.dumps(value, 2)[2:-1]

    def named(text: str) -> bytes:
        return b"c" + text.replace(" ", "\n").encode() + b"\n"

    storage = b"(" + made("storage") + named(kind) + made(key) + made("cpu") + made(2) + b"tQ"
    arguments = b"".join(made(value) for value in (offset, size, stride, False, None))
    return b"\x80\x02}" + made("w") + named(rebuild) + b"(" + storage + arguments + b"tRs."


def test_a_checkpoint_made_by_hand_is_read(tmp_path: Path) -> None:
    path = zipped(
        tmp_path, {"m/data.pkl": pickled(), "m/data/0": np.r_[1.5, 2.5].astype("<f4").tobytes()}
    )
    assert stored(read_torch(path))["w"].tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": (3,)}, "needs 12 bytes"),
        ({"offset": 1}, "needs 12 bytes"),
        ({"stride": (2,)}, "needs 12 bytes"),
        ({"size": (1 << 61,)}, "needs"),
        ({"size": (1 << 62,)}, "no sizes"),
        ({"size": (1 << 40, 1 << 40), "stride": (0, 0)}, "more than the file"),
        ({"size": (-1,)}, "no sizes"),
        ({"offset": -1}, "no sizes"),
        ({"stride": (-1,)}, "no sizes"),
        ({"size": (2.0,)}, "no sizes"),
        ({"size": (True,)}, "no sizes"),
        ({"size": "ab"}, "lists of numbers"),
        ({"size": (1, 2)}, "2 dimensions and 1 strides"),
        ({"size": (1,) * 65, "stride": (1,) * 65}, "lists of numbers"),
        ({"key": "1"}, "no storage '1'"),
        ({"key": "../../etc/passwd"}, "no storage"),
        ({"key": 0}, "not described"),
        ({"kind": "collections OrderedDict"}, "not described"),
        ({"kind": "torch QInt8Storage"}, "QInt8Storage"),
        ({"kind": "torch.storage UntypedStorage"}, "type is unknown"),
        ({"rebuild": "torch._utils _rebuild_qtensor"}, "_rebuild_qtensor"),
        ({"rebuild": "torch FloatStorage"}, "no function"),
    ],
)
def test_a_tensor_that_lies_is_refused_and_takes_no_memory(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = zipped(tmp_path, {"m/data.pkl": pickled(**changes), "m/data/0": bytes(8)})
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match=message):
        read_torch(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000


def nested_lists(levels: int) -> bytes:
    """``[[x, x], [x, x]]`` and so on: two to the `levels` items in a few bytes each."""
    return b"\x80\x02]q\x00" + b"".join(
        b"](h%ch%ceq%c" % (level, level, level + 1) for level in range(levels)
    ) + b"."  # fmt: skip


@pytest.mark.parametrize(
    "program",
    [nested_lists(60), b"\x80\x02)" + b"\x85" * 200_000 + b".", b"\x80\x02]q\x00h\x00a."],
    ids=["two to the sixty items", "very deep", "a cycle"],
)
def test_a_structure_without_end_is_refused(tmp_path: Path, program: bytes) -> None:
    with pytest.raises(InvalidInputError, match=r"nested|program"):
        read_torch(zipped(tmp_path, {"m/data.pkl": program}))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"w": 1}, "no tensors"),
        ({"n": 1 << 64}, "64 bits"),
        ({"n": b"bytes"}, "bytes"),
        ({1: 2, "1": 3}, "read the same"),
        (3, "no tensors"),
    ],
)
def test_values_that_cannot_be_kept_are_refused(tmp_path: Path, value: Any, message: str) -> None:
    path = zipped(tmp_path, {"m/data.pkl": pickle.dumps(value, 3)})
    with pytest.raises(InvalidInputError, match=message):
        read_torch(path)


def test_two_tensors_of_one_dotted_name_are_refused(torch: Any, tmp_path: Path) -> None:
    value = OrderedDict([("a.b", torch.ones(2)), ("a", {"b": torch.zeros(2)})])
    with pytest.raises(InvalidInputError, match=r"'a\.b'"):
        read_torch(saved(torch, tmp_path / "m.pt", value))


@pytest.mark.parametrize(
    "entries",
    [
        {},
        {"data.pkl": b"\x80\x02}."},
        {"a/data.pkl": b"", "b/data.pkl": b""},
        {"a/b/data.pkl": b""},
    ],
)
def test_a_zip_that_is_no_checkpoint_is_refused(tmp_path: Path, entries: Any) -> None:
    with pytest.raises(InvalidInputError, match="no torch checkpoint"):
        read_torch(zipped(tmp_path, entries))


def test_a_compressed_entry_is_refused(tmp_path: Path) -> None:
    entries = {"m/data.pkl": pickled(), "m/data/0": bytes(8)}
    with pytest.raises(InvalidInputError, match="compressed"):
        read_torch(zipped(tmp_path, entries, zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize("keep", [0, 10, 100, 0.5, 0.95])
def test_a_checkpoint_cut_short_is_refused(torch: Any, tmp_path: Path, keep: float) -> None:
    path = saved(torch, tmp_path / "m.pt", {"w": torch.ones(1000)})
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if keep < 1 else int(keep)])
    with pytest.raises(InvalidInputError, match="cut short" if keep else "no zip"):
        read_torch(path)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="gone"):
        read_torch(tmp_path / "gone.pt")


def test_no_damaged_directory_of_the_zip_makes_another_error(torch: Any, tmp_path: Path) -> None:
    """Every byte of a small file, one at a time: read, or refused, and nothing else."""
    path = saved(torch, tmp_path / "m.pt", {"w": torch.ones(3)})
    data = path.read_bytes()
    outcomes = {_outcome(path, data, at) for at in places(len(data))}
    assert outcomes == {"read", "refused"}


def _outcome(path: Path, data: bytes, at: int) -> str:
    path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
    try:
        source = read_torch(path)
        buffer = bytearray(source.tensor_bytes)
        next(iter(source.tensors.values())).read_into(0, memoryview(buffer))
    except (InvalidInputError, UnsupportedError):
        return "refused"
    return "read"
