"""What is asked of `add`, and what does it answer?"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tensorrepo.repo.errors import ConflictError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tensorrepo.formats.dataset.columns.lenient import Misfit, OnError
    from tensorrepo.repo.trees import Entry
    from tensorrepo.verbs.stage import Stage


class Mode(Enum):
    """What to do with a name that exists."""

    NEW = "new"
    APPEND = "append"
    SYNC = "sync"
    REPLACE = "replace"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be added. `space` is the top folder of the tree: datasets, models or files."""

    source: Path
    space: str
    name: str
    mode: Mode = Mode.NEW
    format: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    on_error: OnError = "raise"
    codec: str = "none"
    key: tuple[str, ...] = ()  # of Mode.UPSERT
    base: str | None = None  # of a model: REF:models/NAME to store the difference from
    adapter_of: str | None = None  # of a model: it is an adapter to REF:NAME
    adapter_scale: float | None = None  # of its products, where no config of it says so

    @property
    def path(self) -> str:
        return f"{self.space}/{self.name}"


@dataclass(frozen=True, slots=True)
class Added:
    """One entry that was staged; `changed` False: the name held exactly that already."""

    path: str
    rows: int
    bytes: int
    changed: bool
    notes: tuple[str, ...] = ()
    misfits: tuple[Misfit, ...] = ()


def existing_entry(stage: Stage, request: Request) -> Entry | None:
    """The entry that the request is about, when there is one.

    Raises:
        ConflictError: there is one, and the request does not say what to do with it.
    """
    existing = stage.entry(request.path)
    if existing is not None and request.mode is Mode.NEW:
        raise ConflictError(f"{request.path} exists. {_ways_on(request)}")
    if request.mode in {Mode.APPEND, Mode.UPSERT} and request.space != "datasets":
        raise InvalidInputError(
            f"--{request.mode.value} adds rows to datasets; use --sync or --replace here"
        )
    return existing


def _ways_on(request: Request) -> str:
    """What can be said of an entry that exists; rows are added to datasets alone."""
    if request.space != "datasets":
        return "Choose another name, or give --replace."
    return (
        "Say what you mean: --append adds rows to it, --upsert KEY updates those whose key it has, "
        "--sync makes it what the path is now, --replace starts it anew."
    )
