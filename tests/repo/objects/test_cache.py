from __future__ import annotations

import multiprocessing
import os
import random
import resource
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.cache import TRAILER, DiskCache
from tests.support.effort import sampled
from tests.support.faults.damage import survivors

NAME = "ab" * 32
SMALL, LARGE = b"0123456789", bytes(range(256)) * 8192


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", 1 << 30)


BLOCK = 4096


def of_blocks(count: int, origin: str = "") -> bytes:
    """A value whose file takes so many blocks of the disk, and no byte less."""
    return bytes(count * BLOCK - TRAILER.size - len(origin))


def files(cache: DiskCache) -> list[Path]:
    """What is kept: all but the mark of the folder."""
    return [path for path in cache.root.rglob("*/*") if path.is_file()]


@pytest.mark.parametrize("value", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
def test_what_was_put_is_found_by_another_cache_of_the_same_folder(
    cache: DiskCache, value: bytes
) -> None:
    cache.put(NAME, (value[:3], memoryview(value)[3:]))
    found = DiskCache(cache.root, 1 << 30).get(NAME)
    assert found is not None
    assert (bytes(found), found.readonly) == (value, True)


def test_what_was_never_put_is_a_miss(cache: DiskCache) -> None:
    assert cache.get(NAME) is None


def test_a_value_put_again_replaces_the_old_one(cache: DiskCache) -> None:
    cache.put(NAME, (SMALL,))
    cache.put(NAME, (LARGE,))
    assert bytes(cache.get(NAME) or b"") == LARGE
    assert len(files(cache)) == 1


def test_no_flipped_byte_is_returned_and_the_file_is_dropped(cache: DiskCache) -> None:
    cache.put(NAME, (SMALL,))
    (file,) = files(cache)

    def found_and_left(damaged: bytes) -> tuple[object, int]:
        file.write_bytes(damaged)
        return cache.get(NAME), len(files(cache))

    outcomes = survivors(file.read_bytes(), 0x10, found_and_left, ())
    assert len(outcomes) == len(SMALL) + TRAILER.size
    assert set(outcomes.values()) == {(None, 0)}


@pytest.mark.parametrize("value", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("left_bytes", [0, 1, TRAILER.size, len(SMALL) + 15])
def test_a_file_cut_short_is_a_miss(cache: DiskCache, value: bytes, left_bytes: int) -> None:
    cache.put(NAME, (value,))
    os.truncate(files(cache)[0], left_bytes)
    assert cache.get(NAME) is None


def test_values_larger_than_one_read_gives_are_read_whole(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(NAME, (LARGE,))
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, min(size, 1000), at))
    assert bytes(cache.get(NAME) or b"") == LARGE


def test_a_value_under_the_wrong_name_is_a_miss(cache: DiskCache) -> None:
    cache.put(NAME, (SMALL,))
    (file,) = files(cache)
    other = "abc" + NAME[3:]
    file.rename(file.with_name(other))
    assert cache.get(other) is None


def test_a_link_in_the_place_of_a_value_is_a_miss(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(NAME, (SMALL,))
    (file,) = files(cache)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert cache.get(NAME) is None


def test_a_value_stays_whole_though_its_file_is_cut(cache: DiskCache) -> None:
    cache.put(NAME, (LARGE,))
    found = cache.get(NAME)
    os.truncate(files(cache)[0], 0)
    assert found is not None
    assert bytes(found) == LARGE


def test_a_value_that_no_descriptor_is_left_for_is_a_miss_and_stays(cache: DiskCache) -> None:
    cache.put(NAME, (LARGE,))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    following = os.dup(0)
    os.close(following)
    resource.setrlimit(resource.RLIMIT_NOFILE, (following, hard))
    try:
        found = cache.get(NAME)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found is None
    assert bytes(cache.get(NAME) or b"") == LARGE


def test_only_this_user_may_look_into_the_folder(cache: DiskCache) -> None:
    cache.root.mkdir(mode=0o755)
    cache.put(NAME, (SMALL,))
    assert cache.root.stat().st_mode & 0o777 == 0o700
    assert files(cache)[0].stat().st_mode & 0o077 == 0


def test_files_that_the_cache_did_not_write_are_never_deleted(cache: DiskCache) -> None:
    cache.put(NAME, (SMALL,))
    beside = [
        cache.root / name
        for name in ("notes.txt", "train/img_0001.jpg", "ab/cd.jpg", "ab/.hidden", "ab/ab c.jpg")
    ]
    (cache.root / "train").mkdir()
    for path in beside:
        path.write_bytes(LARGE)
        os.utime(path, (0, 0))
    DiskCache(cache.root, 100).evict()
    assert [path.exists() for path in beside] == [True] * 5


@pytest.mark.parametrize("held", ["train/img_0001.jpg", "notes.txt", "ab/img.jpg", "abc/abcd"])
def test_a_folder_of_other_files_is_no_cache_and_stays_as_it_is(
    cache: DiskCache, held: str
) -> None:
    (cache.root / held).parent.mkdir(parents=True)
    (cache.root / held).write_bytes(LARGE)
    cache.root.chmod(0o755)
    cache.put(NAME, (SMALL,))
    assert cache.get(NAME) is None
    assert cache.root.stat().st_mode & 0o777 == 0o755
    assert [path for path in cache.root.rglob("*") if path.is_file()] == [cache.root / held]
    assert held.split("/", maxsplit=1)[0] in (cache.refusal() or "")


def test_a_cache_made_before_folders_were_marked_is_used_and_marked(cache: DiskCache) -> None:
    cache.put(NAME, (SMALL,))
    (cache.root / "CACHEDIR.TAG").unlink()
    cache.root.chmod(0o755)
    found = DiskCache(cache.root, 1 << 30)
    assert bytes(found.get(NAME) or b"") == SMALL
    assert cache.root.stat().st_mode & 0o777 == 0o700
    assert (cache.root / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f0")


def test_a_folder_marked_as_the_cache_of_another_program_is_refused(cache: DiskCache) -> None:
    (cache.root / "v").mkdir(parents=True)
    tag = b"Signature: 8a477f597d28d172789f06886806bc55\n# made by pytest\n"
    (cache.root / "CACHEDIR.TAG").write_bytes(tag)
    assert cache.get(NAME) is None
    assert "'v'" in (cache.refusal() or "")


def test_a_folder_that_is_not_there_yet_is_not_refused_and_not_made(cache: DiskCache) -> None:
    assert cache.refusal() is None
    assert not cache.root.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_used(cache: DiskCache) -> None:
    cache.put(NAME, (SMALL,))
    os.chown(cache.root, 12345, 12345)
    other = DiskCache(cache.root, 1 << 30)
    other.put("cd" + NAME, (SMALL,))
    assert other.get(NAME) is None
    assert len(files(cache)) == 1


def test_where_no_folder_can_be_made_everything_is_a_miss(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = DiskCache(tmp_path / "file" / "cache", 1 << 30)
    cache.put(NAME, (SMALL,))
    assert cache.get(NAME) is None


@pytest.mark.together
@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\0", "x" * 300])
def test_a_name_that_could_mean_another_file_is_refused(cache: DiskCache, name: str) -> None:
    with pytest.raises(InvalidInputError, match="cannot name"):
        cache.get(name)
    with pytest.raises(InvalidInputError, match="cannot name"):
        cache.put(name, (SMALL,))


@pytest.mark.parametrize("size_bytes", [400, 5_000, 40_000])
def test_the_folder_stays_within_its_limit(tmp_path: Path, size_bytes: int) -> None:
    limit = 100_000
    chance = random.Random(7).random
    cache = DiskCache(tmp_path / "cache", limit, chance=chance)
    for number in range(3 * limit // size_bytes):
        cache.put(f"{number:05}", (bytes(size_bytes),))
    total = sum(path.stat().st_blocks * 512 for path in files(cache))
    assert limit / 4 < total < limit * 1.1


def test_what_is_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 1000)
    cache.put(NAME, (bytes(1000),))
    assert files(cache) == []


def test_what_was_used_lately_stays(tmp_path: Path) -> None:
    now = [1e9]
    cache = DiskCache(tmp_path / "cache", 5 * BLOCK, clock=lambda: now[0], chance=lambda: 1.0)
    for number in range(5):
        cache.put(f"{number}-value", (of_blocks(1),))
        path = next(path for path in files(cache) if path.name == f"{number}-value")
        os.utime(path, (now[0] + number, now[0] + number))
    now[0] += 10_000
    assert cache.get("0-value") is not None
    cache.put("last", (of_blocks(1),))
    cache.evict()
    assert {path.name for path in files(cache)} == {"0-value", "3-value", "4-value", "last"}


@pytest.mark.parametrize(("age_seconds", "kept"), [(10, True), (10_000, False)])
def test_what_killed_writers_left_goes_once_it_is_old(
    cache: DiskCache, age_seconds: float, kept: bool
) -> None:
    cache.put(NAME, (SMALL,))
    partial = files(cache)[0].with_name(".4711-0123456789abcdef")
    partial.write_bytes(b"half")
    now = partial.stat().st_mtime + age_seconds
    DiskCache(cache.root, 1 << 30, clock=lambda: now).evict()
    assert partial.exists() is kept
    assert cache.get(NAME) is not None


def _hammer(root: Path, seed: int) -> int:
    """Put, get and evict at random; the number of hits, each of which was right."""
    draw = random.Random(seed)
    cache = DiskCache(root, 60_000, chance=draw.random)
    hits = 0
    for _ in range(300):
        number = draw.randrange(12)
        value = bytes([number]) * 9_000
        found = cache.get(f"{number:02}-value")
        assert found is None or bytes(found) == value
        hits += found is not None
        cache.put(f"{number:02}-value", (value,))
    return hits


def test_processes_that_share_a_folder_only_ever_see_whole_values(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        runs = [pool.submit(_hammer, tmp_path / "cache", seed) for seed in range(2)]
        assert all(run.result() > 0 for run in runs)


# ------------------------------------------------------------------------------ by repository


ONE, OTHER = "s3://bucket/one", "s3://bucket/other"


def test_what_a_cache_holds_is_told_by_the_repository_it_was_kept_for(tmp_path: Path) -> None:
    now = [1000.0]
    cache = DiskCache(tmp_path / "cache", 1 << 20, clock=lambda: now[0])
    cache.of(ONE).put("aa1", [of_blocks(2, ONE)])
    cache.of(ONE).put("ab1", [b"small"])
    cache.of(OTHER).put("aa2", [of_blocks(2, OTHER)])
    cache.put("aa3", [b"nobody said"])
    uses = cache.uses()
    assert [(use.origin, use.files) for use in uses] == [(ONE, 2), (OTHER, 1), ("", 1)]
    assert [use.bytes for use in uses] == [3 * BLOCK, 2 * BLOCK, BLOCK]
    assert uses[0].oldest <= uses[0].newest


def test_the_first_repository_that_kept_a_value_has_it_and_all_read_it(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    cache.of(ONE).put("aa1", [b"value"])
    found = cache.of(OTHER).get("aa1")
    assert found is not None
    assert bytes(found) == b"value"
    assert cache.holds("aa1")
    assert not cache.holds("aa2")


@pytest.mark.parametrize("origin", ["", "x" * 5000, "s3://büro/\N{SNOWMAN}"])
def test_any_origin_leaves_the_value_as_it_is(tmp_path: Path, origin: str) -> None:
    cache = DiskCache(tmp_path / "cache", 1 << 20, origin=origin)
    cache.put("aa1", [b"val", b"ue"])
    assert bytes(cache.get("aa1") or b"") == b"value"
    assert origin.startswith(cache.uses()[0].origin)


@pytest.mark.parametrize("at", sampled(range(len(SMALL) + TRAILER.size + len(ONE)), 12))
def test_no_flipped_byte_of_a_value_with_an_origin_goes_unnoticed(tmp_path: Path, at: int) -> None:
    cache = DiskCache(tmp_path / "cache", 1 << 20, origin=ONE)
    cache.put("aa1", [SMALL])
    path = cache.root / "aa" / "aa1"
    data = bytearray(path.read_bytes())
    data[at] ^= 0x01
    path.write_bytes(data)
    assert cache.get("aa1") is None


def test_trimming_lets_go_of_what_was_not_used_for_longest(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    for number in range(10):
        cache.put(f"a{number}", [bytes(100)])
        os.utime(cache.root / f"a{number}" / f"a{number}", (number, number))
    gone = cache.trim(5 * BLOCK)
    assert gone == (5, 5 * BLOCK)
    assert [cache.holds(f"a{number}") for number in range(10)] == [False] * 5 + [True] * 5


def test_trimming_for_one_repository_leaves_the_others(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    cache.of(ONE).put("aa1", [bytes(100)])
    cache.of(OTHER).put("aa2", [bytes(100)])
    assert cache.trim(0, ONE).files == 1
    assert [use.origin for use in cache.uses()] == [OTHER]


def test_an_empty_or_missing_folder_holds_nothing(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "none", 1 << 20)
    assert cache.uses() == []
    assert cache.trim(0) == (0, 0)
    assert not (tmp_path / "none").exists()
