"""Which cloud store does a URL mean, and with which settings?

Settings come from the options that somebody passed, then from the environment. Options have the
names of obstore's configuration, or those that fsspec's file systems use for the same thing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "adl": "az",
    "abfs": "az",
    "abfss": "az",
    "http": "http",
    "https": "http",
}
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "proxy_excludes",
        "proxy_url",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_SHORTEST_SECRET = 6  # shorter values are words, and words must stay readable in messages

# Environment variable: setting. The first one that is set wins.
_ENVIRONMENT: dict[str, dict[str, str]] = {
    "s3": {
        "AWS_ACCESS_KEY_ID": "access_key_id",
        "AWS_SECRET_ACCESS_KEY": "secret_access_key",
        "AWS_SESSION_TOKEN": "session_token",
        "AWS_ENDPOINT_URL_S3": "endpoint",
        "AWS_ENDPOINT_URL": "endpoint",
        "AWS_ENDPOINT": "endpoint",
        "AWS_REGION": "region",
        "AWS_DEFAULT_REGION": "region",
        "AWS_ALLOW_HTTP": "allow_http",
        "AWS_SKIP_SIGNATURE": "skip_signature",
        "AWS_REQUEST_PAYER": "request_payer",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "virtual_hosted_style_request",
    },
    "gs": {
        "GOOGLE_APPLICATION_CREDENTIALS": "application_credentials",
        "GOOGLE_SERVICE_ACCOUNT": "service_account",
        "GOOGLE_SERVICE_ACCOUNT_PATH": "service_account",
        "GOOGLE_SERVICE_ACCOUNT_KEY": "service_account_key",
        "GOOGLE_BEARER_TOKEN": "bearer_token",
        "GOOGLE_BASE_URL": "base_url",
        "STORAGE_EMULATOR_HOST": "emulator",
        "GOOGLE_ALLOW_HTTP": "allow_http",
        "GOOGLE_SKIP_SIGNATURE": "skip_signature",
    },
    "az": {
        "AZURE_STORAGE_ACCOUNT_NAME": "account_name",
        "AZURE_STORAGE_ACCOUNT": "account_name",
        "AZURE_STORAGE_ACCOUNT_KEY": "account_key",
        "AZURE_STORAGE_ACCESS_KEY": "account_key",
        "AZURE_STORAGE_KEY": "account_key",
        "AZURE_STORAGE_SAS_TOKEN": "sas_key",
        "AZURE_STORAGE_SAS_KEY": "sas_key",
        "AZURE_STORAGE_TOKEN": "token",
        "AZURE_STORAGE_ENDPOINT": "endpoint",
        "AZURE_ENDPOINT": "endpoint",
        "AZURE_CLIENT_ID": "client_id",
        "AZURE_CLIENT_SECRET": "client_secret",
        "AZURE_TENANT_ID": "tenant_id",
        "AZURE_ALLOW_HTTP": "allow_http",
        "AZURE_SKIP_SIGNATURE": "skip_signature",
    },
    "http": {},
}
# The names that s3fs, gcsfs and adlfs use.
_ALIASES: dict[str, dict[str, str]] = {
    "s3": {
        "key": "access_key_id",
        "secret": "secret_access_key",
        "token": "session_token",
        "endpoint_url": "endpoint",
        "region_name": "region",
        "anon": "skip_signature",
        "requester_pays": "request_payer",
    },
    "gs": {"token": "service_account", "endpoint_url": "base_url", "anon": "skip_signature"},
    "az": {"sas_token": "sas_key", "anon": "skip_signature", "credential": "token"},
    "http": {},
}
_PUBLIC = frozenset(
    {"account_name", "allow_http", "base_url", "endpoint", "region", "request_payer"}
    | {"skip_signature", "virtual_hosted_style_request"}
)


@dataclass(frozen=True, slots=True)
class Place:
    """One cloud store.

    `kind` is ``s3``, ``gs``, ``az`` or ``http``; `url` holds no secret; `config` and `client` are
    obstore's settings of the store and of its HTTP client. They may hold secrets: the repr does
    not show them, a pickle has them.
    """

    kind: str
    url: str
    config: Mapping[str, str] = field(repr=False)
    client: Mapping[str, str] = field(repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may show, the longest first."""
        found = [value for name, value in self.config.items() if name not in _PUBLIC]
        found += [self.client[name] for name in ("proxy_url",) if name in self.client]
        return tuple(sorted((v for v in found if len(v) >= _SHORTEST_SECRET), key=len)[::-1])


