"""Datasets whose rows stay in the files that they came in."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.diff import compare_datasets
from tensorrepo.formats.dataset.external.foreign import ForeignReader, foreign_files
from tensorrepo.formats.dataset.external.outside import Nothing
from tensorrepo.formats.dataset.external.outside_read import AllowedOutside
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    column_index,
    open_dataset,
    page_reader,
    row_id_table,
)
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.exchange.arrays.npy import read_npy
from tensorrepo.formats.exchange.in_place import arrays, scan, tar
from tensorrepo.formats.exchange.records.webdataset import read_webdataset
from tensorrepo.formats.exchange.tables.arrow import read_parquet
from tensorrepo.repo.errors import (
    CorruptError,
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    UnsupportedError,
)
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tests.support.builders.adopted import (
    ROWS,
    WRITERS,
    Place,
    adopted,
    opened,
    write_npy,
    write_parquet,
    write_safetensors,
    write_tar,
)
from tests.support.builders.datasets import same_rows
from tests.support.builders.foreign import store
from tests.support.builders.streams import stream
from tests.support.effort import soaking
from tests.support.servers.object_stores import Bucket, s3_on_ours

FORMATS = sorted(WRITERS)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with s3_on_ours(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture(params=FORMATS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write, name = WRITERS[request.param]
    return write(tmp_path / name)


def _imported(path: Path) -> StoredDataset:
    """The same file with its rows copied into a dataset."""
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        found = load_file(path)
        place = adopted(path)
        schema = place.open().schema.without_ids()
        columns = {name: found[name] for name in schema.names}
        link = write_dataset(place.objects, schema, [columns])
        return open_dataset(place.objects, link.digest)
    read = {".npy": read_npy, ".parquet": read_parquet, ".tar": read_webdataset}[path.suffix]
    return store(read(path))


# ------------------------------------------------------------------------------ reading


def test_adopted_rows_are_those_of_an_import(path: Path) -> None:
    found, expected = adopted(path).open(), _imported(path)
    assert found.schema.without_ids() == expected.schema.without_ids()
    assert same_rows(list(found), list(expected))


def test_rows_are_read_in_any_order(path: Path) -> None:
    found, expected = adopted(path).open(), _imported(path)
    chosen = [49, 0, 7, 7, 31, 18]
    assert same_rows([found[at] for at in chosen], [expected[at] for at in chosen])
    for name in found.schema.names:
        rows, wanted = found[name][chosen], expected[name][chosen]
        assert same_rows([{"": value} for value in rows], [{"": value} for value in wanted])
        assert len(found[name][15:38]) == 23


def test_arrow_gets_the_same_table(path: Path) -> None:
    assert adopted(path).open().to_arrow().equals(_imported(path).to_arrow())


def test_statistics_count_rows_and_nulls(path: Path) -> None:
    found, expected = adopted(path).open(), _imported(path)
    assert found.rows == ROWS
    assert _nulls(found) == _nulls(expected)


def _nulls(dataset: StoredDataset) -> dict[str, int]:
    counted = {entry.id: entry.nulls for entry in dataset.root.statistics}
    return {column.name: counted[column.id] for column in dataset.schema.visible.columns}


def test_nothing_is_copied(path: Path) -> None:
    place = adopted(path)
    kinds = {link.kind for link in place.objects.links.values()}
    assert Kind.CHUNK not in kinds
    assert Kind.FOREIGN in kinds


def test_adopting_again_describes_the_same_file_by_the_same_object(path: Path) -> None:
    first, second = adopted(path), adopted(path)
    assert first.adopted.link == second.adopted.link


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["s3", "http"])
def test_files_are_adopted_from_a_store(
    name: str, kind: str, tmp_path: Path, bucket: Bucket
) -> None:
    assert bucket.server is not None
    write, file = WRITERS[name]
    folder = bucket.server.root / "bucket" / tmp_path.name
    folder.mkdir()
    path = write(folder / file)
    root = "s3://bucket" if kind == "s3" else f"{bucket.server.url}/bucket"
    outside = AllowedOutside([f"{root}/{tmp_path.name}"], environment=bucket.environment)
    place = adopted(f"{root}/{tmp_path.name}/{file}", outside=outside)
    assert same_rows(list(place.open()), list(_imported(path)))
    (described,) = foreign_files(place.objects, place.adopted.link.digest)
    assert (described.size, described.hashed) == (path.stat().st_size, False)
    path.write_bytes(path.read_bytes())  # the same content, another version of the key
    os.utime(path, ns=(1, 10**18))
    with pytest.raises(CorruptError, match="has changed"):
        list(place.open())


def test_several_files_are_one_dataset(tmp_path: Path) -> None:
    first, second = write_npy(tmp_path / "a.npy"), write_npy(tmp_path / "b.npy")
    found = adopted(first, second).open()
    assert found.schema.names == ("a",)
    assert len(found) == 2 * ROWS
    assert np.array_equal(found["a"][ROWS:], np.load(second))


def test_shards_whose_samples_lack_parts_are_one_dataset(tmp_path: Path) -> None:
    first = write_tar(tmp_path / "a.tar", [("a", {"cls": b"1", "left.jpg": b"\xff\xd8\xff1"})])
    second = write_tar(tmp_path / "b.tar", [("b", {"cls": b"2"})])
    found = adopted(first, second).open()
    assert found["left"][:] == [b"\xff\xd8\xff1", None]
    assert found["cls"][:].tolist() == [1, 2]


def test_columns_can_be_chosen(path: Path) -> None:
    name = adopted(path).open().schema.names[-1]
    place = adopted(path, columns=(name,))
    assert place.open().schema.names == (name,)
    with pytest.raises((NotFoundError, InvalidInputError), match="nowhere"):
        adopted(path, columns=("nowhere",))


def test_rows_are_put_behind_those_that_are_there(tmp_path: Path) -> None:
    path = write_npy(tmp_path / "x.npy")
    place = adopted(path)
    base = place.open()
    again = adopted(path, objects=place.objects, base=base)
    both = again.open()
    assert len(both) == 2 * ROWS
    assert np.array_equal(both["x"][:], np.concatenate([np.load(path)] * 2))


def test_ordinary_rows_are_put_behind_adopted_ones(path: Path) -> None:
    place = adopted(path)
    base, rows = place.open(), list(_imported(path))[:5]
    schema = base.schema.without_ids()
    link = write_dataset(place.objects, schema, [rows], base=base, rng=random.Random(1))
    both = opened(place.objects, link.digest, place.outside)
    assert same_rows(list(both)[ROWS:], rows)
    assert same_rows([both[ROWS - 1], both[ROWS]], [base[ROWS - 1], rows[0]])


@pytest.mark.soak
def test_many_small_pieces_hold_the_same_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(adopted(path).open())
    for module in (scan, tar, arrays):
        monkeypatch.setattr(module, "PAGE_BYTES", 100, raising=False)
        monkeypatch.setattr(module, "FRAGMENT_BYTES", 1000, raising=False)
    found = adopted(path).open()
    assert same_rows(list(found), expected)
    assert len(column_index(found, found.schema.names[-1]).entries) > 1


# ------------------------------------------------------------------------------ arrays


@pytest.mark.parametrize("code", [">i2", "<i2", ">f8", "|b1", "|u1", "<c16", ">f4"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_arrays_of_any_byte_order_are_read(
    code: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    array = (np.random.default_rng(0).standard_normal((20, *shape)) * 100).astype(code)
    np.save(tmp_path / "x.npy", array)
    assert np.array_equal(adopted(tmp_path / "x.npy").open()["x"][:], array)


def test_records_become_columns(tmp_path: Path) -> None:
    array = np.zeros(20, [("a", ">i4"), ("b", "u1", (3,)), ("c", "?")])
    array["a"], array["b"], array["c"] = np.arange(20), 7, True
    np.save(tmp_path / "x.npy", array)
    found = adopted(tmp_path / "x.npy").open()
    for name in ("a", "b", "c"):
        assert np.array_equal(found[name][3:17], array[name][3:17])


def test_a_byte_that_is_no_bool_counts_as_true(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([True, False, True]))
    data = bytearray(path.read_bytes())
    data[-1] = 7
    path.write_bytes(data)
    assert adopted(path).open()["x"][:].view(np.uint8).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.ones((3, 4))),
        np.array(["a", "b"]),
        np.array(["2020-01-01"], "M8[s]"),
        np.ones(3, np.longdouble),
    ],
    ids=["fortran", "text", "time", "long double"],
)
def test_arrays_that_cannot_stay_are_to_be_imported(array: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(UnsupportedError, match="tensorrepo add"):
        adopted(tmp_path / "x.npy")


def test_tensors_of_several_lengths_are_to_be_chosen_from(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "x.safetensors"
    save_file({"a": np.ones(3, np.float32), "b": np.ones(4, np.float32)}, path)
    with pytest.raises(InvalidInputError, match="equally many rows"):
        adopted(path)
    assert len(adopted(path, columns=("b",)).open()) == 4


# ------------------------------------------------------------------------------ tables


def test_labels_and_images_of_hugging_face_are_understood(tmp_path: Path) -> None:
    features = b"""{"info": {"features": {
        "label": {"_type": "ClassLabel", "names": ["a", "b"]}, "image": {"_type": "Image"}}}}"""
    rows = pa.table(
        {
            "label": pa.array([0, -1, 1]),
            "image": pa.array([{"bytes": b"x", "path": "p"}, {"bytes": None, "path": "q"}, None]),
        }
    ).replace_schema_metadata({b"huggingface": features})
    pq.write_table(rows, tmp_path / "x.parquet")
    found = adopted(tmp_path / "x.parquet").open()
    assert [entry.nulls for entry in found.root.statistics] == [1, 2]
    assert found["label"][:].tolist() == [0, None, 1]
    assert found["image"][:] == [b"x", None, None]


def test_nulls_are_counted_where_the_file_does_not_say(tmp_path: Path) -> None:
    rows = pa.table({"x": pa.array([1, None, 3]), "y": pa.array([[1], None, []])})
    pq.write_table(rows, tmp_path / "x.parquet", write_statistics=False)
    found = adopted(tmp_path / "x.parquet").open()
    assert [entry.nulls for entry in found.root.statistics] == [1, 1]
    assert found["x"][:].tolist() == [1, None, 3]


def test_fields_whose_names_look_like_paths_are_told_apart(tmp_path: Path) -> None:
    rows = pa.table({"a.b": [1, 2], "a": [[3], [4, 5]]})
    pq.write_table(rows, tmp_path / "x.parquet")
    found = adopted(tmp_path / "x.parquet").open()
    assert found["a.b"][:].tolist() == [1, 2]
    assert [row.tolist() for row in found["a"][:]] == [[3], [4, 5]]


def test_only_the_columns_asked_for_are_read(tmp_path: Path, bucket: Bucket) -> None:
    assert bucket.server is not None
    folder = bucket.server.root / "bucket" / tmp_path.name
    folder.mkdir()
    heavy = np.random.default_rng(0).bytes(4 << 20)
    pq.write_table(
        pa.table({"light": [1, 2], "heavy": [heavy[: 2 << 20], heavy[2 << 20 :]]}),
        folder / "x.parquet", compression="none",
    )  # fmt: skip
    url = f"s3://bucket/{tmp_path.name}/x.parquet"
    read: list[int] = []

    class Counting(AllowedOutside):
        def read(self, url: str, start: int, stop: int, unchanged: Any = None) -> memoryview:
            read.append(stop - start)
            return super().read(url, start, stop, unchanged)

    outside = Counting([url], environment=bucket.environment)
    place = adopted(url, outside=outside)
    found = place.open()
    read.clear()
    assert found["light"][:].tolist() == [1, 2]
    assert sum(read) < 200_000


# ------------------------------------------------------------------------------ changed files


def _touched(path: Path) -> None:
    os.utime(path, ns=(1, 10**18))


def test_a_copy_with_other_times_is_known_by_its_hash(path: Path) -> None:
    place = adopted(path)
    expected = list(place.open())
    _touched(path)
    assert same_rows(list(place.open()), expected)


def test_without_a_hash_other_times_mean_another_file(path: Path) -> None:
    place = adopted(path, hashed=False)
    assert len(list(place.open())) == ROWS
    _touched(path)
    with pytest.raises(CorruptError, match="has changed"):
        list(place.open())


def test_content_changed_at_the_same_size_is_noticed(path: Path) -> None:
    place = adopted(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    _touched(path)
    with pytest.raises(CorruptError, match="expected BLAKE3"):
        list(place.open())


@pytest.mark.parametrize("change", [b"more", None], ids=["longer", "shorter"])
def test_a_file_of_another_size_is_noticed(path: Path, change: bytes | None) -> None:
    place = adopted(path)
    data = path.read_bytes()
    path.write_bytes(data + change if change else data[:-1])
    with pytest.raises(CorruptError, match=rf"expected {len(data)} bytes, found"):
        list(place.open())


def test_a_file_that_changes_under_an_open_dataset_is_noticed(path: Path) -> None:
    found = adopted(path).open()
    name = max(found.schema.columns, key=lambda column: column.name in ("x", "png")).name
    reader = page_reader(found, name)
    link, index = reader.link(0), reader.index
    assert isinstance(link, ObjectLink)
    read = ForeignReader(found.objects, AllowedOutside([path], environment={})).read
    assert read(link, index.id, index.entries[0], index.storage).rows
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CorruptError, match="has changed"):
        read(link, index.id, index.entries[0], index.storage)


def test_a_file_that_is_gone_is_named(path: Path) -> None:
    place = adopted(path)
    path.unlink()
    with pytest.raises(NotFoundError, match=path.name):
        list(place.open())


def test_without_permission_rows_are_not_read_and_the_error_says_what_to_do(path: Path) -> None:
    place = adopted(path)
    closed = opened(place.objects, place.adopted.link.digest, Nothing())
    with pytest.raises(PermissionDenied, match="outside="):
        list(closed)


def test_labels_that_stand_in_the_repository_need_no_permission(tmp_path: Path) -> None:
    place = adopted(write_tar(tmp_path / "x.tar"))
    closed = opened(place.objects, place.adopted.link.digest, Nothing())
    assert closed["cls"][:].tolist() == [at % 10 for at in range(ROWS)]


def test_a_link_put_in_the_place_of_a_file_leads_nowhere_else(tmp_path: Path) -> None:
    inside = tmp_path / "allowed"
    inside.mkdir()
    path = write_npy(inside / "x.npy")
    outside = AllowedOutside([inside], environment={})
    place = adopted(path, outside=outside)
    path.rename(tmp_path / "elsewhere.npy")
    path.symlink_to(tmp_path / "elsewhere.npy")
    fresh = AllowedOutside([inside], environment={})
    with pytest.raises(PermissionDenied, match="link"):
        list(opened(place.objects, place.adopted.link.digest, fresh))


# ------------------------------------------------------------------------------ lying files


@pytest.mark.parametrize("share", [0, 1, 3, 7, 8])
def test_a_file_cut_short_is_refused(path: Path, share: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * share // 9])
    with pytest.raises(Error):
        adopted(path)


def test_a_flipped_byte_gives_an_error_of_ours_or_rows(path: Path) -> None:
    data = path.read_bytes()
    rng = random.Random(0)
    for _ in range(60 if soaking() else 15):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            list(adopted(path).open())
        except Error:
            continue


@pytest.mark.parametrize(
    "shape", ["(1000000000000,)", "(9, 99999999999999)", "(-3,)", "(0,)", "()"]
)
def test_a_lying_npy_header_costs_nothing(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(12, dtype=np.int64))
    data = path.read_bytes()
    header = data[10:128].replace(b"(12,)", shape.encode()).rstrip() + b" " * 50
    path.write_bytes(data[:8] + len(header).to_bytes(2, "little") + header + data[128:])
    with pytest.raises(InvalidInputError):
        adopted(path)


def test_a_lying_safetensors_header_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    with pytest.raises(InvalidInputError):
        adopted(path)


def test_a_compressed_archive_is_to_be_imported(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar")
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(UnsupportedError, match="compressed"):
        adopted(tmp_path / "x.tar.gz")


def test_an_archive_whose_member_is_larger_than_it_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a", {"txt": b"x" * 600})])
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(InvalidInputError):
        adopted(path)


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    with pytest.raises(InvalidInputError, match="tensorrepo add"):
        adopted(tmp_path / "x")
    with pytest.raises(UnsupportedError, match="beton"):
        adopted(tmp_path / "x", format="beton")


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    first = write_parquet(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "b.parquet")
    with pytest.raises(InvalidInputError, match="other columns"):
        adopted(first, tmp_path / "b.parquet")
    place = adopted(write_safetensors(tmp_path / "x.safetensors"))
    with pytest.raises(InvalidInputError, match="other columns"):
        adopted(first, objects=place.objects, base=place.open())


def test_foreign_files_are_named_once(tmp_path: Path) -> None:
    first, second = write_npy(tmp_path / "a.npy"), write_npy(tmp_path / "b.npy")
    place = adopted(first, second, first)
    found = list(foreign_files(place.objects, place.adopted.link.digest))
    assert sorted(Path(file.url).name for file in found) == ["a.npy", "b.npy"]
    assert [file.hashed for file in found] == [True, True]


# ------------------------------------------------------------------------------ changes


def _reopened(place: Place, link: ObjectLink) -> StoredDataset:
    return opened(place.objects, link.digest, place.outside)


@pytest.mark.soak
def test_compaction_makes_the_rows_ours_and_they_keep_their_ids(path: Path) -> None:
    place = adopted(path)
    before = place.open()
    expected = list(before)
    link = compact_dataset(place.objects, before, rng=random.Random(1))
    path.unlink()
    after = opened(place.objects, link.digest, Nothing())
    assert same_rows(list(after), expected)
    assert row_id_table(after).of(np.arange(ROWS)).tolist() == (
        row_id_table(before).of(np.arange(ROWS)).tolist()
    )
    assert list(foreign_files(place.objects, link.digest)) == []


def test_rows_in_place_are_deleted_and_updated_without_touching_the_file(path: Path) -> None:
    place = adopted(path)
    data, base = path.read_bytes(), place.open()
    expected = list(base)
    name = next(name for name in ("label", "id", "cls", "x") if name in base.schema)
    new = np.zeros_like(np.asarray(base[name][:2]))
    link = update_rows(place.objects, base, [3, 4], {name: new})
    changed = _reopened(place, link)
    expected[3] = {**expected[3], name: new[0]}
    expected[4] = {**expected[4], name: new[1]}
    assert same_rows(list(changed), expected)
    shorter = _reopened(place, delete_rows(place.objects, changed, [0, 3, 49]))
    assert same_rows(list(shorter), [expected[at] for at in range(ROWS) if at not in (0, 3, 49)])
    assert path.read_bytes() == data


def test_a_diff_tells_what_was_put_behind_rows_in_place(tmp_path: Path) -> None:
    path = write_npy(tmp_path / "x.npy")
    place = adopted(path)
    base = place.open()
    schema = base.schema.without_ids()
    link = write_dataset(place.objects, schema, [{"x": np.load(path)[:7]}], base=base)
    found = compare_datasets(base, _reopened(place, link))
    assert (found.rows_added, found.rows_removed) == (7, 0)


def test_a_stream_gives_rows_in_place(path: Path) -> None:
    found = adopted(path).open()
    name = found.schema.names[0]
    with stream(found, batch_size=8, columns=[name], shuffle=False) as batches:
        assert sum(len(batch[name]) for batch in batches) == ROWS


def test_adopting_images_of_a_table_does_not_read_them(tmp_path: Path) -> None:
    features = b'{"info": {"features": {"image": {"_type": "Image"}}}}'
    heavy = np.random.default_rng(0).bytes(1 << 20)
    rows = pa.table({"image": [{"bytes": heavy, "path": None}, {"bytes": None, "path": "x"}, None]})
    rows = rows.replace_schema_metadata({b"huggingface": features})
    path = tmp_path / "x.parquet"
    pq.write_table(rows, path, compression="none")
    read: list[int] = []

    class Counting(AllowedOutside):
        def read(self, url: str, start: int, stop: int, unchanged: Any = None) -> memoryview:
            read.append(stop - start)
            return super().read(url, start, stop, unchanged)

    outside = Counting([path], environment={})
    place = adopted(path, outside=outside, hashed=False)
    assert sum(read) < 600_000
    assert place.open()["image"][:] == [heavy, None, None]


def test_files_do_not_go_behind_images_that_were_written_here(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar")
    place = adopted(path)
    base = _imported(path)
    with pytest.raises(UnsupportedError, match="sizes of its images"):
        adopted(path, objects=place.objects, base=base)
