"""Connection to a repository: URL, settings of the user, author, caches, distributed ranks.

Everything that depends on this machine comes in as arguments: the environment, folders to remember
things in, the way to ask git for a name. `sdk` and the command line pass the real ones.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tensorrepo import lazy
from tensorrepo.formats.common import arguments
from tensorrepo.formats.dataset.external.outside import Nothing, parse_address
from tensorrepo.repo.backends.sql_connections import SQLITE
from tensorrepo.repo.backends.urls import SCHEMES, open_folder, scheme_of
from tensorrepo.repo.changes.repository import (
    LocalState,
    RepositoryCore,
    create_repository,
    open_repository,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
)
from tensorrepo.repo.objects.cache import DiskCache, PageDiskCache
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.typed_decoding import from_json
from tensorrepo.workspace.state import CONFIG, config_beside, find_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorrepo.formats.dataset.external.outside_read import AllowedOutside
    from tensorrepo.repo.backends.base import Backend
    from tensorrepo.repo.history.merge_trees import MergeDriver
    from tensorrepo.repo.objects.store import ObjectStore

CONFIG_KEYS = {
    "user.name": "your name in commits",
    "user.email": "your address in commits",
    "cache.limit": "bytes that the cache of remote objects may take, and that of streams likewise",
    "catalog.url": "where the SQL catalog is; {id} in it stands for the repository's id",
    "log.url": "where the log is of repositories that have it in SQL; {id} stands for their id",
    "user.signingkey": "private Ed25519 key file that signs commits",
    "commit.sign": "true: every commit is signed",
    "signers.file": "file of keys that you trust, as ssh's allowed signers; else the repository's",
    "check.NAME": "command behind a check that a rule of a branch names",
    "outside.allow": "what may be read outside of repositories: folders and URLs, with commas",
}
WORKSPACE_KEYS = (
    "user.name",
    "user.email",
    "user.signingkey",
    "commit.sign",
)  # a workspace may have its own
DEFAULT_CACHE_LIMIT = "20GB"
_Cache = TypeVar("_Cache", bound=DiskCache)
_AUTHOR = re.compile(r"[^<>\n]+ <[^<>\s]+>")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(:/|::)")


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine lends: an environment, a home, the folder that a command runs in.

    `outside` are folders and URLs below which a command may read what is in no repository.
    """

    environment: Mapping[str, str] = field(repr=False)
    home: Path
    cwd: Path
    outside: tuple[str, ...] = ()

    def folder(self, variable: str, fallback: str) -> Path:
        """One of the XDG folders, ours in it."""
        base = self.environment.get(variable) or str(self.home / fallback)
        return Path(base) / "tensorrepo"

    def path(self, text: str | Path) -> Path:
        """A path that a user typed, absolute, without ".." that leads nowhere else."""
        typed = self.cwd / text
        if ".." not in typed.parts:
            return typed
        # Behind a link ".." is the folder above its target, which text alone cannot tell.
        plain = Path(os.path.normpath(typed))
        real = Path(os.path.realpath(typed))
        return plain if os.path.realpath(plain) == str(real) else real

    @property
    def config_file(self) -> Path:
        return self.folder("XDG_CONFIG_HOME", ".config") / "config.json"

    @property
    def state_folder(self) -> Path:
        return self.folder("XDG_STATE_HOME", ".local/state")

    @property
    def cache_folder(self) -> Path:
        return self.folder("XDG_CACHE_HOME", ".cache")


def is_url(text: str) -> bool:
    """Whether `text` is a URL, or somebody's slip of one; else it is a path."""
    return _URL.match(text) is not None


def pending_folder(machine: Machine, url: str) -> Path:
    """Notes on appends to one repository that were made outside of a workspace."""
    return machine.state_folder / "pending" / hashlib.sha256(url.encode()).hexdigest()[:32]


def local_state(machine: Machine, pending: Path) -> LocalState:
    """Where a client on this machine remembers things."""
    limit = cache_limit(machine)
    return LocalState(
        pending=pending,
        memory=machine.state_folder / "memory",
        cache=DiskCache(machine.cache_folder / "objects", limit) if limit else None,
    )


def cache_limit(machine: Machine) -> int:
    """Bytes that each cache of this user may take, as the setting ``cache.limit`` says."""
    return arguments.byte_size(
        "cache.limit", read_config(machine.config_file).get("cache.limit", DEFAULT_CACHE_LIMIT)
    )


