"""Client of a service: its repositories, accounts and tokens.

    with Client("https://host", token="trp_...") as client:
        nets = client.repository("team/nets")
        version = nets.registry.version("classifier", "production")

Synchronous. For data, `tensorrepo.open("https://host/team/nets")` opens the repository itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from tensorrepo.client.accounts import AccountsClient, GrantsClient
from tensorrepo.client.answers import MadeTokenAnswer, RepositoryAnswer, TokenAnswer
from tensorrepo.client.connection import Connection, one_segment, segment
from tensorrepo.client.datasets import DatasetsClient
from tensorrepo.client.merge_requests import MergeRequestsClient
from tensorrepo.client.models import ModelsClient
from tensorrepo.client.registry import RegistryClient
from tensorrepo.client.runs import RunsClient
from tensorrepo.client.webhooks import WebhooksClient
from tensorrepo.credentials import server_url, stored_token
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.this_machine import machine


class Client:
    """A service, as one token sees it. Thread-safe."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        """Nothing is asked yet.

        Args:
            url: URL of the service.
            token: None: TENSORREPO_TOKEN, or what `tensorrepo login` keeps for that URL.
        """
        self.url = server_url(url)
        found = stored_token(machine(), self.url) if token is None else token
        self.connection = Connection(self.url, found)

    @property
    def accounts(self) -> AccountsClient:
        """Users, groups and grants."""
        return AccountsClient(self.connection)

    def repositories(self) -> Iterator[RepositoryAnswer]:
        """Repositories that the token may see, by name."""
        return self.connection.pages("/repositories", RepositoryAnswer)

    def repository(self, name: str) -> RepositoryClient:
        """What a repository has. Nothing is asked yet."""
        return RepositoryClient(self.connection, name)

    def create_repository(self, name: str, *, description: str = "") -> RepositoryAnswer:
        """Make a repository. Raises ConflictError for a taken name."""
        body = {"name": name, "description": description}
        return self.connection.send("POST", "/repositories", RepositoryAnswer, body)

    def tokens(self) -> Iterator[TokenAnswer]:
        """The user's own tokens, revoked and expired ones included."""
        return self.connection.pages("/tokens", TokenAnswer)

    def create_token(
        self,
        label: str = "",
        *,
        scope: list[dict[str, Any]] | None = None,
        expires_ns: int | None = None,
    ) -> MadeTokenAnswer:
        """A new token of this user, told this once.

        Args:
            label: what it is for.
            scope: maps of "repository", "action" and "refs"; None: all that the user may do.
            expires_ns: when it ends, UTC; None: never.
        """
        body = {"label": label, "scope": scope, "expires_ns": expires_ns}
        return self.connection.send("POST", "/tokens", MadeTokenAnswer, body)

    def revoke_token(self, token_id: str) -> None:
        """Make a token worthless, by its id."""
        self.connection.call("DELETE", f"/tokens/{one_segment(token_id)}")

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"


@dataclass(frozen=True, slots=True)
class RepositoryClient:
    """One repository of a service."""

    connection: Connection
    name: str

    def info(self) -> RepositoryAnswer:
        """Its identity, and what the token may do with it."""
        return self.connection.get(f"/repositories/{segment(self.name)}", RepositoryAnswer)

    @property
    def models(self) -> ModelsClient:
        return ModelsClient(self.connection, self._base)

    @property
    def registry(self) -> RegistryClient:
        return RegistryClient(self.connection, f"{self._base}/registry")

    @property
    def runs(self) -> RunsClient:
        return RunsClient(self.connection, f"{self._base}/runs")

    @property
    def datasets(self) -> DatasetsClient:
        return DatasetsClient(self.connection, self._base)

    @property
    def merge_requests(self) -> MergeRequestsClient:
        return MergeRequestsClient(self.connection, f"{self._base}/requests")

    @property
    def webhooks(self) -> WebhooksClient:
        return WebhooksClient(self.connection, f"{self._base}/webhooks")

    @property
    def grants(self) -> GrantsClient:
        return GrantsClient(self.connection, f"{self._base}/grants")

    @property
    def _base(self) -> str:
        return f"/repositories/{segment(self.name)}/-"
