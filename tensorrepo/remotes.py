"""Remotes: names of other repositories, in settings of this machine.

A workspace has its own, in its settings; a repository without one has them in the user's, under
its id. Never in the repository itself: cloning must not lead anybody anywhere. Settings hold URLs
and no secrets, which come from the environment.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tensorrepo.connect import (
    REMOTE_PREFIX,
    Machine,
    is_url,
    read_config,
    repository_at,
    write_config,
)
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.suggest import did_you_mean, there_are
from tensorrepo.workspace.state import config_beside

ORIGIN: Final = "origin"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True, slots=True)
class Remotes:
    """The remotes of one workspace, or of one repository.

    Attributes:
        machine: where they are.
        file: settings that hold them.
        prefix: what their settings begin with.
    """

    machine: Machine
    file: Path
    prefix: str

    @classmethod
    def of(cls, machine: Machine, url: str, identity: str, workspace: Path | None) -> Remotes:
        """Those of a repository.

        Args:
            machine: where this process runs.
            url: where the repository is.
            identity: its id.
            workspace: settings of the workspace that is worked in, if there is one.
        """
        file = workspace or config_beside(url)
        if file is not None:
            return cls(machine, file, REMOTE_PREFIX)
        return cls(machine, machine.config_file, f"{REMOTE_PREFIX}{identity}.")

    def urls(self) -> dict[str, str]:
        """URLs by name."""
        found = {}
        for key, value in sorted(read_config(self.file).items()):
            name = key.removeprefix(self.prefix).removesuffix(".url")
            if key == self._key(name) and "." not in name:
                found[name] = value
        return found

    def add(self, name: str, url: str) -> str:
        """Name another repository; gives its URL as it is kept.

        Raises:
            ConflictError: the name is taken.
            InvalidInputError: no name, no URL, or a URL with a secret in it.
        """
        if _NAME.fullmatch(name) is None:
            raise InvalidInputError(
                f"{name!r:.100} cannot name a remote: letters, digits, '_' and '-', such as origin"
            )
        if name in self.urls():
            raise ConflictError(f"there is a remote {name!r} already, at {self.urls()[name]}")
        kept = whole_url(self.machine, url)
        write_config(self.file, read_config(self.file) | {self._key(name): kept})
        return kept

    def remove(self, name: str) -> None:
        """Forget a remote. Raises NotFoundError with near names."""
        self.url(name)
        gone, settings = self._key(name), read_config(self.file)
        write_config(self.file, {key: value for key, value in settings.items() if key != gone})

    def rename(self, old: str, new: str) -> None:
        """Give a remote another name."""
        self.add(new, self.url(old))
        self.remove(old)

    def url(self, name: str) -> str:
        """The URL of a remote. Raises NotFoundError with near names."""
        known = self.urls()
        if name not in known:
            none = "There is none yet: `tensorrepo remote add origin URL`."
            names = there_are(known, none)
            raise NotFoundError(f"no remote {name!r:.100}.{did_you_mean(name, list(known), names)}")
        return known[name]

    def default(self) -> str:
        """The remote that is meant where none is named: origin, or the only one."""
        known = self.urls()
        return next(iter(known)) if len(known) == 1 else ORIGIN

    def find(self, text: str | None) -> tuple[str | None, str]:
        """Name and URL of what was typed: a remote's name, or a URL or path of none."""
        known = self.urls()
        name = self.default() if text is None else text
        if name in known:
            return name, known[name]
        is_place = text is not None and (is_url(text) or "/" in text or text in (".", ".."))
        if text is None or not (is_place or self.machine.path(text).exists()):
            return name, self.url(name)
        place = whole_url(self.machine, text)
        return next((name for name, url in known.items() if url == place), None), place

    def _key(self, name: str) -> str:
        return f"{self.prefix}{name}.url"


def whole_url(machine: Machine, text: str) -> str:
    """A URL as it is kept: of a folder its whole path, of a workspace its repository's.

    Raises:
        InvalidInputError: it has a password or a query in it, or is none.
    """
    if not is_url(text):
        return repository_at(machine, text)
    parts = urlsplit(text)
    if parts.password or parts.query or parts.fragment:
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise InvalidInputError(
            f"{shown}: secrets do not belong into a URL, which is kept and shown. Put them into "
            "the environment."
        )
    open_backend(text, environment=machine.environment)  # refuses what is none
    return text
