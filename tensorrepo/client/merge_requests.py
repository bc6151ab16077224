"""Merge requests of a repository, by a client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from tensorrepo.client.answers import (
    MergeabilityAnswer,
    PathChangeAnswer,
    RequestAnswer,
    RequestSummaryAnswer,
)
from tensorrepo.client.connection import Connection, one_segment
from tensorrepo.repo.deferred_dataclass import dataclass

Verdict = Literal["approve", "reject"]
CheckState = Literal["pending", "passed", "failed"]
RequestState = Literal["open", "merged", "closed"]


@dataclass(frozen=True, slots=True)
class MergeRequestsClient:
    """See `RepositoryClient.merge_requests`. Commits are given by all 64 digits."""

    connection: Connection
    base: str

    def all(self, *, state: RequestState | None = None) -> Iterator[RequestSummaryAnswer]:
        """Those of branches that the token may read, the newest first."""
        return self.connection.pages(self.base, RequestSummaryAnswer, state=state)

    def get(self, number: int) -> RequestAnswer:
        """One, with all that was said."""
        return self.connection.get(self._path(number), RequestAnswer)

    def propose(
        self, source: str, *, title: str, target: str = "main", text: str = ""
    ) -> RequestAnswer:
        """Propose that branch `source` comes into `target`."""
        body = {"source": source, "target": target, "title": title, "text": text}
        return self.connection.send("POST", self.base, RequestAnswer, body)

    def describe(
        self, number: int, *, title: str | None = None, text: str | None = None
    ) -> RequestAnswer:
        """Say it otherwise; None keeps what it says."""
        body = {"title": title, "text": text}
        return self.connection.send("PATCH", self._path(number), RequestAnswer, body)

    def update(self, number: int) -> RequestAnswer:
        """Propose what the source branch is at now: reviews and checks were of what it was."""
        return self._do(number, "update")

    def changes(self, number: int) -> Iterator[PathChangeAnswer]:
        """Paths that it changes, in the order of trees."""
        return self.connection.pages(f"{self._path(number)}/changes", PathChangeAnswer, limit=1000)

    def mergeable(self, number: int) -> MergeabilityAnswer:
        """Whether it can be merged now, and what is in the way. Writes nothing."""
        return self.connection.get(f"{self._path(number)}/mergeable", MergeabilityAnswer)

    def comment(self, number: int, text: str, *, path: str | None = None) -> RequestAnswer:
        """Say something of it, or of one path in it."""
        return self._do(number, "comments", {"text": text, "path": path})

    def review(
        self, number: int, verdict: Verdict, *, commit: str, text: str = ""
    ) -> RequestAnswer:
        """Approve or reject the commit that was looked at (`RequestAnswer.head`)."""
        body = {"verdict": verdict, "commit": commit, "text": text}
        return self._do(number, "reviews", body)

    def report_check(
        self,
        number: int,
        name: str,
        state: CheckState,
        *,
        commit: str,
        text: str = "",
        url: str = "",
    ) -> RequestAnswer:
        """Tell how the check `name` went on a commit."""
        body = {"state": state, "commit": commit, "text": text, "url": url}
        path = f"{self._path(number)}/checks/{one_segment(name)}"
        return self.connection.send("PUT", path, RequestAnswer, body)

    def close(self, number: int) -> RequestAnswer:
        """Give it up."""
        return self._do(number, "close")

    def reopen(self, number: int) -> RequestAnswer:
        """Take back that it was closed."""
        return self._do(number, "reopen")

    def merge(
        self,
        number: int,
        *,
        head: str | None = None,
        message: str | None = None,
        commit: str | None = None,
    ) -> RequestAnswer:
        """Merge it.

        Args:
            number: which.
            head: the commit that was looked at; another one by now is a ConflictError.
            message: what the merge commit says; None: words that name the request.
            commit: a merge that was made and pushed already, signed for instance.

        Raises:
            ConflictError: both sides changed something, a check is missing, or the target's
                commits must be signed.
        """
        return self._do(number, "merge", {"head": head, "message": message, "commit": commit})

    def _do(self, number: int, what: str, body: object = None) -> RequestAnswer:
        path = f"{self._path(number)}/{what}"
        return self.connection.send("POST", path, RequestAnswer, body)

    def _path(self, number: int) -> str:
        return f"{self.base}/{number}"
