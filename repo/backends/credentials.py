"""Credential chains: what a machine knows of a login to a cloud when nobody passed keys.

S3: profiles, single sign-on, assumed roles, processes, containers and instances, as botocore finds
and renews them, where there are files of AWS or a profile is named; else what obstore finds by
itself. Google and Azure: obstore knows the usual logins (accounts of users and services, instances,
``az login``, workload identity); the others are left to google-auth and azure-identity. Nobody is
asked, no library is loaded and no network is used before a request is made, nor where keys are
given.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, PermissionDenied, UnsupportedError

# botocore renews what has less than 10 minutes left, or says that it cannot. So what it gives now
# is good for 9, and obstore asks again when less than 5 are left of these.
_GOOD_FOR: Final = timedelta(minutes=9)
_KEYS: Final = re.compile(
    rb"^\s*(aws_access_key_id|sso_|role_arn|credential_process|web_identity_token_file|login_)",
    re.MULTILINE,
)
_SOON: Final = timedelta(minutes=6)  # more than the 5 minutes at which obstore asks again
_GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
_AZURE_SCOPE: Final = "https://storage.azure.com/.default"
_GOOGLE_PLAIN: Final = frozenset({"authorized_user", "service_account"})  # obstore knows them
_GOOGLE_OTHERS: Final = frozenset(
    {"external_account", "external_account_authorized_user", "impersonated_service_account"}
)
_AZURE_PLAIN: Final = frozenset({"client_id", "federated_token_file", "msi_endpoint"})
# Variables of logins that obstore does not know: they come before those that it does.
_AZURE_OTHERS: Final = (
    *("AZURE_TOKEN_CREDENTIALS", "AZURE_CLIENT_CERTIFICATE_PATH", "IDENTITY_SERVER_THUMBPRINT"),
    "IMDS_ENDPOINT",
)
_GIVEN: Final[Mapping[str, frozenset[str]]] = {
    "s3": frozenset({"access_key_id", "skip_signature"}),
    "gs": frozenset({"bearer_token", "service_account", "service_account_key", "skip_signature"}),
    "az": frozenset({"account_key", "client_secret", "sas_key", "skip_signature", "token"}),
}
ADVICE: Final[Mapping[str, str]] = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure` (or `aws sso "
    "login`) and install tensorrepo[aws]; `aws configure export-credentials --format env` gives "
    "variables of a profile",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`; "
    "federated and impersonated accounts need tensorrepo[gcp]",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or run `az login`; "
    "certificates and `azd auth login` need tensorrepo[azure]",
}
Provider = Callable[[], dict[str, Any]]


class LoginChain(Protocol):
    """Where a login is found."""

    def settings(self) -> dict[str, str]:
        """What is found beside the login, by obstore's names."""
        ...

    def provider(self) -> Provider | None:
        """What obstore asks for a login, whenever the one that it has is about to expire.

        None: obstore finds one by itself.
        """
        ...


@dataclass(frozen=True, slots=True)
class AwsChain:
    """Files of AWS's tools on this machine, and the profile in them; None: the default one."""

    profile: str | None
    config_file: str
    credentials_file: str

    def settings(self) -> dict[str, str]:
        """Region and endpoint that the profile names."""
        return _session(self).settings()

    def provider(self) -> Provider | None:
        session = _session(self)
        return session.keys if session.is_there else None


@dataclass(frozen=True, slots=True)
class GoogleChain:
    """A file of Google's tools whose kind of account obstore does not know."""

    path: str
    kind: str

    def settings(self) -> dict[str, str]:
        return {}

    def provider(self) -> Provider | None:
        return _google_tokens(self).token


@dataclass(frozen=True, slots=True)
class AzureChain:
    """The environment of this process, which says that azure-identity is to look for a login.

    `has_plain` tells that obstore finds one, too, if azure-identity is not installed.
    """

    variable: str
    has_plain: bool = False

    def settings(self) -> dict[str, str]:
        return {}

    def provider(self) -> Provider | None:
        tokens = _azure_tokens(self)
        return None if tokens is None else tokens.token


def find_chain(
    kind: str, settings: dict[str, str], environment: Mapping[str, str]
) -> LoginChain | None:
    """Where to find a login that `settings` do not hold.

    Takes ``profile`` out of `settings`, and may put in where obstore shall look.

    Raises:
        UnsupportedError: only a library that is not installed can read it.
    """
    profile = settings.pop("profile", None) if kind == "s3" else None
    if profile is None and _GIVEN.get(kind, frozenset()) & settings.keys():
        return None
    home = Path(environment.get("HOME") or "/nonexistent")
    if kind == "s3":
        return _find_aws(profile, environment, home)
    if kind == "gs":
        return _find_google(settings, environment, home)
    return _find_azure(settings, environment, home) if kind == "az" else None