def page_cache(
    machine: Machine, folder: str | Path | None = None, limit: int | str | None = None
) -> PageDiskCache | None:
    """Where streams keep pages of remote datasets on this machine; None: nowhere.

    Without a folder: in ``pages`` beside the cache of objects, below XDG_CACHE_HOME. Without a
    limit: what the user's setting ``cache.limit`` says; 0 keeps nothing.

    Raises:
        InvalidInputError: `folder` cannot be a cache, because it holds other files for example.
    """
    return _cache_at(machine, "pages", "cache_dir", folder, limit, PageDiskCache)


def derived_cache(
    machine: Machine, folder: str | Path | None = None, limit: int | str | None = None
) -> DiskCache | None:
    """Where streams keep what transforms made, as `page_cache` says; usually in ``derived``."""
    return _cache_at(machine, "derived", "DerivedCache: folder", folder, limit, DiskCache)


def _cache_at(
    machine: Machine,
    name: str,
    option: str,
    folder: str | Path | None,
    limit: int | str | None,
    kind: Callable[[Path, int], _Cache],
) -> _Cache | None:
    """A cache of this machine by its usual name, or in a `folder` that the `option` named."""
    size_bytes = (
        cache_limit(machine) if limit is None else arguments.byte_size("cache_limit", limit)
    )
    if folder is not None and not isinstance(folder, str | PathLike):
        raise arguments.wrong(option, "the path of a folder", folder)
    named = None if folder is None else machine.cwd / _expanded(Path(folder), machine)
    root = machine.cache_folder / name if named is None else named
    if not size_bytes:
        return None
    cache = kind(root, size_bytes)
    refused = None if folder is None else cache.refusal()
    if refused is not None:
        raise InvalidInputError(
            f"nothing can be kept in {str(root)!r}: {refused}. Name a folder of its own, such as "
            f"{str(root / f'tensorrepo-{name}')!r}, or leave {option} out."
        )
    return cache


def catalog_url(machine: Machine, repository_id: str, given: str | None = None) -> str:
    """Where the catalog of a repository is: a file of this user's cache, if nothing else is set.

    First comes what the caller gave, then TENSORREPO_CATALOG, then the setting ``catalog.url``.
    ``{id}`` in a URL stands for the repository's id.
    """
    told = given or machine.environment.get("TENSORREPO_CATALOG")
    told = told or read_config(machine.config_file).get("catalog.url")
    if told:
        if not isinstance(told, str):
            raise arguments.wrong("catalog", "the URL of a database", told)
        told = str(_expanded(Path(told), machine)) if told.startswith("~") else told
        return told.replace("{id}", repository_id)
    return f"sqlite:///{machine.cache_folder / 'catalog' / repository_id}.db"


def log_setting(repository_id: str) -> str:
    """The setting that says in which database the log of one repository is; `init` writes it."""
    return f"log.{repository_id}.url"


def log_database(machine: Machine, repository_id: str) -> str | None:
    """The database that has the log of a repository, where it is in one; None: nobody said.

    First comes TENSORREPO_LOG, then what `init` noted for this repository, then ``log.url``.
    Nothing in a repository says it. ``{id}`` stands for the repository's id.
    """
    settings = read_config(machine.config_file)
    told = machine.environment.get("TENSORREPO_LOG") or settings.get(log_setting(repository_id))
    told = told or settings.get("log.url")
    return whole_database(told, machine).replace("{id}", repository_id) if told else None


def whole_database(url: str, machine: Machine) -> str:
    """A database's URL, that of a SQLite file with its whole path."""
    if not url.startswith(SQLITE):
        return url
    return SQLITE + str(machine.path(Path(url.removeprefix(SQLITE))))


def _log_of(machine: Machine, log: str | None, repository_id: str) -> str | None:
    told = None if log is None else whole_database(log, machine)
    return told or log_database(machine, repository_id)


def _expanded(path: Path, machine: Machine) -> Path:
    """A path in which a leading ``~`` means the home of this user."""
    return machine.home.joinpath(*path.parts[1:]) if path.parts[:1] == ("~",) else path


