"""Registered models of a repository, by a client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tensorrepo.client.answers import AliasMoveAnswer, RegisteredModelAnswer, VersionAnswer
from tensorrepo.client.connection import Connection, one_segment, segment
from tensorrepo.repo.deferred_dataclass import dataclass

Labels = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class RegistryClient:
    """See `RepositoryClient.registry`. A version is given by its number, or by an alias."""

    connection: Connection
    base: str

    def search(
        self,
        text: str = "",
        *,
        labels: Mapping[str, str] | None = None,
        alias: str | None = None,
        metrics: Iterable[str] = (),
    ) -> Iterator[RegisteredModelAnswer]:
        """Registered models by name.

        Args:
            text: part of the name or of the description.
            labels: that the model or its newest version has.
            alias: that the model has.
            metrics: filters on metrics of the newest version, such as ``"accuracy>=0.9"``.
        """
        query = {
            "text": text,
            "label": [f"{name}={value}" for name, value in (labels or {}).items()],
            "alias": alias,
            "metric": [*metrics],
            "limit": 1000,
        }
        return self.connection.pages(self.base, RegisteredModelAnswer, **query)

    def get(self, name: str) -> RegisteredModelAnswer:
        return self.connection.get(self._path(name), RegisteredModelAnswer)

    def create(
        self, name: str, *, description: str = "", labels: Labels | None = None
    ) -> RegisteredModelAnswer:
        """Name a model before its first version. Raises ConflictError for a taken name."""
        body = {"name": name, "description": description, "labels": dict(labels or {})}
        return self.connection.send("POST", self.base, RegisteredModelAnswer, body)

    def describe(
        self, name: str, *, description: str | None = None, labels: Labels | None = None
    ) -> RegisteredModelAnswer:
        """Say what a model is; None keeps the description, and removes a label."""
        body = {"description": description, "labels": dict(labels or {})}
        return self.connection.send("PATCH", self._path(name), RegisteredModelAnswer, body)

    def delete(self, name: str) -> None:
        """Remove all versions and aliases of a model."""
        self.connection.call("DELETE", self._path(name))

    def card(self, name: str, *, version: int | str | None = None) -> str:
        """What is written about a model or a version: markdown."""
        return self.connection.text(f"{self._path(name)}/-/card", version=version)

    def register(
        self,
        name: str,
        path: str,
        *,
        ref: str = "main",
        message: str = "",
        alias: str | None = None,
    ) -> VersionAnswer:
        """Make the model at `path` of a commit the next version of `name`."""
        body = {"path": path, "ref": ref, "message": message, "alias": alias}
        return self.connection.send("POST", f"{self._path(name)}/-/versions", VersionAnswer, body)

    def versions(self, name: str) -> Iterator[VersionAnswer]:
        """All versions, the newest first."""
        return self.connection.pages(f"{self._path(name)}/-/versions", VersionAnswer, limit=1000)

    def version(self, name: str, which: int | str) -> VersionAnswer:
        """One version, by its number or an alias."""
        return self.connection.get(self._version(name, which), VersionAnswer)

    def describe_version(
        self,
        name: str,
        number: int,
        *,
        description: str | None = None,
        labels: Labels | None = None,
    ) -> VersionAnswer:
        """Say what a version is; None keeps the description, and removes a label."""
        body = {"description": description, "labels": dict(labels or {})}
        return self.connection.send("PATCH", self._version(name, number), VersionAnswer, body)

    def delete_version(self, name: str, number: int) -> None:
        """Remove a version. Raises ConflictError: an alias names it."""
        self.connection.call("DELETE", self._version(name, number))

    def set_stage(
        self, name: str, number: int, stage: str, *, archive_existing: bool = False
    ) -> VersionAnswer:
        """Give a version a stage: None, Staging, Production or Archived, as texts."""
        body = {"stage": stage, "archive_existing": archive_existing}
        path = f"{self._version(name, number)}/stage"
        return self.connection.send("PUT", path, VersionAnswer, body)

    def set_alias(self, name: str, alias: str, version: int) -> VersionAnswer:
        """Let an alias name a version. Raises ConflictError when it is protected."""
        path = self._alias(name, alias)
        return self.connection.send("PUT", path, VersionAnswer, {"version": version})

    def delete_alias(self, name: str, alias: str) -> None:
        self.connection.call("DELETE", self._alias(name, alias))

    def protect_alias(self, name: str, alias: str, *, on: bool = True) -> RegisteredModelAnswer:
        """Refuse, or allow again, to move and remove an alias."""
        path = f"{self._alias(name, alias)}/protection"
        return self.connection.send("PUT", path, RegisteredModelAnswer, {"protected": on})

    def alias_history(self, name: str, alias: str) -> Iterator[AliasMoveAnswer]:
        """Where an alias was, and who moved it: the newest first."""
        return self.connection.pages(f"{self._alias(name, alias)}/history", AliasMoveAnswer)

    def compare(self, name: str, versions: Iterable[int | str]) -> dict[str, Any]:
        """Versions side by side: metrics, parameters of their runs, sizes, tensors."""
        path = f"{self._path(name)}/-/compare"
        found: dict[str, Any] = self.connection.get(path, dict, version=[*versions])
        return found

    def _path(self, name: str) -> str:
        return f"{self.base}/{segment(name)}"

    def _version(self, name: str, which: int | str) -> str:
        return f"{self._path(name)}/-/versions/{one_segment(str(which))}"

    def _alias(self, name: str, alias: str) -> str:
        return f"{self._path(name)}/-/aliases/{one_segment(alias)}"
