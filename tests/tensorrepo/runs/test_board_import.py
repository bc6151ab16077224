"""Trainings that TensorBoard was told of, imported as runs."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from struct import pack

import numpy as np
import pytest
from PIL import Image

import tensorrepo as tr
from tensorrepo.formats.common.protobuf import write_field, write_varint
from tensorrepo.formats.exchange.records.tfrecord import masked_crc, write_record
from tensorrepo.runs.board_import import import_runs
from tests.support.clients.environments import client_python
from tests.support.clients.process import run_client

WRITER = """
import sys
import numpy as np
from tensorboardX import SummaryWriter
with SummaryWriter(sys.argv[1]) as board:
    for step in range(5):
        board.add_scalar("loss/train", 1 / (step + 1), step)
    board.add_image("sample", np.zeros((3, 4, 4), np.uint8), 3)
    board.add_histogram("weights", np.arange(10), 0)
"""


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    return tr.init(str(tmp_path / "repo"), author="Ann <ann@example.org>")


def number(field: int, value: int) -> bytes:
    return write_varint(field << 3) + write_varint(value)


def event(step: int, value: bytes, seconds: float = 1_700_000_000.5) -> bytes:
    summary = write_field(5, write_field(1, value))
    return b"\x09" + pack("<d", seconds) + number(2, step) + summary


def scalar(tag: str, value: float) -> bytes:
    return write_field(1, tag.encode()) + b"\x15" + pack("<f", value)


def tensor(tag: str, value: float) -> bytes:
    """As TensorFlow 2 writes a number."""
    content = number(1, 1) + write_field(4, pack("<f", value))
    return write_field(1, tag.encode()) + write_field(8, content)


def picture(tag: str, data: bytes) -> bytes:
    return write_field(1, tag.encode()) + write_field(4, number(1, 4) + write_field(4, data))


def png() -> bytes:
    stream = BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def board(folder: Path, *events: bytes, cut: int = 0) -> Path:
    """An event file; without its last `cut` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    path, stream, crc = folder / "events.out.tfevents.1700000000.host", BytesIO(), masked_crc()
    for one in (b"\x09" + pack("<d", 1.0) + write_field(3, b"brain.Event:2"), *events):
        write_record(stream, one, crc)
    path.write_bytes(stream.getvalue()[: len(stream.getvalue()) - cut])
    return path


def test_scalars_become_metrics_with_their_steps_and_times(
    repo: tr.Repository, tmp_path: Path
) -> None:
    board(tmp_path / "exp", event(0, scalar("loss", 0.5)), event(7, tensor("loss", 0.25)))
    (made,) = import_runs(repo.context, tmp_path / "exp")
    points = repo.runs()[made.name].points("loss")
    assert (made.name, made.points) == ("exp", 2)
    assert points.steps.tolist() == [0, 7]
    assert points.values.tolist() == [0.5, 0.25]
    assert points.times_ms.tolist() == [1_700_000_000_500] * 2
    assert repo.runs()["exp"].state() == "finished"


def test_pictures_become_files_of_the_run(repo: tr.Repository, tmp_path: Path) -> None:
    board(tmp_path / "exp", event(3, picture("a/b", png())))
    import_runs(repo.context, tmp_path / "exp")
    assert repo.runs()["exp"].read_file("a/b/00000003.png") == png()


def test_each_folder_is_a_run(repo: tr.Repository, tmp_path: Path) -> None:
    for name in ("one", "two/deep"):
        board(tmp_path / "logs" / name, event(0, scalar("loss", 1.0)))
    import_runs(repo.context, tmp_path / "logs", "base")
    assert list(repo.runs()) == ["base-one", "base-two-deep"]


def test_what_comes_before_the_end_of_a_killed_training_is_read(
    repo: tr.Repository, tmp_path: Path
) -> None:
    board(tmp_path / "exp", event(0, scalar("loss", 1.0)), event(1, scalar("loss", 2.0)), cut=3)
    (made,) = import_runs(repo.context, tmp_path / "exp")
    assert made.points == 1
    assert "cut short" in made.notes[0] or "ends" in made.notes[0]


def test_a_run_of_that_name_is_not_overwritten(repo: tr.Repository, tmp_path: Path) -> None:
    board(tmp_path / "exp", event(0, scalar("loss", 1.0)))
    import_runs(repo.context, tmp_path / "exp")
    with pytest.raises(tr.ConflictError, match="--name"):
        import_runs(repo.context, tmp_path / "exp")


@pytest.mark.parametrize("data", [b"", b"no records at all, but long enough"])
def test_what_is_no_event_file_is_refused(repo: tr.Repository, tmp_path: Path, data: bytes) -> None:
    folder = tmp_path / "exp"
    folder.mkdir()
    (folder / "events.out.tfevents.1").write_bytes(data)
    with pytest.raises(tr.Error):
        import_runs(repo.context, folder)
    assert list(repo.runs()) == []


def test_a_folder_without_event_files_is_told(repo: tr.Repository, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(tr.NotFoundError, match="no event files"):
        import_runs(repo.context, tmp_path / "empty")


@pytest.mark.soak
def test_what_a_real_writer_wrote_is_imported(repo: tr.Repository, tmp_path: Path) -> None:
    python = client_python("tensorboardX", "pillow")
    run_client(python, WRITER, str(tmp_path / "exp"), environment={}, cwd=tmp_path)
    import_runs(repo.context, tmp_path / "exp")
    run = repo.runs()["exp"]
    np.testing.assert_allclose(run.points("loss/train").values, 1 / np.arange(1, 6), rtol=1e-6)
    assert run.read_file("sample/00000003.png").startswith(b"\x89PNG")