def allowed_outside(
    machine: Machine, more: Mapping[str, Mapping[str, str]] | None = None
) -> AllowedOutside | Nothing:
    """Reader of data outside of repositories, as far as user settings and this command allow.

    `more` are further prefixes, each with the storage options that it needs. Nothing in a
    repository or a workspace allows one.
    """
    given = parse_prefixes(read_config(machine.config_file).get("outside.allow", ""))
    prefixes: dict[str, Mapping[str, str]] = {
        _absolute(text, machine): {} for text in (*given, *machine.outside)
    }
    prefixes |= {_absolute(text, machine): options for text, options in (more or {}).items()}
    if not prefixes:
        return Nothing()
    return lazy.AllowedOutside(prefixes, environment=machine.environment)


def parse_prefixes(text: str) -> list[str]:
    """Folders and URLs with commas between them, normalised.

    Raises:
        InvalidInputError: one is no absolute path and no URL, or has credentials in it.
    """
    return [parse_address(part.strip()).url for part in text.split(",") if part.strip()]


def _absolute(text: str, machine: Machine) -> str:
    return text if is_url(text) else str(machine.path(Path(text).expanduser()))


def connect(
    url: str,
    options: Mapping[str, str] | None,
    machine: Machine,
    *,
    pending: Path | None = None,
    more_outside: Mapping[str, Mapping[str, str]] | None = None,
    log: str | None = None,
) -> RepositoryCore:
    """Open the repository at `url`.

    Args:
        url: where it is.
        options: credentials, endpoint and the like.
        machine: where this process runs.
        pending: the workspace's notes; None outside of one.
        more_outside: see `allowed_outside`; a merge may read files in place.
        log: database that has its log, where that is in one; None: see `log_database`.
    """
    backend = open_store(url, options, machine)
    local = local_state(machine, pending or pending_folder(machine, backend.url))
    drivers = _Drivers(machine, more_outside)
    try:
        repository = open_repository(
            backend, drivers=drivers, local=local, database=partial(_log_of, machine, log)
        )
    except NotFoundError as error:
        workspace = None if is_url(url) else find_workspace(Path(url).absolute())
        if workspace is None:
            raise
        told = workspace.state().url
        real = told if is_url(told) else str((workspace.root / told).absolute())
        if real == backend.url:
            raise
        raise NotFoundError(
            f"{url} is no repository; it lies in the workspace {workspace.root}, whose repository "
            f"is {real}. Name that, or leave --repo out and work there (-C)."
        ) from error
    if repository.copy is not None and repository.copy.kind == "lazy":
        config = None if pending is None else pending.parent / CONFIG
        repository.objects.promised = _PromisedData(machine, repository, config)
    return repository


REMOTE_PREFIX = "remote."


class _PromisedData:
    """Where the data of a lazy clone is: looked for when it is first needed."""

    def __init__(self, machine: Machine, clone: RepositoryCore, workspace: Path | None) -> None:
        self._machine, self._clone, self._workspace = machine, clone, workspace
        self._found: ObjectStore | None = None

    def __call__(self) -> ObjectStore:
        if self._found is None:
            self._found = self._find()
        return self._found

    def _find(self) -> ObjectStore:
        """Objects of the remote that the clone is of, by its id: a name says nothing."""
        assert self._clone.copy is not None, "of a lazy clone"
        wanted, problem = self._clone.copy.origin, ""
        for url in dict.fromkeys(self._urls()):
            try:
                remote = connect(url, None, self._machine)
            except Error as error:
                problem = f" {error}"
                continue
            if remote.id == wanted:
                remote.objects.read_for = self._clone.url
                return remote.objects
        raise NotFoundError(
            f"{self._clone.url} is a lazy clone, and data that is not here is in repository "
            f"{wanted}, which none of its remotes is.{problem} Name it with `tensorrepo remote "
            "add NAME URL`."
        )

    def _urls(self) -> Iterator[str]:
        """URLs of remotes: those of the workspace, then those that the user has for it."""
        for file in (self._workspace, config_beside(self._clone.url)):
            yield from _remote_urls(file, REMOTE_PREFIX)
        yield from _remote_urls(self._machine.config_file, f"{REMOTE_PREFIX}{self._clone.id}.")


def _remote_urls(file: Path | None, prefix: str) -> list[str]:
    settings = {} if file is None else read_config(file)
    return [url for key, url in settings.items() if key.startswith(prefix) and key.endswith(".url")]


