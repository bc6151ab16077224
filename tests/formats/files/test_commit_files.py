"""Files of a commit: what is listed is there, is as large as listed, and holds what was stored."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load, save_file

import tensorrepo as tr
from tensorrepo.filesystem.commit import files_of
from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.formats.files import images
from tensorrepo.formats.files.commit_files import CommitFiles
from tensorrepo.formats.files.rendered import Renderings
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError
from tensorrepo.verbs.models import save
from tests.support.builders.pictures import encoded, smooth

WEIGHTS = {"layer.weight": np.arange(12, dtype=np.float32).reshape(3, 4)}


def png(height: int, width: int) -> bytes:
    return encoded(smooth(height, width), "png")


@pytest.fixture
def repository(tmp_path: Path) -> tr.Repository:
    """Pictures of two classes, numbers, a file, and models that came and did not come as files."""
    pictures = tmp_path / "pictures"
    for number in range(8):
        folder = pictures / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(png(4 + number, 4))
    came = tmp_path / "came"
    came.mkdir()
    save_file(WEIGHTS, came / "weights.safetensors", {"format": "np"})
    (came / "config.json").write_text('{"a": 1}')
    made = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with made.transaction(message="one") as tx:
        tx.create_dataset("pets", pictures)
        tx.create_dataset("deep/numbers", {"x": np.arange(5)})
        tx.save_file("notes/a.txt", b"hello")
        tx.save_model("net", WEIGHTS)
        save(tx.core, "models/came", read_model(came), base=None, known=(), lineage=())
    return made


def files(repository: tr.Repository, place: Path, ref: str = "main") -> CommitFiles:
    context = repository.context
    revision, core = context.resolve(ref), context.core
    return CommitFiles(
        core.objects,
        lambda prefix, after: core.entries(revision.commit.tree, prefix, after=after),
        ThreadPoolExecutor(1),
        Renderings(place),
    )


def walk(found: CommitFiles, folder: str = "") -> Iterator[str]:
    for name, facts in found.names(folder).items():
        path = f"{folder}/{name}" if folder else name
        if facts.is_folder:
            yield from walk(found, path)
        else:
            yield path


def content(found: CommitFiles, path: str) -> bytes:
    file = found.open(path)
    return b"".join(bytes(piece) for piece in file.pieces(0, file.size_bytes))


def test_all_that_is_listed_is_there_and_as_large_as_listed(
    repository: tr.Repository, tmp_path: Path
) -> None:
    found = files(repository, tmp_path / "cache")
    paths = list(walk(found))
    sizes = {path: len(content(found, path)) for path in paths}
    assert {path: found.facts(path).size_bytes for path in paths} == sizes
    assert paths == [
        "datasets/deep/numbers.parquet",
        "datasets/pets.parquet",
        "datasets/pets/classes.txt",
        *(f"datasets/pets/cat/{number}.png" for number in (1, 3, 5, 7)),
        *(f"datasets/pets/dog/{number}.png" for number in (0, 2, 4, 6)),
        "files/notes/a.txt",
        "models/came/config.json",
        "models/came/weights.safetensors",
        "models/net/model.safetensors",
    ]


def test_pictures_and_files_of_models_are_the_bytes_that_came(
    repository: tr.Repository, tmp_path: Path
) -> None:
    found = files(repository, tmp_path / "cache")
    for path in ("datasets/pets/cat/3.png", "datasets/pets/dog/6.png"):
        came = tmp_path / "pictures" / path.removeprefix("datasets/pets/")
        assert content(found, path) == came.read_bytes()
    for name in ("config.json", "weights.safetensors"):
        assert content(found, f"models/came/{name}") == (tmp_path / "came" / name).read_bytes()
    loaded = load(content(found, "models/net/model.safetensors"))
    assert np.array_equal(loaded["layer.weight"], WEIGHTS["layer.weight"])


def test_a_table_has_the_rows_and_is_made_once(repository: tr.Repository, tmp_path: Path) -> None:
    found = files(repository, tmp_path / "cache")
    assert found.facts("datasets/deep/numbers.parquet").size_bytes is None
    first = content(found, "datasets/deep/numbers.parquet")
    table = pq.read_table(tmp_path / "cache" / rendering(tmp_path / "cache").name)
    assert table["x"].to_pylist() == [0, 1, 2, 3, 4]
    assert content(files(repository, tmp_path / "cache"), "datasets/deep/numbers.parquet") == first
    assert found.facts("datasets/deep/numbers.parquet").size_bytes == len(first)


def rendering(folder: Path) -> Path:
    return next(path for path in folder.iterdir() if "-parquet-" in path.name)


def test_a_rendering_that_was_damaged_is_made_anew(
    repository: tr.Repository, tmp_path: Path
) -> None:
    whole = content(files(repository, tmp_path / "cache"), "datasets/deep/numbers.parquet")
    path = rendering(tmp_path / "cache")
    path.write_bytes(whole[:-9] + b"x" + whole[-8:])
    again = content(files(repository, tmp_path / "cache"), "datasets/deep/numbers.parquet")
    assert again == whole


def test_renderings_stay_within_their_limit(repository: tr.Repository, tmp_path: Path) -> None:
    found = files(repository, tmp_path / "cache")
    first = len(content(found, "datasets/deep/numbers.parquet"))
    small = Renderings(tmp_path / "cache", limit_bytes=first)
    other = small.open("another-key", lambda path: path.write_bytes(bytes(first)))
    names = [path.name.partition(".")[0] for path in (tmp_path / "cache").iterdir()]
    assert sorted(names) == ["CACHEDIR", "another-key"]
    assert b"".join(map(bytes, other.pieces(0, first))) == bytes(first)


def test_rows_that_were_updated_and_deleted_have_files_of_their_size(
    repository: tr.Repository, tmp_path: Path
) -> None:
    with repository.transaction(message="two") as tx:
        draft = tx.dataset("pets")
        draft.update(tr.col("file") == "cat/1.png", {"image": png(30, 9)})
        draft.delete(tr.col("file") == "dog/0.png")
    found = files(repository, tmp_path / "cache")
    assert content(found, "datasets/pets/cat/1.png") == png(30, 9)
    assert set(found.names("datasets/pets/dog")) == {"2.png", "4.png", "6.png"}
    before = files(repository, tmp_path / "cache", "main~1")
    assert content(before, "datasets/pets/dog/0.png") == png(4, 4)


def test_rows_of_one_name_are_told_apart(tmp_path: Path) -> None:
    made = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    pictures = [png(5, 5), png(6, 6), png(7, 7), None]
    names = ["same.png", "same.png", "../out.png", "none.png"]
    columns = {"image": tr.Image("png"), "file": tr.Text()}
    with made.transaction(message="one") as tx:
        tx.create_dataset("p", {"image": pictures, "file": names}, columns=columns)
    found = files(made, tmp_path / "cache")
    listed = list(found.names("datasets/p"))
    assert listed == ["same.png", "00000001~same.png", "00000002.png"]
    assert [content(found, f"datasets/p/{name}") for name in listed] == pictures[:3]


def test_paths_that_would_not_fit_into_memory_make_no_folder(
    repository: tr.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MOST_PATH_BYTES", 10)
    found = files(repository, tmp_path / "cache")
    assert list(found.names("datasets")) == ["deep", "pets.parquet"]


@pytest.mark.parametrize(
    "path", ["nothing", "files/notes/b.txt", "models/net/x", "datasets/pets/cat/0.png", "ä/b"]
)
def test_what_is_not_there_is_not_found(
    repository: tr.Repository, tmp_path: Path, path: str
) -> None:
    found = files(repository, tmp_path / "cache")
    for ask in (found.facts, found.open, found.names):
        with pytest.raises(NotFoundError):
            ask(path)


@pytest.mark.parametrize("path", ["files", "models/net", "datasets/pets", "datasets/pets/cat"])
def test_folders_are_not_opened(repository: tr.Repository, tmp_path: Path, path: str) -> None:
    found = files(repository, tmp_path / "cache")
    assert found.facts(path).is_folder
    with pytest.raises(InvalidInputError, match="folder"):
        found.open(path)


def test_a_picture_that_was_damaged_is_not_read(tmp_path: Path) -> None:
    picture = png(120, 160)
    made = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with made.transaction(message="one") as tx:
        columns = {"image": tr.Image("png"), "file": tr.Text()}
        tx.create_dataset("p", {"image": [picture], "file": ["a.png"]}, columns=columns)
    assert content(files(made, tmp_path / "cache"), "datasets/p/a.png") == picture
    damage(tmp_path / "store", picture)
    with pytest.raises(CorruptError):
        content(files(made, tmp_path / "cache"), "datasets/p/a.png")


def damage(store: Path, stored: bytes) -> None:
    """Change the last of some bytes that lie in a store as they are."""
    place = next(
        path for path in store.rglob("*") if path.is_file() and stored in path.read_bytes()
    )
    place.chmod(0o600)
    place.write_bytes(place.read_bytes().replace(stored, stored[:-1] + b"?"))


def test_the_sdk_reads_a_commit_the_same_way(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    found = files_of(repository.context, repository.context.resolve("main"))
    assert content(found, "files/notes/a.txt") == b"hello"
