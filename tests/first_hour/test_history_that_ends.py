"""What is told of a copy whose history ends somewhere, and of names that it has not."""

from __future__ import annotations

from dataclasses import replace

from tests.support.processes.shell import Shell


def test_blame_and_names_of_a_copy_without_its_past(full: Shell) -> None:
    full("rm", "net")
    full("commit", "-m", "Nothing of points")
    short = replace(full, folder=full.folder.parent / "short")
    full("clone", ".", str(short.folder), "--depth", "1")
    told = short("blame", "points", "--row", "0")
    assert "or before (history ends there)" in told
    assert "  ^" in told
    assert all(cell["or_before"] for cell in short.json("blame", "points", "--row", "0")["cells"])
    assert "or before" not in full("blame", "points", "--row", "0")

    assert "There is origin." in short.fails(3, "fetch", "zz")
    assert "Did you mean origin?" in short.fails(3, "remote", "rm", "orign")
    assert "There is main." in short.fails(3, "push", "origin", "zz")