_PEER_OPTIONS = {"timeout": "3s", "connect_timeout": "1s"}


def open_peer(machine: Machine, url: str, repository: str) -> ObjectStore:
    """Objects of a copy of a repository at the server of a cache peer; requests end in seconds.

    Args:
        machine: where this process runs: its tokens are shown to the peer.
        url: the copy at the peer.
        repository: id of the repository whose objects are asked for.

    Raises:
        InvalidInputError: what is there is no copy of that repository.
        Error: the peer does not answer, or does not let this user read.
    """
    core = connect(url, _PEER_OPTIONS, machine)
    origin = None if core.copy is None else core.copy.origin
    if repository not in (core.id, origin):
        raise InvalidInputError(f"{url} has repository {core.id}, and no copy of {repository}")
    core.objects.promised = None  # what the peer lacks, the reader's own store has
    return core.objects


def create(
    url: str,
    options: Mapping[str, str] | None,
    machine: Machine,
    *,
    pending: Path | None = None,
    log: str | None = None,
) -> RepositoryCore:
    """Make a repository at `url`. Raises ConflictError when there is one.

    With `log` its log is in that SQL database, which is noted in this user's settings.
    """
    if SCHEMES.get(scheme_of(url)) == "http":
        if log is not None:
            raise InvalidInputError(f"{url}: a service keeps the log itself. Leave --log out.")
        return _create_at_service(url, options, machine, pending)
    backend = open_store(url, options, machine)
    local = local_state(machine, pending or pending_folder(machine, backend.url))
    if log is not None and "{id}" in log:  # which the repository has only when it is made
        raise InvalidInputError(
            "a new repository's log needs the URL of one database, without {id}: that is for the "
            "setting log.url, of many repositories"
        )
    database = None if log is None else whole_database(log, machine)
    made = create_repository(backend, drivers=_Drivers(machine), local=local, database=database)
    if database is not None:
        note_log(machine, made.id, database)
    return made


def _create_at_service(
    url: str, options: Mapping[str, str] | None, machine: Machine, pending: Path | None
) -> RepositoryCore:
    token = partial(lazy.stored_token, machine)
    backend = lazy.create_http(url, options, environment=machine.environment, stored_token=token)
    local = local_state(machine, pending or pending_folder(machine, backend.url))
    return open_repository(backend, drivers=_Drivers(machine), local=local)


def note_log(machine: Machine, repository_id: str, database: str) -> None:
    """Remember for this user where the log of a repository is."""
    settings = read_config(machine.config_file)
    write_config(machine.config_file, settings | {log_setting(repository_id): database})


def repository_at(machine: Machine, folder: str | Path) -> str:
    """URL of the repository that a folder names: the top of a workspace stands for its own."""
    path = machine.path(Path(folder).expanduser())
    around = find_workspace(path) if path.is_dir() else None
    if around is None or around.root != path or (path / "repo.json").exists():
        return str(path)
    told = around.state().url
    return told if is_url(told) else str(machine.path(path / told))


def open_store(url: str, options: Mapping[str, str] | None, machine: Machine) -> Backend:
    """The store at `url`; clients of remote stores are loaded only for a remote one.

    A web server is asked whether it is a service.
    """
    folder = open_folder(url, options)
    if folder is not None:
        return folder
    if SCHEMES.get(scheme_of(url)) == "http":
        token = partial(lazy.stored_token, machine)
        return lazy.open_http(url, options, environment=machine.environment, stored_token=token)
    return lazy.open_backend(url, options, environment=machine.environment)


