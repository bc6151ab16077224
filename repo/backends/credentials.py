"""Credential chains: what a machine knows of a login to a cloud when nobody passed keys.

S3: profiles, single sign-on, assumed roles, processes, containers and instances, as botocore finds
and renews them, where there are files of AWS or a profile is named; else what obstore finds by
itself. Google: the file of ``gcloud auth application-default login``, found by obstore. Azure: what
``az login`` left. Nobody is asked, no library is loaded and no network is used before a request is
made, nor where keys are given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tensorrepo.repo.errors import InvalidInputError, PermissionDenied, UnsupportedError

# botocore renews what has less than 10 minutes left, or says that it cannot. So what it gives now
# is good for 9, and obstore asks again when less than 5 are left of these.
_GOOD_FOR: Final = timedelta(minutes=9)
_KEYS: Final = re.compile(
    rb"^\s*(aws_access_key_id|sso_|role_arn|credential_process|web_identity_token_file|login_)",
    re.MULTILINE,
)
_GIVEN: Final[Mapping[str, frozenset[str]]] = {
    "s3": frozenset({"access_key_id", "skip_signature"}),
    "az": frozenset(
        {"account_key", "client_id", "federated_token_file", "msi_endpoint", "sas_key"}
        | {"skip_signature", "token"}
    ),
}
ADVICE: Final[Mapping[str, str]] = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure` (or `aws sso "
    "login`) and install tensorrepo[aws]; `aws configure export-credentials --format env` gives "
    "variables of a profile",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or run `az login`",
}


@dataclass(frozen=True, slots=True)
class AwsChain:
    """Files of AWS's tools on this machine, and the profile in them; None: the default one."""

    profile: str | None
    config_file: str
    credentials_file: str

    def settings(self) -> dict[str, str]:
        """Region and endpoint that the profile names."""
        return _session(self).settings()

    def provider(self) -> Callable[[], dict[str, Any]] | None:
        """What obstore asks for keys, whenever those that it has are about to expire.

        None: obstore finds some by itself, as the files hold none.
        """
        session = _session(self)
        return session.keys if session.is_there else None


def find_chain(
    kind: str, settings: dict[str, str], environment: Mapping[str, str]
) -> AwsChain | None:
    """Where to find a login that `settings` do not hold.

    Takes ``profile`` out of `settings`, and may put in where obstore shall look.
    """
    profile = settings.pop("profile", None) if kind == "s3" else None
    if profile is None and _GIVEN.get(kind, frozenset()) & settings.keys():
        return None
    home = Path(environment.get("HOME") or "/nonexistent")
    if (
        kind == "az"
        and Path(
            environment.get("AZURE_CONFIG_DIR", home / ".azure"), "azureProfile.json"
        ).is_file()
    ):
        settings.setdefault("use_azure_cli", "true")
    if kind != "s3":
        return None
    profile = profile or environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    config = environment.get("AWS_CONFIG_FILE") or str(home / ".aws/config")
    shared = environment.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / ".aws/credentials")
    there = [path for path in (config, shared) if Path(path).expanduser().is_file()]
    # obstore knows of containers those of ECS, and asks an instance whatever the variable says.
    others = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_EC2_METADATA_DISABLED")
    if profile or there or any(map(environment.get, others)):
        return AwsChain(profile, config, shared)
    return None


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


def _has_keys(path: str) -> bool:
    try:
        return _KEYS.search(Path(path).expanduser().read_bytes()) is not None
    except OSError:
        return False
