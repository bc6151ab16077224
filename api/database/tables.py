"""Tables of the service's database.

The revisions in `migrations/service` make them; a test holds both equal.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA: Final = MetaData()

users = Table(
    "users",
    METADATA,
    Column("name", String(100), primary_key=True),
    Column("email", String(320), nullable=False, default=""),
    Column("is_operator", Boolean, nullable=False, default=False),
    Column("is_disabled", Boolean, nullable=False, default=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("password", String(500), nullable=True),  # argon2id; NULL: no sign-in by password
)

# Who signs in by a provider: known by what it never gives to another, not by name or address.
identities = Table(
    "identities",
    METADATA,
    Column("issuer", String(500), primary_key=True),
    Column("subject", String(255), primary_key=True),
    Column("user", ForeignKey("users.name", ondelete="CASCADE"), nullable=False, index=True),
)

# What users may do; those of their groups add to it.
grants = Table(
    "grants",
    METADATA,
    Column("user", ForeignKey("users.name", ondelete="CASCADE"), primary_key=True),
    Column("repository", String(200), primary_key=True),
    Column("refs", String(1024), primary_key=True),
    Column("action", String(16), nullable=False),
)

groups = Table(
    "groups",
    METADATA,
    Column("name", String(100), primary_key=True),
    Column("description", String(2000), nullable=False, default=""),
    Column("created_ns", BigInteger, nullable=False),
)

group_members = Table(
    "group_members",
    METADATA,
    Column("group", ForeignKey("groups.name", ondelete="CASCADE"), primary_key=True),
    Column("user", ForeignKey("users.name", ondelete="CASCADE"), primary_key=True, index=True),
)

group_grants = Table(
    "group_grants",
    METADATA,
    Column("group", ForeignKey("groups.name", ondelete="CASCADE"), primary_key=True),
    Column("repository", String(200), primary_key=True),
    Column("refs", String(1024), primary_key=True),
    Column("action", String(16), nullable=False),
)

tokens = Table(
    "tokens",
    METADATA,
    Column("hash", String(64), primary_key=True),
    Column("user", ForeignKey("users.name", ondelete="CASCADE"), nullable=False, index=True),
    Column("label", String(200), nullable=False),
    Column("scope", JSON, nullable=True),  # [[repository, action, refs]]; NULL: all of the user's
    Column("created_ns", BigInteger, nullable=False),
    Column("expires_ns", BigInteger, nullable=True),
    Column("used_ns", BigInteger, nullable=True),
    Column("revoked_ns", BigInteger, nullable=True),
    # Hash of the token that made it: who revokes that one revokes all that it made.
    Column("made_by", String(64), nullable=True, index=True),
)

# Browsers that are signed in.
sessions = Table(
    "sessions",
    METADATA,
    Column("hash", String(64), primary_key=True),
    Column("user", ForeignKey("users.name", ondelete="CASCADE"), nullable=False, index=True),
    Column("created_ns", BigInteger, nullable=False),
    Column("expires_ns", BigInteger, nullable=False),
    Column("used_ns", BigInteger, nullable=False),
    Column("address", String(100), nullable=False),
)

# Things good once: codes of the first sign-in, and sign-ins that wait for their provider.
tickets = Table(
    "tickets",
    METADATA,
    Column("hash", String(64), primary_key=True),
    Column("purpose", String(32), nullable=False),
    Column("data", JSON, nullable=False),
    Column("expires_ns", BigInteger, nullable=False, index=True),
)

# Sign-ins that failed, by whom they were for and where they came from.
sign_in_failures = Table(
    "sign_in_failures",
    METADATA,
    Column("source", String(64), primary_key=True),  # hash of kind, name and address
    Column("failures", Integer, nullable=False),
    Column("last_ns", BigInteger, nullable=False),
    Column("until_ns", BigInteger, nullable=False),
)

repositories = Table(
    "repositories",
    METADATA,
    Column("name", String(200), primary_key=True),
    Column("url", String(2000), nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("deleted_ns", BigInteger, nullable=True),
    Column("description", String(2000), nullable=False, default=""),
)

# What repositories were called before.
former_names = Table(
    "former_names",
    METADATA,
    Column("old", String(200), primary_key=True),
    Column(
        "name",
        ForeignKey("repositories.name", onupdate="CASCADE", ondelete="CASCADE"),
        nullable=False,
    ),
)

# Keys of the service itself, such as what its cookies are signed with.
secrets = Table(
    "secrets",
    METADATA,
    Column("name", String(100), primary_key=True),
    Column("value", String(200), nullable=False),
)

# Runs whose metrics come through the service, until their end is written to the repository.
live_runs = Table(
    "live_runs",
    METADATA,
    Column("repository", String(200), primary_key=True),
    Column("run", String(128), primary_key=True),
    Column("author", String(500), nullable=False),
    Column("touched_ns", BigInteger, nullable=False),  # when it was heard of last
    Column("written_ns", BigInteger, nullable=False),  # when it was written to the repository last
    Column("done_id", BigInteger, nullable=False),  # points up to here are in the repository
    Column("waiting", BigInteger, nullable=False),  # points behind
    Column("claimed_ns", BigInteger, nullable=False, default=0),  # somebody writes it until then
    Column("ended_ns", BigInteger, nullable=True),
)

# What trainings logged, in the order of each run. Ids are never given again: what is in the
# repository is told by the last one.
live_points = Table(
    "live_points",
    METADATA,
    Column(
        "id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    ),
    Column("repository", String(200), nullable=False),
    Column("run", String(128), nullable=False),
    Column("batch", String(64), nullable=False),  # what a client calls it, so that it counts once
    Column("points", Integer, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    UniqueConstraint("repository", "run", "batch"),
    Index("live_points_of_run", "repository", "run", "id"),
    sqlite_autoincrement=True,
)

# The audit log: a block for each second in which a process had events, chained by their hashes.
audit_blocks = Table(
    "audit_blocks",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("time_ns", BigInteger, nullable=False, index=True),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    Column("events", Text, nullable=False),  # one a line, as canonical JSON
)

# Which block's hash a repository's log was told last.
audit_anchors = Table(
    "audit_anchors",
    METADATA,
    Column("repository", String(200), primary_key=True),
    Column("block", BigInteger, nullable=False),
    Column("time_ns", BigInteger, nullable=False),
)

# Who is told of a repository's events; `generation` is the log record up to which all was queued.
webhooks = Table(
    "webhooks",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column(
        "repository",
        ForeignKey("repositories.name", onupdate="CASCADE", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("url", String(2048), nullable=False),
    Column("secret", String(200), nullable=False),  # signing needs it as it is
    Column("events", JSON, nullable=False),  # types, or beginnings of types with "*"
    Column("is_active", Boolean, nullable=False, default=True),
    Column("created_by", String(100), nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("webhook", ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("event", String(64), nullable=False),  # id of the event
    Column("type", String(100), nullable=False),
    Column("body", JSON, nullable=False),
    Column("state", String(16), nullable=False, index=True),  # pending, delivered or failed
    Column("attempts", Integer, nullable=False, default=0),
    Column("created_ns", BigInteger, nullable=False),
    Column("due_ns", BigInteger, nullable=False),  # not before then, and who takes it moves it on
    Column("tried_ns", BigInteger, nullable=True),
    Column("status", Integer, nullable=True),  # what the receiver answered
    Column("error", String(1000), nullable=False, default=""),
)

# Digests that clients of OCI registries were told, and a commit that has what each is of.
oci_digests = Table(
    "oci_digests",
    METADATA,
    Column("repository", String(200), primary_key=True),
    Column("key", String(64), primary_key=True),  # hash of the model's name and the digest
    Column("commit", String(64), nullable=False),
)

# Answers to writes that carried an Idempotency-Key, for a day.
idempotent_answers = Table(
    "idempotent_answers",
    METADATA,
    Column("user", String(100), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("request", String(64), nullable=False),  # hash of method, path and body
    Column("state", String(16), nullable=False),  # running, done or unknown
    Column("status", Integer, nullable=True),
    Column("media", String(200), nullable=False, default=""),
    Column("body", LargeBinary, nullable=True),  # NULL: it was too large, or had a secret
    Column("created_ns", BigInteger, nullable=False, index=True),
)
