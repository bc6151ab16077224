"""How does a URL become an open repository, and who is working on it?

Everything that depends on this machine comes in here as arguments: the environment, folders to
remember things in, the way to ask git for a name. `sdk` and the command line pass the real ones.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import msgspec

from tensorrepo.formats.dataset.merge import DatasetMergeDriver
from tensorrepo.formats.model.merge import ModelMergeDriver
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.cache import DiskCache
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.repository import (
    LocalState,
    Repository,
    create_repository,
    open_repository,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensorrepo.repo.merge import Drivers

DRIVERS: Drivers = {Kind.DATASET: DatasetMergeDriver(), Kind.MODEL: ModelMergeDriver()}
CONFIG_KEYS = {
    "user.name": "your name in commits",
    "user.email": "your address in commits",
    "cache.limit": "bytes that the cache of remote objects may take, such as 20GB",
}
DEFAULT_CACHE_LIMIT = "20GB"
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine lends: an environment, a home, the folder that a command runs in."""

    environment: Mapping[str, str] = field(repr=False)
    home: Path
    cwd: Path

    def folder(self, variable: str, fallback: str) -> Path:
        """One of the XDG folders, ours in it."""
        base = self.environment.get(variable) or str(self.home / fallback)
        return Path(base) / "tensorrepo"

    @property
    def config_file(self) -> Path:
        return self.folder("XDG_CONFIG_HOME", ".config") / "config.json"

    @property
    def state_folder(self) -> Path:
        return self.folder("XDG_STATE_HOME", ".local/state")

    @property
    def cache_folder(self) -> Path:
        return self.folder("XDG_CACHE_HOME", ".cache")


def local_state(machine: Machine, pending: Path | None) -> LocalState:
    """Where a client on this machine remembers things. `pending`: the workspace's folder."""
    limit = parse_size(read_config(machine.config_file).get("cache.limit", DEFAULT_CACHE_LIMIT))
    return LocalState(
        pending=pending or machine.state_folder / "pending",
        memory=machine.state_folder / "memory",
        cache=DiskCache(machine.cache_folder / "objects", limit) if limit else None,
    )


_OPEN: dict[tuple[object, ...], Repository] = {}
_OPENING = Lock()


def connect(
    url: str, options: Mapping[str, str] | None, machine: Machine, *, pending: Path | None = None
) -> Repository:
    """Open the repository at `url`; one handle for equal arguments in one process."""
    key = (url, tuple(sorted((options or {}).items())), str(pending))
    with _OPENING:
        known = _OPEN.get(key)
        if known is None:
            backend = open_backend(url, options, environment=machine.environment)
            known = open_repository(backend, drivers=DRIVERS, local=local_state(machine, pending))
            _OPEN[key] = known
        return known


def create(
    url: str, options: Mapping[str, str] | None, machine: Machine, *, pending: Path | None = None
) -> Repository:
    """Make a repository at `url`. Raises ConflictError when there is one."""
    backend = open_backend(url, options, environment=machine.environment)
    local = local_state(machine, pending)
    return create_repository(backend, drivers=DRIVERS, local=local)


def read_config(path: Path) -> dict[str, str]:
    """Settings of one file; none when there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except msgspec.MsgspecError as error:
        raise InvalidInputError(f"{path} is damaged: {error}. Mend or delete it.") from error


def write_config(path: Path, settings: Mapping[str, str]) -> None:
    """Replace the settings of one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(dict(settings)), indent=1) + b"\n")
    partial.replace(path)


def author(machine: Machine, workspace_config: Path | None = None) -> str:
    """``Name <email>`` for commits, from the first source that knows both.

    Order: TENSORREPO_AUTHOR, the workspace's config, the user's config, git's config.

    Raises:
        InvalidInputError: nobody knows; says how to tell.
    """
    told = machine.environment.get("TENSORREPO_AUTHOR")
    if told:
        return told
    settings = read_config(machine.config_file)
    if workspace_config is not None:
        settings |= read_config(workspace_config)
    name = settings.get("user.name") or _git("user.name", machine)
    email = settings.get("user.email") or _git("user.email", machine)
    if not name or not email:
        raise InvalidInputError(
            "who are you? Commits name their author: run `tensorrepo config user.name 'Your Name'` "
            "and `tensorrepo config user.email you@example.org`, or set TENSORREPO_AUTHOR."
        )
    return f"{name} <{email}>"


def world(environment: Mapping[str, str]) -> tuple[int, int]:
    """(rank, world size) as torchrun and others set them; (0, 1) where nobody did."""
    return int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))


def parse_size(text: str | int) -> int:
    """Bytes: ``"64MB"`` is 64 * 10**6, ``"64MiB"`` 64 * 2**20, a number is itself."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidInputError(f"{text!r} is no size: expected bytes, or such as 512MB or 2GiB")
    unit = 1024 if match[3] else 1000
    return int(float(match[1]) * unit ** " kmgtp".index(match[2].lower() or " "))


def _git(key: str, machine: Machine, run: Callable[..., str] = subprocess.check_output) -> str:
    try:
        return run(
            ["git", "config", "--get", key],
            cwd=machine.cwd, env=dict(machine.environment), text=True, stderr=subprocess.DEVNULL,
        ).strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
