"""F11: paths that go up are read in place, and messages show paths without "dir/../"."""

from __future__ import annotations

import numpy as np

from tests.support.processes.shell import Shell


def test_adopt_takes_a_path_that_goes_up(shell: Shell) -> None:
    np.save(shell.home.parent / "dots.npy", np.arange(12).reshape(6, 2))
    shell("--allow-outside", "..", "dataset", "adopt", "../dots.npy", "--dataset", "dots")
    shell("commit", "-m", "Dots")
    assert "6 rows x 1 column" in shell("ls")
    said = shell("--allow-outside", "..", "cat", "dots", "-n", "1", "--json")
    assert "[0, 1]" in said or "[0,1]" in said
    assert "../" not in shell("lineage", "dots", "--json")


def test_messages_name_places_without_detours(shell: Shell) -> None:
    detour = f"../{shell.folder.name}/../none.csv"
    told = shell.fails(3, "add", detour, "--dataset", "none")
    assert str(shell.home.parent / "none.csv") in told
    told = shell.fails(3, "dataset", "adopt", "../none.npy", "--dataset", "none")
    assert str(shell.home.parent / "none.npy") in told


def test_a_way_up_behind_a_link_leads_where_the_link_leads(shell: Shell) -> None:
    far = shell.home.parent / "far" / "inner"
    far.mkdir(parents=True)
    (far.parent / "a.csv").write_text("a\n1\n")
    (shell.folder / "link").symlink_to(far)
    shell("add", "link/../a.csv", "--dataset", "a")
    assert "datasets/a" in shell("status")
