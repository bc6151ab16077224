"""A fixed part of what is streamed stays on disk, whoever else uses the folder."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.cache import DiskCache, PageDiskCache
from tests.support.effort import sampled

PAGE = 1000
LIMIT = 100 * PAGE


def names(dataset: str, pages: int) -> list[str]:
    return [name_of(f"{dataset}{at:04}", PAGE) for at in range(pages)]


def name_of(page: str, size_bytes: int) -> str:
    digest = hashlib.sha256(page.encode()).hexdigest()
    return f"{digest}.0-{size_bytes}.{digest[:32]}"


def epoch(cache: DiskCache, pages: list[str], seed: int) -> float:
    """Read all pages in another order; the share that the cache had."""
    order = random.Random(seed).sample(pages, len(pages))
    return sum(read(cache, name) for name in order) / len(order)


def read(cache: DiskCache, name: str) -> bool:
    if cache.get(name) is not None:
        return True
    cache.put(name, (bytes(PAGE),))
    return False


def page_cache(tmp_path: Path, wanted: int | None = None, seed: int = 7) -> PageDiskCache:
    wanted_bytes = None if wanted is None else wanted * PAGE
    chance = random.Random(seed).random
    return PageDiskCache(
        tmp_path / "pages", LIMIT, wanted_bytes=wanted_bytes, chance=chance, spare=0
    )


def bytes_of(cache: DiskCache) -> int:
    return sum(path.stat().st_size for path in cache.root.rglob("*") if path.is_file())


@pytest.mark.parametrize("pages", sampled([50, 125, 200, 2000, 400], 3))
def test_from_the_second_epoch_on_the_cached_share_is_hit(tmp_path: Path, pages: int) -> None:
    cache = page_cache(tmp_path, wanted=pages)
    every = names("a", pages)
    assert epoch(cache, every, 0) == 0
    for again in range(1, 4):
        assert epoch(cache, every, again) >= 0.9 * min(1, LIMIT / (pages * PAGE))
    assert bytes_of(cache) < 1.02 * LIMIT


@pytest.mark.soak
def test_least_recently_used_pages_would_hit_far_less(tmp_path: Path) -> None:
    used = DiskCache(tmp_path / "used", LIMIT, chance=random.Random(7).random)
    every = names("a", 200)
    epoch(used, every, 0)
    assert epoch(used, every, 1) < 0.3


@pytest.mark.soak
def test_who_does_not_say_how_much_it_reads_meets_the_limit_too(tmp_path: Path) -> None:
    cache = page_cache(tmp_path)
    every = names("a", 400)
    for again in range(3):
        epoch(cache, every, again)
    assert epoch(cache, every, 4) > 0.2
    assert bytes_of(cache) < 1.05 * LIMIT


@pytest.mark.soak
def test_two_jobs_share_a_folder_without_driving_out_each_other(tmp_path: Path) -> None:
    first, second = page_cache(tmp_path, 200, seed=1), page_cache(tmp_path, 300, seed=2)
    a, b = names("a", 200), names("b", 300)
    for again in range(4):
        epoch(first, a, again)
        epoch(second, b, again)
    rates = [epoch(first, a, 9), epoch(second, b, 9)]
    assert min(rates) > 0.8 * LIMIT / (500 * PAGE)
    assert bytes_of(first) < 1.05 * LIMIT


@pytest.mark.soak
def test_what_is_not_kept_is_not_written_again_and_again(tmp_path: Path) -> None:
    cache = page_cache(tmp_path)
    every = names("a", 400)
    epoch(cache, every, 0)
    inodes = {path.name: path.stat().st_ino for path in cache.root.rglob("*.0-*")}
    for again in range(1, 4):
        epoch(cache, every, again)
    left = {path.name: path.stat().st_ino for path in cache.root.rglob("*.0-*")}
    same = [name for name, inode in left.items() if inodes.get(name) == inode]
    assert len(same) > 0.8 * len(left)


def test_what_nobody_uses_any_more_makes_room_for_others(tmp_path: Path) -> None:
    old = page_cache(tmp_path, 100)
    epoch(old, names("old", 100), 0)
    for path in old.root.rglob("*.0-*"):
        os.utime(path, (1e9, 1e9))
    cache = page_cache(tmp_path, 200)
    every = names("new", 200)
    for again in range(3):
        epoch(cache, every, again)
    assert epoch(cache, every, 4) > 0.42


def test_a_threshold_that_eviction_taught_is_forgotten(tmp_path: Path) -> None:
    now = [1e9]
    cache = PageDiskCache(
        tmp_path / "pages", LIMIT, clock=lambda: now[0], chance=lambda: 1.0, spare=0
    )
    for name in names("a", 200):
        cache.put(name, (bytes(PAGE),))
    os.utime(cache.root, (now[0], now[0]))
    for path in cache.root.rglob("*.0-*"):
        os.utime(path, (now[0], now[0]))
    cache.evict()
    assert not all(cache.admits(name) for name in names("a", 200))
    now[0] += 3601
    assert all(cache.admits(name) for name in names("a", 200))


def test_a_disk_that_is_nearly_full_is_left_to_others(tmp_path: Path) -> None:
    cache = PageDiskCache(tmp_path / "pages", LIMIT, spare=1.1)
    cache.root.mkdir()
    cache.put(name_of("page", 5), (b"value",))
    assert bytes_of(cache) == 0


def test_a_page_in_use_holds_no_descriptor(tmp_path: Path) -> None:
    cache = PageDiskCache(tmp_path / "pages", 1 << 30, spare=0)
    page = name_of("page", 3 << 20)
    cache.put(page, (bytes(3 << 20),))
    before = os.listdir("/proc/self/fd")
    found = cache.get(page)
    assert os.listdir("/proc/self/fd") == before
    assert found is not None
    assert found.nbytes == 3 << 20


def test_only_files_named_like_pages_are_deleted(tmp_path: Path) -> None:
    cache = page_cache(tmp_path)
    page = name_of("page", 5)
    cache.put(page, (b"value",))
    beside = cache.root / page[:2] / f"{page[:2]}acus.jpg"
    beside.write_bytes(bytes(LIMIT))
    os.utime(beside, (0, 0))
    PageDiskCache(cache.root, 10, spare=0).evict()
    assert [path for path in cache.root.rglob("*/*") if path.is_file()] == [beside]


def test_what_is_no_page_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot name"):
        page_cache(tmp_path).put("abacus.jpg", (b"value",))


def _stream(root: Path, seed: int) -> float:
    cache = PageDiskCache(root, LIMIT, wanted_bytes=200 * PAGE, spare=0)
    every = names("a", 200)
    for again in range(3):
        epoch(cache, every, 10 * seed + again)
    return epoch(cache, every, 99)


@pytest.mark.soak
def test_several_processes_keep_the_same_pages_within_one_limit(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(4, mp_context=context) as processes:
        roots = [tmp_path / "pages"] * 4
        rates = list(processes.map(_stream, roots, range(4)))
    cache = page_cache(tmp_path)
    assert min(rates) > 0.42
    assert bytes_of(cache) < 1.05 * LIMIT


def _write_for_ever(root: Path) -> None:
    cache = PageDiskCache(root, 1 << 30, spare=0)
    at = 0
    while True:
        cache.put(name_of(f"page{at}", 200_000), (os.urandom(200_000),))
        at += 1


def test_a_killed_writer_leaves_nothing_that_is_believed(tmp_path: Path) -> None:
    root = tmp_path / "pages"
    cache = PageDiskCache(root, 1 << 30, spare=0)
    process = multiprocessing.get_context("spawn").Process(target=_write_for_ever, args=(root,))
    process.start()
    while cache.get(name_of("page20", 200_000)) is None:
        assert process.is_alive()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    whole = [path.name for path in root.rglob("*.0-200000.*")]
    assert whole
    assert all(cache.get(name) is not None for name in whole)
    for path in root.rglob(".*-*"):
        os.utime(path, (1e9, 1e9))
    cache.evict()
    assert list(root.rglob(".*-*")) == []
