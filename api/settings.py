"""Settings of the service: by flags, environment (``TENSORREPO_SERVER_...``) and a TOML file.

What comes first wins. Nothing else in `api/` reads the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from tensorrepo.repo.errors import InvalidInputError

PREFIX: Final = "TENSORREPO_SERVER_"


class Settings(BaseSettings):
    """What a service runs with. Every member has a default that works on a laptop."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid")

    repositories: dict[str, str] = Field(
        default={}, description="Repositories to serve from the start: name to URL."
    )
    data: Path = Field(
        default_factory=lambda: default_data_folder(os.environ),
        description="Folder for the service's own files: database, unfinished uploads, caches.",
    )
    database: SecretStr | None = Field(
        default=None, description="URL of the service's database; else SQLite in `data`."
    )
    storage: str | None = Field(
        default=None,
        description="URL below which repositories are made that callers ask for; else in `data`.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8420, ge=0, le=65535, description="Port; 0 takes a free one.")
    workers: int = Field(default=1, ge=1, le=256, description="Number of processes.")
    public_url: str | None = Field(
        default=None, description="URL that clients reach the service at, behind a proxy."
    )
    trusted_proxies: list[str] = Field(
        default=["127.0.0.1", "::1"],
        description="Addresses of proxies whose forwarded headers count.",
    )
    cors_origins: list[str] = Field(default=[], description="Web origins that may call the API.")
    outbound_allow: list[str] = Field(
        default=[],
        description="Networks, and hosts with or without a port, that the service may ask although "
        "they are private: for webhooks and sign-in.",
    )
    oidc_issuer: str | None = Field(
        default=None, description="URL of an OpenID Connect provider for sign-in."
    )
    oidc_client_id: str = Field(default="", description="What the provider calls this service.")
    oidc_client_secret: SecretStr | None = Field(
        default=None, description="What it proves itself with to the provider."
    )
    oidc_name: str = Field(default="OpenID Connect", description="What the login page calls it.")
    oidc_create_users: bool = Field(
        default=False, description="Make an account for whoever the provider lets in."
    )
    audit_anchor_seconds: int = Field(
        default=3600,
        ge=1,
        description="How often the head of the audit log is written into repositories' logs.",
    )
    presigned_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Values of so many bytes and more go straight between clients and an S3 store, "
        "by URLs good for 15 minutes; none: all goes through the service.",
    )
    upload_part_bytes: int = Field(
        default=64 << 20,
        ge=1 << 20,
        description="Parts that Hugging Face's clients cut large files into; files of less than "
        "eight of them come whole. A proxy must let bodies of that size pass.",
    )
    path_prefix: str = Field(
        default="",
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
        description="Path below which a proxy offers the service, such as /data.",
    )
    behind_proxy: bool = Field(
        default=False, description="Whether a proxy with TLS stands in front of it."
    )
    insecure: bool = Field(
        default=False, description="Whether tokens may pass a network without TLS."
    )
    tls_certificate: Path | None = Field(default=None, description="File of a certificate.")
    tls_key: Path | None = Field(default=None, description="File of the certificate's key.")
    oldest_client: int = Field(
        default=1,
        ge=1,
        description="Oldest revision of the protocol whose clients are served; others are told to "
        "install a newer one.",
    )
    requests_per_second: float | None = Field(
        default=None, gt=0, description="Most requests of one token, on average."
    )
    bytes_per_second: float | None = Field(
        default=None, gt=0, description="Most bytes to and from one token, on average."
    )
    repository_bytes: int | None = Field(
        default=None, ge=1, description="Most bytes that a repository may take in its store."
    )
    max_connections: int = Field(
        default=8192, ge=1, description="Connections of each process; more are answered 503."
    )
    idle_seconds: float = Field(
        default=60.0, gt=0, description="Longest wait for the next piece of a request's body."
    )
    shutdown_seconds: int = Field(
        default=60, ge=1, description="Longest wait, at the end, for what is under way."
    )
    log_form: Literal["text", "json"] = Field(
        default="text", description="Form of the logs; json has a line for each request."
    )
    metrics_folder: Path | None = Field(
        default=None, description="Where several processes share their metrics; made by `serve`."
    )
    threads: int = Field(default=16, ge=1, le=1024, description="Threads of each process.")
    max_body_bytes: int = Field(
        default=16 << 20, ge=1, description="Largest JSON body of a request."
    )
    queries: int = Field(default=4, ge=1, le=256, description="SQL queries at once, of a process.")
    queries_each: int = Field(default=2, ge=1, le=256, description="SQL queries of one caller.")
    query_seconds: float = Field(default=30, gt=0, le=3600, description="Time of one SQL query.")
    query_memory_bytes: int = Field(
        default=512 << 20, ge=64 << 20, description="Memory of one SQL query, on either side."
    )
    query_rows: int = Field(default=1_000_000, ge=1, description="Rows of one result of SQL.")
    query_bytes: int = Field(default=256 << 20, ge=1, description="Bytes of one result of SQL.")

    @field_validator("public_url")
    @classmethod
    def _without_slash(cls, url: str | None) -> str | None:
        return None if url is None else url.rstrip("/")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  what is not asked
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the file that ``TENSORREPO_SERVER_FILE`` names."""
        file = os.environ.get(f"{PREFIX}FILE")
        toml = () if file is None else (TomlConfigSettingsSource(settings_cls, Path(file)),)
        return (init_settings, env_settings, *toml)

    @property
    def database_url(self) -> str:
        if self.database is not None:
            return self.database.get_secret_value()
        return f"sqlite:///{self.data / 'server.db'}"

    @property
    def storage_url(self) -> str:
        return self.storage or str(self.data / "repositories")


def default_data_folder(environment: Mapping[str, str]) -> Path:
    """Where a service keeps its own files if nobody says: in this user's state folder."""
    base = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(base) / "tensorrepo" / "server"


def share_metrics(folder: Path) -> None:
    """Let processes that this one starts share their metrics: their library asks for it so."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)


def machine_environment() -> Mapping[str, str]:
    """The environment, for stores that look up credentials and endpoints there."""
    return os.environ


def make_settings(**given: Any) -> Settings:
    """Settings by what was given, then environment and file. Raises InvalidInputError."""
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]  # what was set may be a secret
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidInputError(
            f"setting {where}: {first['msg']}. Correct the flag, {PREFIX}{where.upper()}, or the "
            f"file that {PREFIX}FILE names."
        ) from error
