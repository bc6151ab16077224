"""Files and tags of runs, in Python."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save

import tensorrepo as tr


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    return tr.init(str(tmp_path / "repo"), author="Ann <ann@example.org>")


def test_tags_are_set_changed_and_removed(repo: tr.Repository) -> None:
    with repo.run("exp") as run:
        run.set_tag("team", "vision")
        run.set_tags({"try": 3, "gone": "x"})
        run.set_tag("gone", None)
    assert repo.runs()["exp"].tags == {"team": "vision", "try": "3"}


def test_a_run_that_goes_on_keeps_its_tags(repo: tr.Repository) -> None:
    with repo.run("exp") as run:
        run.set_tag("team", "vision")
    with repo.run("exp", resume=True) as run:
        run.set_tag("more", "x")
    assert repo.runs()["exp"].tags == {"more": "x", "team": "vision"}


def test_a_tag_does_not_hide_the_environment(repo: tr.Repository) -> None:
    with repo.run("exp") as run:
        run.set_tag("a", "b")
    assert "python" in repo.runs()["exp"].document.attempts[-1].environment


def test_a_file_and_a_folder_are_kept(repo: tr.Repository, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a b.txt").write_text("hello")
    (tmp_path / "one.json").write_text("{}")
    with repo.run("exp") as run:
        run.log_artifact(folder)
        run.log_artifact(tmp_path / "one.json", "config")
    record = repo.runs()["exp"]
    assert record.files() == {"config/one.json": 2, "out/inner/a b.txt": 5}
    assert record.read_file("out/inner/a b.txt") == b"hello"


def test_weights_are_kept_as_tensors_and_come_back_byte_for_byte(
    repo: tr.Repository, tmp_path: Path
) -> None:
    data = save({"w": np.arange(4096, dtype=np.float32)})
    (tmp_path / "net.safetensors").write_bytes(data)
    with repo.run("exp") as run:
        run.log_artifact(tmp_path / "net.safetensors", "weights")
    assert repo.runs()["exp"].read_file("weights/net.safetensors") == data
    model = repo.model("weights/net.safetensors", "runs/exp/files")
    np.testing.assert_array_equal(model["w"], np.arange(4096, dtype=np.float32))


def test_a_file_that_is_called_as_weights_and_is_none_is_kept_as_it_is(
    repo: tr.Repository, tmp_path: Path
) -> None:
    (tmp_path / "net.pt").write_bytes(b"no weights")
    with repo.run("exp") as run:
        run.log_artifact(tmp_path / "net.pt")
    assert repo.runs()["exp"].read_file("net.pt") == b"no weights"


def test_a_picture_is_kept_for_each_step(repo: tr.Repository) -> None:
    with repo.run("exp") as run:
        run.log_image(np.eye(4), "samples.png", step=3)
        run.log_image(np.full((2, 2, 3), 255, np.uint8), "white")
    record = repo.runs()["exp"]
    assert list(record.files()) == ["samples/00000003.png", "white.png"]
    shown = Image.open(BytesIO(record.read_file("samples/00000003.png")))
    np.testing.assert_array_equal(np.asarray(shown), np.eye(4) * 255)


@pytest.mark.parametrize("picture", [np.zeros(3), np.zeros((2, 2, 5)), [["a", "b"]]])
def test_what_is_no_picture_is_refused(repo: tr.Repository, picture: object) -> None:
    with repo.run("exp") as run, pytest.raises(tr.InvalidInputError, match="a picture is"):
        run.log_image(picture, "x.png")


def test_a_figure_is_kept(repo: tr.Repository) -> None:
    pyplot = pytest.importorskip("matplotlib.figure")
    figure = pyplot.Figure()
    figure.add_subplot().plot([1, 2])
    with repo.run("exp") as run:
        run.log_figure(figure, "plots/loss.png")
    assert repo.runs()["exp"].read_file("plots/loss.png").startswith(b"\x89PNG")


def test_a_missing_file_is_told_with_those_there_are(repo: tr.Repository, tmp_path: Path) -> None:
    (tmp_path / "loss.txt").write_text("1")
    with repo.run("exp") as run:
        run.log_artifact(tmp_path / "loss.txt")
    with pytest.raises(tr.NotFoundError, match=r"loss\.txt"):
        repo.runs()["exp"].read_file("los.txt")
