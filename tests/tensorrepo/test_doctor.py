"""Doctor tells what to do about the disk that a repository lies on."""

from __future__ import annotations

import pytest

from tensorrepo.repo.backends.mounts import Mount
from tensorrepo.workspace.doctor import judge


@pytest.mark.parametrize(
    ("kind", "options", "level"),
    [
        ("ext4", {"rw"}, "ok"),
        ("nfs4", {"rw", "hard"}, "warning"),
        ("nfs", {"rw", "lookupcache=all"}, "warning"),
        ("nfs4", {"rw", "lookupcache=positive"}, "ok"),
        ("nfs4", {"rw", "lookupcache=none"}, "ok"),
    ],
)
def test_an_nfs_mount_must_not_remember_that_a_file_is_absent(
    kind: str, options: set[str], level: str
) -> None:
    found = judge(Mount("/data", kind, frozenset(options)))
    assert found.level == level
    assert ("lookupcache=positive" in found.advice) == (level == "warning")
