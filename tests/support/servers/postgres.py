"""A PostgreSQL server of the tests' own: one cluster a session, one database a test.

The server refuses to run as root, so that root starts it as another user.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg

USERS = ("postgres", "nobody")  # whom root starts the server as: the first that there is
QUICK = {  # nobody misses what a test wrote, and several servers share a machine
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
}
ADMIN = "tests"
PORTS = (20_000, 32_000)
STARTS = 5  # each at another port
TAKEN = "Address already in use"


@dataclass
class Server:
    """A running server; `database` makes a new database in it. `stop` and `start` it in between."""

    port: int
    stop: Callable[[], None] = lambda: None
    start: Callable[[], object] = lambda: None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def url(self, database: str) -> str:
        return f"postgresql://{ADMIN}@127.0.0.1:{self.port}/{database}"

    def database(self, like: str | None = None) -> str:
        """The URL of a database that is empty, or like the one at a URL that nobody uses now."""
        name = f"test{next(self._numbers)}"
        template = "" if like is None else f" TEMPLATE {like.rpartition('/')[2]}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}{template}")
        return self.url(name)

    def drop(self, url: str) -> None:
        name = url.rpartition("/")[2]
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def programs() -> Path | None:
    """The folder of initdb and pg_ctl: of the PATH, else of Debian's newest package."""
    found = shutil.which("initdb")
    if found is not None and shutil.which("pg_ctl") is not None:
        return Path(found).parent
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return packaged[-1].parent if packaged else None


@cache
def shared_server() -> Server:
    """The one cluster of this process: started when first asked for, gone when it ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(server())


@contextmanager
def server(settings: Mapping[str, str] = MappingProxyType(QUICK)) -> Iterator[Server]:
    """A cluster in a folder of its own, on a free port. Gone at the end.

    Args:
        settings: beside those that `initdb` writes; none: as people install it.
    """
    where = programs()
    assert where is not None, "no initdb: on Debian, apt-get install postgresql"
    # Not pytest's folder: the server's user must be able to pass through all above it.
    folder = Path(tempfile.mkdtemp(prefix="tensorrepo-pg-", dir="/tmp"))
    started, process = _Cluster(where, folder, _unprivileged(), settings), os.getpid()
    try:
        running = started.start()
    except BaseException:
        shutil.rmtree(folder)
        raise
    watcher = started.watch()
    try:
        yield running
    finally:
        # A forked child that ends comes by here, too: by its exit handlers, and by this generator.
        if os.getpid() == process:
            started.stop()
            with watcher:
                watcher.kill()
            shutil.rmtree(folder)


def _unprivileged() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(known[name] for name in USERS if name in known)


@dataclass
class _Cluster:
    programs: Path
    folder: Path
    user: pwd.struct_passwd | None
    settings: Mapping[str, str]

    def start(self) -> Server:
        if self.user is not None:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-U", ADMIN, "-A", "trust", "-E", "UTF8", "--no-sync",
                  "--locale=C")  # fmt: skip
        settings = {
            **self.settings,
            "listen_addresses": "'127.0.0.1'",
            "unix_socket_directories": f"'{self.folder}'",
        }
        text = "\n".join(f"{name} = {value}" for name, value in settings.items())
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.write(text + "\n")
        return Server(self._started_at_a_port(), self.stop, self.start_again)

    def _started_at_a_port(self) -> int:
        """Start it at a port that nobody has: another may take one between the look and the start.

        The last line for a setting in the file counts.
        """
        for left in reversed(range(STARTS)):
            port = _free_port()
            with (self.folder / "data" / "postgresql.conf").open("a") as file:
                file.write(f"port = {port}\n")
            try:
                self.start_again()
            except RuntimeError as error:
                if not left or TAKEN not in str(error):
                    raise
            else:
                return port
        raise AssertionError("the last start is returned or raised")

    def start_again(self) -> None:
        data, log = self.folder / "data", self.folder / "log"
        try:
            self._run("pg_ctl", "-D", str(data), "-l", str(log), "-w", "-t", "60", "start")
        except subprocess.CalledProcessError as error:
            said = log.read_text() if log.exists() else ""
            raise RuntimeError(f"{error}. What the server said last:\n{said[-2000:]}") from None

    def stop(self, how: str = "immediate") -> None:
        """Stop it; at once what was answered lately is lost, by ``fast`` it is there again."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", how, "stop")

    def watch(self) -> subprocess.Popen[bytes]:
        """A process that ends the server when this one is gone, however it went.

        It waits at a pipe that only this process and its forks hold. Who was killed cleans nothing
        up, and the server is nobody's child.
        """
        line = 'read -r _; "$0" -D "$1/data" -m immediate stop; cd /; rm -rf "$1"'
        words = ["sh", "-c", line, str(self.programs / "pg_ctl"), str(self.folder)]
        return subprocess.Popen(
            words, stdin=subprocess.PIPE, start_new_session=True, **self._surroundings()
        )

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.programs / program), *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            **self._surroundings(),
        )

    def _surroundings(self) -> dict[str, Any]:
        as_user = {} if self.user is None else {
            "user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": [],
        }  # fmt: skip
        return {
            "cwd": self.folder,
            "stdout": subprocess.DEVNULL,  # a pipe would be inherited, and never end
            "stderr": subprocess.DEVNULL,
            "env": {"PATH": os.defpath, "LC_ALL": "C", "HOME": str(self.folder)},
            **as_user,
        }


def _free_port() -> int:
    """A port below those that a system gives to who asks for any, so that no client takes it.

    A server that is stopped and started again finds its port free.
    """
    while True:
        with socket.socket() as asked, suppress(OSError):
            asked.bind(("127.0.0.1", port := random.SystemRandom().randrange(*PORTS)))
            return port