def find_place(url: str, options: Mapping[str, str], environment: Mapping[str, str]) -> Place:
    """The store that `url` means.

    Raises:
        InvalidInputError: no bucket, or credentials in the URL, or an endpoint without TLS that
            nobody allowed.
    """
    parts = urlsplit(url)
    kind = SCHEMES[parts.scheme.lower()]
    _check_url(kind, url)
    settings = dict(_from_environment(kind, environment))
    settings |= dict(_from_options(kind, options))
    client = {name: settings.pop(name) for name in _CLIENT_OPTIONS & settings.keys()}
    if kind == "gs" and "emulator" in settings:
        _use_emulator(settings, client)
    endpoint = url if kind == "http" else settings.get("endpoint") or settings.get("base_url", "")
    _allow_http(kind, endpoint, client)
    return Place(kind, url.rstrip("/"), settings, client)


def _check_url(kind: str, url: str) -> None:
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    # abfss://container@account... is a name, everything else before an @ is a credential.
    names = parts.scheme.lower() in {"abfs", "abfss"} and ":" not in parts.netloc
    if "@" in parts.netloc and not names:
        raise InvalidInputError(
            f"{shown}: credentials do not belong into a URL, which is shown and stored. Put them "
            "into the environment or the storage options."
        )
    if parts.query or parts.fragment:
        raise InvalidInputError(f"{shown}: a repository's URL has no '?' and no '#'")
    if not parts.netloc:
        what = "host" if kind == "http" else "container" if kind == "az" else "bucket"
        raise InvalidInputError(f"{shown}: the URL names no {what}, expected {parts.scheme}://NAME")


def _from_environment(kind: str, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    # The first variable wins: it comes last into the dictionary that is made of this.
    for variable, name in reversed(_ENVIRONMENT[kind].items()):
        if environment.get(variable):
            yield name, environment[variable]


def _from_options(kind: str, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for given, value in options.items():
        name = given.lower().removeprefix(
            {"s3": "aws_", "gs": "google_", "az": "azure_"}.get(kind, "")
        )
        if name == "client_kwargs":
            yield from _from_options(kind, _object(value))
        elif kind == "gs" and name == "token" and value == "anon":
            yield "skip_signature", "true"
        elif name != "project":  # gcsfs asks for it; nothing here needs it
            yield _ALIASES[kind].get(name, name), _text(value)


def _object(value: object) -> Mapping[str, str]:
    """The nested options of fsspec, as a mapping or, from a command line, as JSON."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidInputError("storage option client_kwargs must be a JSON object")
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _use_emulator(settings: dict[str, str], client: dict[str, str]) -> None:
    """An emulator of GCS: an account that signs nothing, the only kind that may write unsigned."""
    host = settings.pop("emulator")
    account = {
        "gcs_base_url": host if "://" in host else f"http://{host}",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    settings.setdefault("service_account_key", json.dumps(account))
    client.setdefault("allow_http", "true")


def _allow_http(kind: str, endpoint: str, client: dict[str, str]) -> None:
    """Let plain HTTP through to this machine, or where somebody said so."""
    parts = urlsplit(endpoint)
    if parts.scheme.lower() != "http" or client.get("allow_http", "").lower() in {"true", "1"}:
        return
    if kind == "http" or parts.hostname in _LOCAL_HOSTS:
        client["allow_http"] = "true"
        return
    variable = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}[kind]
    raise InvalidInputError(
        f"the endpoint http://{parts.netloc.rpartition('@')[2]} is not encrypted: use https, or "
        f"allow it by {variable}=true or the storage option allow_http=true"
    )