def _find_aws(profile: str | None, environment: Mapping[str, str], home: Path) -> AwsChain | None:
    profile = profile or environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    config = environment.get("AWS_CONFIG_FILE") or str(home / ".aws/config")
    shared = environment.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / ".aws/credentials")
    there = [path for path in (config, shared) if Path(path).expanduser().is_file()]
    # obstore knows of containers those of ECS, and asks an instance whatever the variable says.
    others = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_EC2_METADATA_DISABLED")
    if profile or there or any(map(environment.get, others)):
        return AwsChain(profile, config, shared)
    return None


def _find_google(
    settings: dict[str, str], environment: Mapping[str, str], home: Path
) -> GoogleChain | None:
    folder = Path(environment.get("CLOUDSDK_CONFIG") or home / ".config/gcloud")
    usual = folder / "application_default_credentials.json"
    path = Path(settings.get("application_credentials") or usual)
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None  # obstore says so, where the file was named
    kind = str(told.get("type")) if isinstance(told, dict) else ""
    if kind in _GOOGLE_OTHERS:
        settings.pop("application_credentials", None)
        return GoogleChain(str(path), kind)
    if kind in _GOOGLE_PLAIN:
        settings.setdefault("application_credentials", str(path))
        return None
    raise InvalidInputError(
        f"{path}: {kind or 'nothing'!r} is no kind of Google's credentials: expected one of "
        f"{', '.join(sorted(_GOOGLE_PLAIN | _GOOGLE_OTHERS))}. To mend it, {ADVICE['gs']}."
    )


def _find_azure(
    settings: dict[str, str], environment: Mapping[str, str], home: Path
) -> AzureChain | None:
    has_plain = bool(_AZURE_PLAIN & settings.keys())
    folder = Path(environment.get("AZURE_CONFIG_DIR", home / ".azure"))
    if not has_plain and (folder / "azureProfile.json").is_file():
        settings.setdefault("use_azure_cli", "true")
        has_plain = True
    for variable in _AZURE_OTHERS:
        if environment.get(variable):
            return AzureChain(variable, has_plain)
    if has_plain:
        return None
    azd = Path(environment.get("AZD_CONFIG_DIR", home / ".azd"), "auth")
    return AzureChain(str(azd)) if azd.is_dir() else None


@lru_cache(maxsize=16)
def _session(chain: AwsChain) -> _AwsSession:
    return _AwsSession(chain)


class _AwsSession:
    """botocore's session of one chain, which renews what expires."""

    def __init__(self, chain: AwsChain) -> None:
        self._chain = chain
        self._session: Any = None
        try:
            from botocore.session import Session  # 0.3 s, and most keys come as variables
        except ImportError:
            if chain.profile or any(map(_has_keys, (chain.config_file, chain.credentials_file))):
                raise UnsupportedError(
                    f"{self._name} of AWS is not read without botocore: pip install "
                    "'tensorrepo[aws]'. Or give its keys as variables: eval \"$(aws configure "
                    'export-credentials --format env)"'
                ) from None
            return
        self._session = Session()
        for name in ("config_file", "credentials_file", "profile"):
            if (value := getattr(chain, name)) is not None:
                self._session.set_config_variable(name, value)

    @property
    def is_there(self) -> bool:
        """Whether botocore is installed."""
        return self._session is not None

    @property
    def _name(self) -> str:
        return f"profile {self._chain.profile!r}" if self._chain.profile else "the default profile"

    def settings(self) -> dict[str, str]:
        if self._session is None:
            return {}
        from botocore.configprovider import ConfiguredEndpointProvider
        from botocore.exceptions import BotoCoreError

        try:
            endpoint = ConfiguredEndpointProvider(
                self._session.full_config, self._session.get_scoped_config(), "s3", environ={}
            ).provide()
            region = self._session.get_config_variable("region")
        except BotoCoreError as error:
            raise InvalidInputError(f"{self._name} of AWS: {error}") from None
        return {
            name: value for name, value in (("region", region), ("endpoint", endpoint)) if value
        }

    def keys(self) -> dict[str, Any]:
        """Keys that are good for some minutes at least.

        Raises:
            PermissionDenied: there are none; says what to do.
        """
        from botocore.credentials import RefreshableCredentials
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            credentials = self._session.get_credentials()
            frozen = credentials and credentials.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            name = self._chain.profile
            login = f"`aws sso login{f' --profile {name}' if name else ''}`"
            hint = f"run {login}" if "SSO" in f"{type(error).__name__} {error}" else ADVICE["s3"]
            raise PermissionDenied(f"{self._name} of AWS: {error}. To mend it, {hint}.") from None
        if frozen is None:
            raise PermissionDenied(f"{self._name} of AWS holds no keys: {ADVICE['s3']}.")
        renewed = isinstance(credentials, RefreshableCredentials)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _GOOD_FOR if renewed else None,
        }


