"""Checkpoints that somebody made to run code, to fill memory or to deceive: all are refused."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.formats.exchange.checkpoints.torch import read_torch
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tests.support.builders.models import stored

MARKER = "touched-by-a-pickle"
COMMAND = f"touch {MARKER}"
REFUSED = (InvalidInputError, UnsupportedError)


class Reduced:
    """Pickles as a call of whatever it is given."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def stack_global(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


SYSTEM = b"cposix\nsystem\n"
CALL = text(COMMAND) + b"\x85R"
STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuJ\x02\0\0\0tQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"K\0K\x02\x85K\x01\x85\x89}tR"
DICT = b"ccollections\nOrderedDict\n"

# Every way of a pickle to name something and to call it, and every other trick that is known.
PROGRAMS: dict[str, bytes] = {
    "GLOBAL and REDUCE": b"\x80\x02" + SYSTEM + CALL + b".",
    "STACK_GLOBAL and REDUCE": b"\x80\x04" + stack_global("os", "system") + CALL + b".",
    "STACK_GLOBAL of memoized names": b"\x80\x04" + text("os") + b"\x94" + text("system")
    + b"\x940h\x000h\x00h\x01\x93" + CALL + b".",
    "STACK_GLOBAL of a dotted name": b"\x80\x04" + stack_global("torch", "os.system") + CALL + b".",
    "a module of torch's that imports os": b"\x80\x04"
    + stack_global("torch.serialization", "os.system") + CALL + b".",
    "globals of a known function": b"\x80\x04"
    + stack_global("torch._utils", "_rebuild_tensor_v2.__globals__") + b".",
    "INST": b"(" + text(COMMAND) + b"iposix\nsystem\n.",
    "OBJ": b"(" + SYSTEM + text(COMMAND) + b"o.",
    "NEWOBJ": b"\x80\x02" + SYSTEM + text(COMMAND) + b"\x85\x81.",
    "NEWOBJ_EX": b"\x80\x04" + SYSTEM + text(COMMAND) + b"\x85}\x92.",
    "BUILD with a state": b"\x80\x02" + TENSOR + b"}" + text("__setstate__") + SYSTEM + b"sb.",
    "BUILD of attributes": b"\x80\x02" + DICT + b")R}" + text("__class__") + SYSTEM + b"sb.",
    "BUILD of a dict": b"\x80\x02}}b.",
    "EXT1": b"\x80\x02\x82\x01.",
    "EXT2": b"\x80\x02\x83\x01\x00.",
    "EXT4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "PERSID": b"P0\n.",
    "a persistent id of another kind": b"\x80\x02" + text("module") + b"Q.",
    "a persistent module": b"\x80\x02(" + text("module") + SYSTEM + text("x") * 2 + b"K\x01tQ.",
    "a storage of a known function": b"\x80\x02(" + text("storage") + DICT + text("0") * 2
    + b"K\x01tQ.",
    "a storage key that is a path": b"\x80\x02"
    + TENSOR.replace(b"X\x01\0\0\x000", text("../../x")) + b".",
    "a call of a call": b"\x80\x02" + DICT + b")R)R.",
    "getattr": b"\x80\x02c__builtin__\ngetattr\n" + SYSTEM + text("x") + b"\x86R.",
    "apply": b"\x80\x02c__builtin__\napply\n" + SYSTEM + b"(" + text(COMMAND) + b"tt\x86R.",
    "eval": b"\x80\x02cbuiltins\neval\n" + text("1") + b"\x85R.",
    "import": b"\x80\x02cbuiltins\n__import__\n" + text("os") + b"\x85R.",
    "pickle in a pickle": b"\x80\x02cpickle\nloads\n" + b"C\x05\x80\x02N.." + b"\x85R.",
    "torch.load": b"\x80\x02ctorch\nload\n" + text("x") + b"\x85R.",
    "torch.hub.load": b"\x80\x02ctorch.hub\nload\n" + text("x") + b"\x85R.",
    "a module": b"\x80\x02ctorch.nn.modules.linear\nLinear\n)\x81}b.",
    "functools.partial": b"\x80\x02cfunctools\npartial\n" + SYSTEM + b"\x85R.",
    "numpy's scalar": b"\x80\x02cnumpy.core.multiarray\nscalar\n" + b"C\x01x" + b"\x85R.",
    "a set": b"\x80\x04\x8f(K\x01\x90.",
    "a frozen set": b"\x80\x04(K\x01\x91.",
    "a byte array": b"\x80\x05\x96" + struct.pack("<Q", 1) + b"x.",
    "a buffer out of band": b"\x80\x05\x97\x98.",
    "protocol 0 text": b"S'x'\np0\n.",
    "protocol 0 numbers": b"I1\n.",
    "a number without end": b"L" + b"9" * 100_000 + b"L\n.",
    "DUP": b"\x80\x02]22.",
    "POP_MARK": b"\x80\x02(1N.",
    "an unknown opcode": b"\x80\x02\xff.",
    "a frame longer than the pickle": b"\x80\x04\x95" + b"\xff" * 8 + b".",
    "a memo at the end of numbers": b"\x80\x02Nr\xff\xff\xff\xff.",
    "a text of 2^63 bytes": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 63) + b".",
    "bytes of 2^64 bytes": b"\x80\x04\x8e" + b"\xff" * 8 + b".",
    "an integer of 2 GiB": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "tuples in tuples": b"\x80\x02)" + b"\x85" * 30_000 + b".",
    "lists in lists": b"\x80\x02]" + b"]a" * 3 + b"(" * 100_000 + b".",
    "a list that holds itself": b"\x80\x02]q\0h\0a.",
    "a dict that holds itself": b"\x80\x02}q\0K\x01h\0s.",
    "one long list as many dicts": b"\x80\x02](" + b"K\x01K\x02\x86" * 5_000 + b"eq\0]("
    + (DICT + b"h\0\x85R") * 5_000 + b"e.",
    "one long text as many devices": b"\x80\x02" + text("x" * 50_000) + b"q\0]("
    + (b"ctorch\ndevice\n(" + b"h\0" * 100 + b"tR") * 1_000 + b"e.",
    "two to the sixty items": b"\x80\x02]q\0" + b"".join(
        b"](h%ch%ceq%c" % (level, level, level + 1) for level in range(60)
    ) + b".",
    "very many empty dicts": b"\x80\x02(" + b"}" * 50_000 + b"t.",
    "no end": b"\x80\x02N",
    "nothing": b"",
}  # fmt: skip


