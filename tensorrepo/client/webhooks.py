"""Webhooks of a repository, by a client: for its admins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tensorrepo.client.answers import DeliveryAnswer, WebhookAnswer
from tensorrepo.client.connection import Connection, one_segment
from tensorrepo.repo.deferred_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class WebhooksClient:
    """See `RepositoryClient.webhooks`."""

    connection: Connection
    base: str

    def all(self) -> Iterator[WebhookAnswer]:
        """The oldest first."""
        return self.connection.pages(self.base, WebhookAnswer)

    def get(self, webhook: str) -> WebhookAnswer:
        return self.connection.get(self._path(webhook), WebhookAnswer)

    def add(
        self, url: str, *, events: Iterable[str] = ("*",), secret: str | None = None
    ) -> WebhookAnswer:
        """Tell a URL of what happens.

        Args:
            url: https; an address of a private network takes the service's leave.
            events: types, or beginnings of types such as ``"branch.*"``.
            secret: what deliveries are signed with (HMAC); None: the service makes one.

        Returns:
            The webhook with its secret, which nobody tells again.
        """
        body = {"url": url, "events": [*events], "secret": secret}
        return self.connection.send("POST", self.base, WebhookAnswer, body)

    def change(
        self,
        webhook: str,
        *,
        url: str | None = None,
        events: Iterable[str] | None = None,
        active: bool | None = None,
    ) -> WebhookAnswer:
        """Change what is not None."""
        body = {"url": url, "events": None if events is None else [*events], "active": active}
        return self.connection.send("PATCH", self._path(webhook), WebhookAnswer, body)

    def remove(self, webhook: str) -> None:
        """Its deliveries go, too."""
        self.connection.call("DELETE", self._path(webhook))

    def ping(self, webhook: str) -> DeliveryAnswer:
        """Send a ping, to see in `deliveries` whether it arrives."""
        return self.connection.send("POST", f"{self._path(webhook)}/ping", DeliveryAnswer)

    def deliveries(self, webhook: str) -> Iterator[DeliveryAnswer]:
        """The newest first; what is over is kept for 30 days."""
        return self.connection.pages(f"{self._path(webhook)}/deliveries", DeliveryAnswer)

    def redeliver(self, webhook: str, delivery: str) -> DeliveryAnswer:
        """Deliver once more, as a delivery of its own."""
        path = f"{self._path(webhook)}/deliveries/{one_segment(delivery)}/redeliver"
        return self.connection.send("POST", path, DeliveryAnswer)

    def _path(self, webhook: str) -> str:
        return f"{self.base}/{one_segment(webhook)}"
