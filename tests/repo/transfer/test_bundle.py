"""Bundles: commits and all their data in one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tensorrepo.repo.log.records import LogEntry, Update
from tensorrepo.repo.transfer.bundle import Bundle, write_bundle
from tensorrepo.repo.transfer.exchange import clone, fetch, restore
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.histories import verify
from tests.support.builders.repositories import ADA, commit_files, files_at, new_repository, tip_of

FILES = {"files/a": b"one", "files/large": bytes(range(256)) * 24_000}


@pytest.fixture
def options(tmp_path: Path) -> TransferOptions:
    return TransferOptions(ADA, tmp_path / "parts")


@pytest.fixture(scope="module")
def origin() -> RepositoryCore:
    made = new_repository()
    first = commit_files(made, FILES)
    refs.create_tag(made, "v1", first.digest, actor=ADA)
    commit_files(made, {"files/a": b"two"})
    return made


@pytest.fixture(scope="module")
def whole(origin: RepositoryCore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "whole.bundle"
    source = HistorySource.of(origin)
    write_bundle(source, path, source.refs)
    return path


def test_a_clone_of_a_bundle_has_all_that_was_put_into_it(
    origin: RepositoryCore, whole: Path, options: TransferOptions
) -> None:
    here, bundle = new_repository(), Bundle(whole)
    clone(bundle.source(), here, "origin", options)
    state = here.log.refresh().state
    assert state.refs["tags/v1"] == origin.log.refresh().state.refs["tags/v1"]
    assert files_at(here, tip_of(here)) == FILES | {"files/a": b"two"}
    verify(here.backend)
    bundle.close()


def test_equal_commits_make_equal_bundles(
    origin: RepositoryCore, whole: Path, tmp_path: Path
) -> None:
    source = HistorySource.of(origin)
    write_bundle(source, tmp_path / "again.bundle", dict(reversed(source.refs.items())))
    assert (tmp_path / "again.bundle").read_bytes() == whole.read_bytes()


def test_a_bundle_that_continues_a_commit_holds_what_is_new_alone(
    origin: RepositoryCore, whole: Path, tmp_path: Path, options: TransferOptions
) -> None:
    source, path = HistorySource.of(origin), tmp_path / "more.bundle"
    v1 = source.refs["tags/v1"]
    made = write_bundle(source, path, {"heads/main": source.refs["heads/main"]}, without=[v1])
    assert made.contents.needs == [v1]
    assert path.stat().st_size < 5_000
    here, first, more = new_repository(), Bundle(whole), Bundle(path)
    clone(first.source(), here, "origin", options)
    more.verify()
    report = fetch(more.source(), here, "more", options)
    assert [move.ref for move in report.moves] == ["remotes/more/main"]
    verify(here.backend)


def test_nothing_new_makes_no_bundle(origin: RepositoryCore, tmp_path: Path) -> None:
    source = HistorySource.of(origin)
    main = source.refs["heads/main"]
    with pytest.raises(InvalidInputError, match="nothing to write"):
        write_bundle(source, tmp_path / "x.bundle", {"heads/main": main}, without=[main])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_not_overwritten(origin: RepositoryCore, whole: Path) -> None:
    source, before = HistorySource.of(origin), whole.read_bytes()
    with pytest.raises(InvalidInputError, match="there already"):
        write_bundle(source, whole, source.refs)
    assert whole.read_bytes() == before


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.001, 0.3, 0.9, 0.9999, 0.99999, 1.0])
def test_no_flipped_byte_goes_unnoticed(share: float, whole: Path, tmp_path: Path) -> None:
    damaged = bytearray(whole.read_bytes())
    damaged[int(share * (len(damaged) - 1))] ^= 0x40
    path = tmp_path / "damaged.bundle"
    path.write_bytes(damaged)
    with pytest.raises((CorruptError, UnsupportedError)):
        Bundle(path).verify()


def test_a_damaged_object_is_never_stored(
    origin: RepositoryCore, whole: Path, tmp_path: Path, options: TransferOptions
) -> None:
    data = bytearray(whole.read_bytes())
    data[data.index(FILES["files/large"]) + 5000] ^= 1
    path = tmp_path / "damaged.bundle"
    path.write_bytes(data)
    here, bundle = new_repository(), Bundle(path)
    with pytest.raises(CorruptError, match="damaged there"):
        clone(bundle.source(), here, "origin", options)
    assert not here.log.refresh().state.refs
    assert origin.id == bundle.contents.repository


@pytest.mark.parametrize(("version", "advice"), [(1, "Make the bundle anew"), (3, "Update it")])
def test_a_bundle_of_another_version_is_refused(
    version: int, advice: str, whole: Path, tmp_path: Path
) -> None:
    data = bytearray(whole.read_bytes())
    data[8:12] = version.to_bytes(4, "little")
    path = tmp_path / "other.bundle"
    path.write_bytes(data)
    with pytest.raises(UnsupportedError, match=f"version {version}, .* reads 2. {advice}"):
        Bundle(path)


@pytest.mark.parametrize("left", [0, 10, 79, 5_000])
def test_a_file_that_is_cut_short_is_no_bundle(left: int, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.bundle"
    path.write_bytes(whole.read_bytes()[:left])
    with pytest.raises(CorruptError):
        Bundle(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"gone\.bundle"):
        Bundle(tmp_path / "gone.bundle")


def test_all_refs_come_back_under_their_own_names(tmp_path: Path, options: TransferOptions) -> None:
    origin = new_repository()
    tip = commit_files(origin, FILES).digest
    names = ("tags/v1", "runs/training/7", "registry/net/1", "promoted/other/models/net")
    made = tuple(Update(ref, None, tip) for ref in names)
    origin.append(lambda _: (LogEntry("made", "ref-create", ADA, 0, "made", made),))
    told = origin.log.refresh().state.refs
    write_bundle(HistorySource.of(origin), tmp_path / "all", told)
    bundle, here = Bundle(tmp_path / "all"), new_repository()
    report = restore(bundle.source(), here, options)
    assert here.log.refresh().state.refs == told
    assert len(report.moves) == len(told)
    verify(here.backend)
    assert restore(bundle.source(), here, options).moves == ()
    mine = commit_files(here, {"files/mine": b"mine"})
    commit_files(origin, {"files/theirs": b"theirs"})
    with pytest.raises(ConflictError, match="would not move forward"):
        restore(HistorySource.of(origin), here, options)
    assert tip_of(here) == mine.digest
    bundle.close()