def zipped(folder: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    path = folder / "made.pt"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def refuse(path: Path, limit_bytes: int = 4_000_000) -> str:
    """What the refusal says; nothing was run, and memory stayed near the size of the file."""
    before = sorted(os.listdir("."))
    tracemalloc.start()
    with pytest.raises(REFUSED) as caught:
        read_model(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < limit_bytes + 300 * path.stat().st_size
    assert sorted(os.listdir(".")) == before
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


@pytest.mark.together
@pytest.mark.parametrize("trick", PROGRAMS)
def test_a_pickle_with_a_trick_is_refused_and_nothing_is_run(trick: str, tmp_path: Path) -> None:
    refuse(zipped(tmp_path, {"m/data.pkl": PROGRAMS[trick], "m/data/0": bytes(8)}))


@pytest.mark.together
@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "function", [os.system, subprocess.check_call, eval, exec, open, pickle.loads, os.unlink]
)
def test_what_the_pickler_itself_writes_is_refused(
    protocol: int, function: Any, tmp_path: Path
) -> None:
    data = pickle.dumps({"w": Reduced(function, (COMMAND,))}, protocol)
    refuse(zipped(tmp_path, {"m/data.pkl": data}))


@pytest.mark.together
@pytest.mark.parametrize("trick", ["GLOBAL and REDUCE", "INST", "OBJ", "PERSID"])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
def test_a_bare_pickle_is_refused_under_every_name(trick: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"m{suffix}"
    path.write_bytes(PROGRAMS[trick])
    refuse(path)


def test_the_form_before_zip_files_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
    path.write_bytes(magic + pickle.dumps(1001, 2) + PROGRAMS["GLOBAL and REDUCE"])
    assert "torch.save" in refuse(path)


def test_a_tar_of_the_first_form_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "older.pt"
    path.write_bytes(bytes(257) + b"ustar" + bytes(300))
    assert "torch.save" in refuse(path)


def test_programs_of_torchscript_are_refused(tmp_path: Path) -> None:
    entries = {"m/data.pkl": b"\x80\x02}.", "m/constants.pkl": b"\x80\x02).", "m/code/m.py": b""}
    assert "TorchScript" in refuse(zipped(tmp_path, entries))


GOOD = {"m/data.pkl": b"\x80\x02}" + text("w") + TENSOR + b"s.", "m/data/0": bytes(8)}


def test_the_checkpoint_that_the_tricks_are_played_with_is_read(tmp_path: Path) -> None:
    assert stored(read_torch(zipped(tmp_path, GOOD)))["w"].tolist() == [0, 0]


def rezipped(folder: Path, change: Any) -> Path:
    """The good checkpoint, its members changed while they are written."""
    path = folder / "made.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in GOOD.items():
            info = zipfile.ZipInfo(name)
            change(archive, info, data)
    return path


def add_twice(archive: zipfile.ZipFile, info: zipfile.ZipInfo, data: bytes) -> None:
    archive.writestr(info, data)
    with pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(zipfile.ZipInfo(info.filename), PROGRAMS["GLOBAL and REDUCE"])


def add_link(archive: zipfile.ZipFile, info: zipfile.ZipInfo, data: bytes) -> None:
    info.external_attr = 0o120777 << 16
    archive.writestr(info, data)


def add_bomb(archive: zipfile.ZipFile, info: zipfile.ZipInfo, data: bytes) -> None:
    archive.writestr(info, data + bytes(10_000_000), zipfile.ZIP_DEFLATED)


@pytest.mark.parametrize(
    ("change", "message"),
    [(add_twice, "twice"), (add_link, "link"), (add_bomb, "compressed")],
)
def test_a_zip_with_a_trick_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    assert message in refuse(rezipped(tmp_path, change))


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "m/../../x", "..\\x", "m/..\\..\\x"])
def test_a_member_that_leads_out_of_the_zip_is_refused(name: str, tmp_path: Path) -> None:
    assert "leads out" in refuse(zipped(tmp_path, {**GOOD, name: b"x"}))


