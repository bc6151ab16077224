"""Caches of this machine, as somebody types it, with a store that is really remote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.builders.derived import scaled_label
from tests.support.processes.shell import ADA, Shell
from tests.support.servers.object_stores import s3_on_ours

ROWS = 3000
USAGE = 2


@pytest.fixture
def remote(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tr.Repository]:
    """A repository in S3, and empty caches that Python and the shell share."""
    monkeypatch.setenv("XDG_CACHE_HOME", shell.variables["XDG_CACHE_HOME"])
    with s3_on_ours(tmp_path / "s3") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        repo = tr.init(f"{bucket.url}/repo", author=ADA)
        with repo.transaction("main") as tx:
            columns = {"x": tr.Tensor("float32", (256,)), "label": tr.ClassLabel(("a", "b"))}
            values = np.random.default_rng(0).random((ROWS, 256), dtype=np.float32)
            tx.create_dataset("points", columns=columns).append(
                {"x": values, "label": np.arange(ROWS) % 2}
            )
        yield repo


def test_what_was_warmed_is_listed_read_and_trimmed(remote: tr.Repository, shell: Shell) -> None:
    words = ("points", "--repo", remote.url)
    (report,) = shell.records("cache", "warm", *words, "--limit-rate", "1GB")
    assert report["bytes"] > ROWS * 1024
    (again,) = shell.records("cache", "warm", *words)
    assert (again["bytes"], again["present_bytes"]) == (0, report["bytes"])

    held = {each["cache"]: each for each in shell.records("cache", "ls")}
    assert held["pages"]["origin"] == remote.url
    assert held["pages"]["bytes"] > report["bytes"]
    told = shell.run("cache", "ls").stdout
    assert remote.url in told.replace("\n", "") or "pages" in told

    stream = remote.dataset("points").stream(batch_size=100)
    assert sum(len(batch.rows) for batch in stream) == ROWS
    assert stream.stats().cache_hit_rate == 1

    (gone,) = shell.records("cache", "trim", "1MB")
    assert gone["bytes"] > 1 << 20
    assert sum(each["bytes"] for each in shell.records("cache", "ls")) <= 1 << 20
    shell.run("cache", "trim", "0", "--of", remote.url)
    assert shell.records("cache", "ls") == []
    assert "empty" in shell.run("cache", "ls").stderr


@pytest.mark.soak
def test_columns_rows_and_shares_are_those_of_a_stream(
    remote: tr.Repository, shell: Shell, tmp_path: Path
) -> None:
    words = ("points", "--repo", remote.url, "--cache-dir", str(tmp_path / "own"))
    (label,) = shell.records("cache", "warm", *words, "--columns", "label")
    (rows,) = shell.records("cache", "warm", *words, "--columns", "x", "--where", "label == 'a'")
    assert 0 < label["bytes"] < rows["bytes"]
    (share,) = shell.records(
        "cache", "warm", *words, "--shard", "1/2", "--epoch", "2", "--batch-size", "64"
    )
    assert share["present_bytes"] > 0
    (held,) = shell.records("cache", "ls", "--cache-dir", str(tmp_path / "own"))
    assert held["cache"] == "folder"


@pytest.mark.together
@pytest.mark.parametrize("shard", ["2", "2/2", "a/b", "-1/2", "0/0"])
def test_a_share_that_is_none_is_refused(remote: tr.Repository, shell: Shell, shard: str) -> None:
    told = shell.fails(USAGE, "cache", "warm", "points", "--repo", remote.url, f"--shard={shard}")
    assert "R/N" in told


def test_what_is_local_needs_no_cache(shell: Shell) -> None:
    repo = shell.repository()
    with repo.transaction("main") as tx:
        tx.create_dataset("points", {"a": [1, 2, 3]})
    assert "nothing to fetch" in shell.run("cache", "warm", "points").stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("trim", "much"), "SIZE"),
        (("trim", "1GB", "--of", "s3://nobody/knows"), "cache ls"),
        (("ls", "--cache-dir", "."), "is no cache"),
        (("warm", "nothing"), "no commit yet"),
    ],
)
def test_what_cannot_be_meant_is_told(shell: Shell, words: Any, told: str) -> None:
    (shell.folder / "notes.txt").write_text("mine")
    shell.repository()
    done = shell.run("cache", *words)
    assert done.exit_code in (2, 3)
    assert told in " ".join(done.stderr.split())
    assert (shell.folder / "notes.txt").read_text() == "mine"


def test_a_stream_that_keeps_nothing_cannot_be_warmed(remote: tr.Repository) -> None:
    stream = remote.dataset("points").stream(batch_size=10, loading=tr.Loading(cache_limit=0))
    with pytest.raises(tr.InvalidInputError, match="limit of the cache is 0"):
        stream.warm()


def test_derived_rows_are_kept_below_the_cache_folder_and_listed(
    remote: tr.Repository, shell: Shell
) -> None:
    stream = remote.dataset("points").stream(
        batch_size=100, columns=["label"], transform=scaled_label, cache="derived"
    )
    first = [item["z"].tolist() for item in stream]
    stream.set_epoch(0)
    assert [item["z"].tolist() for item in stream] == first
    assert stream.stats().derived_found == ROWS
    held = {each["cache"]: each for each in shell.records("cache", "ls")}
    # Equal rows are one: there are two labels.
    assert (held["derived"]["files"], held["derived"]["origin"]) == (2, remote.url)
