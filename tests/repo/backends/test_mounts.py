from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import Guarantee
from tensorrepo.repo.backends.mounts import UNKNOWN, find_mount, mount_of, mount_over

TABLE = r"""
25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 25 0:27 / /mnt/team rw,relatime shared:9 master:2 - nfs4 server:/x rw,lookupcache=positive
31 25 0:28 / /mnt/team\040data rw - fuse.rclone remote: rw,user_id=0
32 25 0:29 / /data rw - cifs //server/share rw
33 25 8:17 / /data rw - xfs /dev/sdb1 rw,noquota
34 30 0:30 / /mnt/team/scratch rw - tmpfs tmpfs rw
35 25 0:31 / /фото мои x rw - fuse.tensorrepo x rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind", "guarantee"),
    [
        ("/", "ext4", Guarantee.ATOMIC),
        ("/home/me/repo", "ext4", Guarantee.ATOMIC),
        ("/mnt/team", "nfs4", Guarantee.SINGLE_WRITER),
        ("/mnt/team/repo", "nfs4", Guarantee.SINGLE_WRITER),
        ("/mnt/teams", "ext4", Guarantee.ATOMIC),
        ("/mnt/team data/x", "fuse.rclone", Guarantee.SINGLE_WRITER),
        ("/mnt/team/scratch/x", "tmpfs", Guarantee.ATOMIC),
        ("/data/x", "xfs", Guarantee.ATOMIC),
        (
            "/фото\N{NO-BREAK SPACE}мои\N{LINE SEPARATOR}x",
            "fuse.tensorrepo",
            Guarantee.SINGLE_WRITER,
        ),
    ],
)
def test_the_deepest_and_latest_mount_decides(path: str, kind: str, guarantee: Guarantee) -> None:
    mount = find_mount(path, TABLE)
    assert (mount.type, mount.guarantee) == (kind, guarantee)


def test_the_device_is_told() -> None:
    assert find_mount("/data", TABLE).device == "8:17"


def test_what_is_mounted_over_a_folder_is_not_what_it_lies_on(tmp_path: Path) -> None:
    assert mount_over(tmp_path) is None
    over = mount_over(Path("/proc"))
    assert over is None or over.type == "proc"


def test_options_of_the_mount_and_of_the_file_system_are_told() -> None:
    assert {"lookupcache=positive", "relatime"} <= find_mount("/mnt/team", TABLE).options


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "fuse", "fuse.sshfs", "9p", "vfat"]
)
def test_what_depends_on_somebody_elses_server_is_for_one_writer(kind: str) -> None:
    table = f"25 1 254:0 / / rw - {kind} source rw"
    assert find_mount("/x", table).guarantee is Guarantee.SINGLE_WRITER


def test_where_the_system_does_not_tell_the_type_is_unknown(tmp_path: Path) -> None:
    mount = mount_of(tmp_path, tmp_path / "no such table")
    assert mount == UNKNOWN
    assert mount.guarantee is Guarantee.SINGLE_WRITER


def test_a_path_that_does_not_exist_yet_lies_on_its_future_mount(tmp_path: Path) -> None:
    assert mount_of(tmp_path / "not" / "yet").point == mount_of(tmp_path).point