def patched(path: Path, change: Any) -> Path:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def central(data: bytes, name: bytes) -> int:
    """Where the directory's entry of a member begins."""
    return data.rindex(name) - 46


def test_a_local_header_of_another_name_is_refused(tmp_path: Path) -> None:
    def change(data: bytearray) -> None:
        at = data.index(b"m/data/0")
        data[at : at + 8] = b"m/data/1"

    assert "two readers" in refuse(patched(zipped(tmp_path, GOOD), change))


def test_a_size_that_differs_from_the_compressed_one_is_refused(tmp_path: Path) -> None:
    def change(data: bytearray) -> None:
        at = central(data, b"m/data/0")
        data[at + 24 : at + 28] = struct.pack("<I", 1 << 30)

    assert "shall be" in refuse(patched(zipped(tmp_path, GOOD), change))


@pytest.mark.parametrize("size", [9, 100, 1 << 20, (1 << 32) - 2])
def test_a_member_longer_than_the_file_is_refused(size: int, tmp_path: Path) -> None:
    def change(data: bytearray) -> None:
        at = central(data, b"m/data/0")
        data[at + 20 : at + 28] = struct.pack("<II", size, size)

    path = patched(zipped(tmp_path, dict(reversed(GOOD.items()))), change)
    assert "overlaps" in refuse(path) or "cut short" in refuse(path)


@pytest.mark.parametrize("sizes", [(1 << 62, 1 << 62), (1 << 40, 1 << 40), (8, 1 << 50)])
def test_a_zip64_field_that_lies_is_refused(sizes: tuple[int, int], tmp_path: Path) -> None:
    def add(archive: zipfile.ZipFile, info: zipfile.ZipInfo, data: bytes) -> None:
        archive.writestr(info, data)
        info.extra = struct.pack("<HHQQ", 1, 16, *sizes)

    def change(data: bytearray) -> None:
        at = central(data, b"m/data/0")
        data[at + 20 : at + 28] = b"\xff" * 8

    refuse(patched(rezipped(tmp_path, add), change))


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A bomb without compression: many members, one place."""
    path = zipped(tmp_path, {**GOOD, "m/data/1": bytes(8)})

    def change(data: bytearray) -> None:
        first, second = central(data, b"m/data/0"), central(data, b"m/data/1")
        data[second + 42 : second + 46] = data[first + 42 : first + 46]

    assert "overlaps" in refuse(patched(path, change))


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    def change(data: bytearray) -> None:
        data[central(data, b"m/data/0") + 8] |= 1

    assert "encrypted" in refuse(patched(zipped(tmp_path, GOOD), change))


def test_a_zip_behind_another_file_is_read_as_what_it_is(tmp_path: Path) -> None:
    path = zipped(tmp_path, GOOD)
    path.write_bytes(io.BytesIO(b"#!/bin/sh\n" + path.read_bytes()).getvalue())
    refuse(path)


def test_data_descriptors_behind_members_are_no_trick(tmp_path: Path) -> None:
    path = tmp_path / "made.pt"
    with path.open("wb") as raw, zipfile.ZipFile(Unseekable(raw), "w") as archive:
        for name, data in GOOD.items():
            archive.writestr(name, data)
    assert stored(read_torch(path))["w"].tolist() == [0, 0]


class Unseekable(io.RawIOBase):
    """A stream that cannot go back: a zip that is written to it has sizes behind its members."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return int(self.file.write(data))
