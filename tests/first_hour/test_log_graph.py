"""F5: `log --graph` draws the history that there is."""

from __future__ import annotations

from tests.support.processes.shell import Shell, write_points


def commit(shell: Shell, message: str) -> None:
    write_points(shell.folder / "points.npz", 3, seed=len(message))
    shell("add", "points.npz", "--dataset", message.replace(" ", "-"))
    shell("commit", "-m", message)


def test_a_branch_that_was_made_at_the_second_commit_is_drawn_so(shell: Shell) -> None:
    commit(shell, "c1")
    commit(shell, "c2")
    shell("switch", "-c", "side")
    commit(shell, "side one")
    shell("switch", "main")
    commit(shell, "main three")
    shell("merge", "side")
    lines = [line.split() for line in shell("log", "--graph").splitlines()]
    assert [line[-1] for line in lines if "*" in line][-2:] == ["c2", "c1"]
    assert lines[1] == ["├─╮"]
    assert lines[-3] == ["├─╯"]
    some = shell("log", "--graph", "--", "side-one", "c1")
    assert [line[0] for line in some.splitlines()] == ["*", "*"]