class _Tokens:
    """The token of one login, fetched anew once it is about to expire.

    Args:
        fetch: gives a token and when it expires.
    """

    def __init__(self, fetch: Callable[[], tuple[str, datetime]]) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._known: tuple[str, datetime] | None = None

    def token(self) -> dict[str, Any]:
        """A token, as obstore takes it. PermissionDenied: there is none; says what to do."""
        with self._lock:  # several clients of one store ask at once
            if self._known is None or self._known[1] - datetime.now(UTC) < _SOON:
                self._known = self._fetch()
            token, until = self._known
            return {"token": token, "expires_at": until}


@lru_cache(maxsize=16)
def _google_tokens(chain: GoogleChain) -> _Tokens:
    try:
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request
    except ImportError:
        raise UnsupportedError(
            f"{chain.path}: a login of type {chain.kind} is not read without google-auth: pip "
            "install 'tensorrepo[gcp]'"
        ) from None
    request, found = Request(), _Found()

    def fetch() -> tuple[str, datetime]:
        try:
            if found.login is None:
                found.login = _google_login(chain)
            found.login.refresh(request)
        except (GoogleAuthError, OSError, ValueError, KeyError) as error:
            raise PermissionDenied(
                f"{chain.path} ({chain.kind}): {_brief(error)}. To mend it, {ADVICE['gs']}."
            ) from None
        return found.login.token, found.login.expiry.replace(tzinfo=UTC)

    return _Tokens(fetch)


class _Found:
    """A login, once it was read."""

    login: Any = None


def _google_login(chain: GoogleChain) -> Any:
    from google.auth import (
        aws,
        external_account_authorized_user,
        identity_pool,
        impersonated_credentials,
        pluggable,
    )

    told = json.loads(Path(chain.path).read_bytes())
    scopes = [_GOOGLE_SCOPE]
    kind: Any  # google-auth tells the types of some of its calls only
    if chain.kind == "impersonated_service_account":
        kind = impersonated_credentials.Credentials
        return kind.from_impersonated_service_account_info(told, scopes=scopes)
    if chain.kind == "external_account_authorized_user":
        kind = external_account_authorized_user.Credentials
        return kind.from_info({**told, "scopes": scopes})  # the others take them beside it
    if told.get("subject_token_type") == "urn:ietf:params:aws:token-type:aws4_request":
        kind = aws.Credentials
    elif "executable" in (told.get("credential_source") or {}):
        kind = pluggable.Credentials
    else:
        kind = identity_pool.Credentials
    return kind.from_info(told, scopes=scopes)


@lru_cache(maxsize=16)
def _azure_tokens(chain: AzureChain) -> _Tokens | None:
    try:
        from azure.core.exceptions import AzureError
        from azure.identity import DefaultAzureCredential
    except ImportError:
        if chain.has_plain:
            return None
        raise UnsupportedError(
            f"{chain.variable} tells of a login of Azure that is not read without "
            "azure-identity: pip install 'tensorrepo[azure]'"
        ) from None
    # What it warns of is in the error that we raise; who wants its log has a handler of their own.
    logging.getLogger("azure").addHandler(logging.NullHandler())
    found = _Found()

    def fetch() -> tuple[str, datetime]:
        try:
            if found.login is None:
                found.login = DefaultAzureCredential()
            token = found.login.get_token(_AZURE_SCOPE)
        except (AzureError, OSError, ValueError) as error:
            raise PermissionDenied(
                f"the login of Azure ({chain.variable}): {_brief(error)}. To mend it, "
                f"{ADVICE['az']}."
            ) from None
        return token.token, datetime.fromtimestamp(token.expires_on, UTC)

    return _Tokens(fetch)


def _brief(error: Exception) -> str:
    """What an error of these libraries says, in one line without the bodies of answers."""
    first = " ".join(str(error.args[0] if error.args else error).split())
    return first[:300].rstrip(". ") or type(error).__name__


def _has_keys(path: str) -> bool:
    try:
        return _KEYS.search(Path(path).expanduser().read_bytes()) is not None
    except OSError:
        return False