class _Drivers(Mapping[Kind, "MergeDriver"]):
    """Merge drivers by kind of entry, loaded by the first merge that needs one."""

    def __init__(
        self, machine: Machine, more: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self._machine, self._more = machine, more

    def __getitem__(self, kind: Kind) -> MergeDriver:
        if kind is Kind.DATASET:
            return lazy.DatasetMergeDriver(allowed_outside(self._machine, self._more))
        if kind is Kind.MODEL:
            return lazy.ModelMergeDriver()
        if kind is Kind.SEARCH_INDEX:
            return lazy.IndexMergeDriver()
        raise KeyError(kind)

    def __iter__(self) -> Iterator[Kind]:
        return iter((Kind.DATASET, Kind.MODEL, Kind.SEARCH_INDEX))

    def __len__(self) -> int:
        return 3


def read_config(path: Path) -> dict[str, str]:
    """Settings of one file; none when there is no such file."""
    try:
        return from_json(path.read_bytes(), dict[str, str])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except msgspec.MsgspecError as error:
        raise InvalidInputError(f"{path} is damaged: {error}. Mend or delete it.") from error


def write_config(path: Path, settings: Mapping[str, str]) -> None:
    """Replace the settings of one file, as a whole; the URL of a catalog may hold a password."""
    replace_settings(path, msgspec.json.encode(dict(settings)))


def replace_settings(path: Path, content: bytes) -> None:
    """Let a file that only its user may read hold this JSON, or what it held before.

    Raises:
        PermissionDenied: it may not be written.
        StorageError: it cannot be, as where the disk is full.
    """
    partial = path.with_suffix(f".{secrets.token_hex(4)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch(0o600)
        partial.write_bytes(msgspec.json.format(content, indent=1))
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise unwritten(path, error) from error


def unwritten(path: Path, error: OSError) -> Error:
    """Why settings were not written, and what to do."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageError(f"cannot write {path}: {error.strerror}. Free some space, then repeat.")
    return PermissionDenied(
        f"cannot write {path}: {error.strerror}. XDG_CONFIG_HOME names another folder."
    )


def author(machine: Machine, workspace_config: Path | None = None) -> str:
    """``Name <email>`` for commits, from the first source that knows both.

    Order: the workspace's config, the user's config, TENSORREPO_AUTHOR, git's config.

    Raises:
        InvalidInputError: nobody knows; says how to tell.
    """
    settings = read_config(machine.config_file)
    if workspace_config is not None:
        settings |= read_config(workspace_config)
    name, email = settings.get("user.name"), settings.get("user.email")
    told = machine.environment.get("TENSORREPO_AUTHOR")
    if told and not (name and email):
        if _AUTHOR.fullmatch(told) is None:
            raise InvalidInputError(f"TENSORREPO_AUTHOR is {told!r}: expected 'Name <email>'")
        return told
    name = name or _git("user.name", machine)
    email = email or _git("user.email", machine)
    if not name or not email:
        raise InvalidInputError(
            "who are you? Commits name their author: run `tensorrepo config --global user.name "
            "'Your Name'` and `tensorrepo config --global user.email you@example.org` (without "
            "--global of this workspace alone), or set TENSORREPO_AUTHOR."
        )
    return f"{name} <{email}>"


def world(
    environment: Mapping[str, str], rank: int | None = None, world_size: int | None = None
) -> tuple[int, int]:
    """(rank, world size), as given or as torchrun and others set them; (0, 1) where nobody did.

    Raises:
        InvalidInputError: no numbers, a rank beyond the world, or a world without a rank.
    """
    size, size_told = _told(environment, "world_size", world_size, least=1)
    own, rank_told = _told(environment, "rank", rank, least=0)
    if own is None and (size or 1) > 1:
        raise InvalidInputError(
            f"{size_told} without a rank: every process would read the share of rank 0. Give "
            "Ranks(rank=...), or set RANK in the environment as torchrun does."
        )
    if (own or 0) >= (size or 1):
        raise InvalidInputError(
            f"{rank_told} and {size_told or 'no world_size= or WORLD_SIZE'}: expected a rank from "
            "0 to below the number of ranks. Correct or unset them."
        )
    return own or 0, size or 1


def _told(
    environment: Mapping[str, str], name: str, given: int | None, *, least: int
) -> tuple[int | None, str]:
    """A number as it was given or set, None where it was not, and how people know it."""
    if given is not None:
        found = arguments.whole(name, given, least)
        return found, f"{name}={found}"
    text = environment.get(name.upper())
    if text is None:
        return None, ""
    told = f"{name.upper()}={text} in the environment"
    if not text.strip().isdecimal() or int(text) < least:
        raise InvalidInputError(
            f"{told}: expected a whole number, at least {least}. Correct or unset it."
        )
    return int(text), told


def _git(key: str, machine: Machine, run: Callable[..., str] = subprocess.check_output) -> str:
    try:
        return run(
            ["git", "config", "--get", key],
            cwd=machine.cwd, env=dict(machine.environment), text=True, stderr=subprocess.DEVNULL,
        ).strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
