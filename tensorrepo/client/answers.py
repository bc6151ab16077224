"""Answers of a service, as frozen structs. Members that a client does not know are passed over."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class RepositoryAnswer(Struct, frozen=True):
    """A repository; `may` is the most that the token allows: read, write or admin."""

    name: str
    description: str = ""
    id: str | None = None
    may: str | None = None


class TokenAnswer(Struct, frozen=True):
    """A token, without itself. Times are UTC in ns."""

    id: str
    user: str
    label: str
    created_ns: int
    expires_ns: int | None = None
    used_ns: int | None = None
    revoked_ns: int | None = None


class MadeTokenAnswer(Struct, frozen=True):
    """A token that was made just now: nobody tells it again."""

    id: str
    token: str

    def __repr__(self) -> str:
        return f"MadeTokenAnswer({self.id!r})"


class ModelAnswer(Struct, frozen=True):
    """A model of a commit; `bytes` of its tensors in memory."""

    name: str
    path: str
    digest: str
    tensors: int
    bytes: int


class ModelDetailsAnswer(Struct, frozen=True):
    """All that is known of a model without reading a tensor."""

    name: str
    path: str
    digest: str
    tensors: int
    bytes: int
    ref: str
    commit: str
    description: dict[str, Any]


class TensorAnswer(Struct, frozen=True):
    """A tensor of a model, and how it is stored."""

    name: str
    dtype: str
    shape: list[int]
    bytes: int
    fingerprint: str | None
    alias_of: str | None
    codecs: list[str]
    stored_bytes: int
    has_base: bool


class FileAnswer(Struct, frozen=True):
    """A file of a model."""

    name: str
    bytes: int
    sha256: str
    format: str | None = None


class RegisteredModelAnswer(Struct, frozen=True):
    """A name that versions of a model are registered under."""

    name: str
    versions: int
    latest: int | None
    aliases: dict[str, int]
    protected: list[str]
    description: str = ""
    labels: dict[str, str] = {}


class VersionAnswer(Struct, frozen=True):
    """A version of a registered model."""

    name: str
    number: int
    commit: str
    source: str
    source_path: str
    author: str
    time_ns: int
    message: str
    digest: str
    tensors: int
    bytes: int
    metrics: dict[str, Any]
    aliases: list[str]
    stage: str | None = None
    description: str = ""
    labels: dict[str, str] = {}


class AliasMoveAnswer(Struct, frozen=True):
    """One move of an alias; `version` None: it was removed, or that version was."""

    time_ns: int
    actor: str
    version: int | None
    generation: int


class RunAnswer(Struct, frozen=True):
    """A run; `metrics` has the last value of each, NaN and infinities as texts."""

    name: str
    id: str
    state: str
    author: str
    started_ns: int
    written_ns: int
    ended_ns: int | None
    metrics: dict[str, float | str]


class RunDetailsAnswer(Struct, frozen=True):
    """A run, but for the points of its metrics."""

    name: str
    id: str
    state: str
    author: str
    started_ns: int
    written_ns: int
    ended_ns: int | None
    metrics: dict[str, float | str]
    commit: str
    error: str | None
    params: dict[str, Any]
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, str]]
    attempts: list[dict[str, Any]]
    summaries: list[dict[str, Any]]


class SeriesAnswer(Struct, frozen=True):
    """Points of a metric, thinned; `points` is how many there are."""

    metric: str
    points: int
    steps: list[int]
    values: list[float | str]
    times_ms: list[int]


class RowPageAnswer(Struct, frozen=True):
    """Some rows of a dataset; `next` is the row from which to go on."""

    commit: str
    path: str
    rows: int
    columns: list[str]
    items: list[Any]
    next: int | None = None


class UserAnswer(Struct, frozen=True):
    """An account. `created_ns` is UTC."""

    name: str
    email: str
    is_operator: bool
    is_disabled: bool
    has_password: bool
    created_ns: int


class GroupAnswer(Struct, frozen=True):
    """Some users who may do the same."""

    name: str
    description: str = ""
    members: list[str] = []


class GrantAnswer(Struct, frozen=True):
    """What a user or a group may do: read, write or admin, of a repository or a pattern of them."""

    kind: str
    holder: str
    repository: str
    action: str
    refs: str = "*"


class MeAnswer(Struct, frozen=True):
    """Who the token is, and what it may do; `scope` None: all that its user may."""

    name: str
    email: str
    kind: str
    is_operator: bool
    groups: list[str]
    grants: list[dict[str, str]]
    scope: list[dict[str, str]] | None = None
    expires_ns: int | None = None


class WebhookAnswer(Struct, frozen=True):
    """Whom a repository tells of what; its secret is told when it is made, and never again."""

    id: str
    url: str
    events: list[str]
    active: bool
    created_by: str
    created_ns: int
    secret: str | None = None

    def __repr__(self) -> str:
        return f"WebhookAnswer({self.id!r}, {self.url!r})"


class DeliveryAnswer(Struct, frozen=True):
    """An event for one receiver, and what became of it: pending, delivered or failed."""

    id: str
    event: str
    type: str
    state: str
    attempts: int
    created_ns: int
    due_ns: int | None
    tried_ns: int | None
    status: int | None
    error: str
    body: dict[str, Any]


class RequestSummaryAnswer(Struct, frozen=True):
    """A merge request in a list; `head` is the commit that is proposed, `onto` the target's."""

    number: int
    title: str
    state: str
    source: str
    target: str
    author: str
    opened_ns: int
    head: str | None
    onto: str | None


class RequestAnswer(Struct, frozen=True):
    """A merge request with all that was said. Reviews and checks tell whether they are current."""

    number: int
    title: str
    state: str
    source: str
    target: str
    author: str
    opened_ns: int
    head: str | None
    onto: str | None
    text: str
    comments: list[dict[str, Any]]
    reviews: list[dict[str, Any]]
    checks: list[dict[str, Any]]
    ended_by: str | None
    ended_ns: int | None
    merged_as: str | None


class EntryAnswer(Struct, frozen=True):
    """An entry of a commit."""

    kind: str
    digest: str


class PathChangeAnswer(Struct, frozen=True):
    """What became of one path; None on a side: it is absent there."""

    path: str
    old: EntryAnswer | None
    new: EntryAnswer | None


class MergeabilityAnswer(Struct, frozen=True):
    """Whether a request can be merged as things stand, and what is in the way."""

    ready: bool
    merged: bool
    conflicts: list[dict[str, str]]
    missing_checks: list[str]
    must_be_signed: bool
