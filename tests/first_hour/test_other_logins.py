"""F12: what Google's and Azure's own libraries find and obstore does not."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorrepo.repo.backends import credentials
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.backends.remote import find_place
from tensorrepo.repo.errors import InvalidInputError, PermissionDenied, UnsupportedError
from tests.support.servers.logins import Logins, TokenStore, token_server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TokenStore]:
    with TokenStore(tmp_path / "store") as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[Logins]:
    with token_server() as logins:
        yield logins


@pytest.fixture
def logins(server: Logins, monkeypatch: pytest.MonkeyPatch) -> Iterator[Logins]:
    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "AZURE_", "IDENTITY_", "CLOUDSDK_")):
            monkeypatch.delenv(name)
    server.asked.clear()
    server.seconds, server.status = 3600, 200
    yield server
    credentials._google_tokens.cache_clear()
    credentials._azure_tokens.cache_clear()


def federated(tmp_path: Path, logins: Logins, **more: str) -> dict[str, str]:
    """The environment of a workload whose own token is exchanged for one of Google's."""
    (tmp_path / "subject").write_text("token-of-the-cluster")
    told = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{logins.url}/sts",
        "credential_source": {"file": str(tmp_path / "subject")},
        **more,
    }
    (tmp_path / "login.json").write_text(json.dumps(told))
    return {"HOME": str(tmp_path), "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "login.json")}


def test_a_federated_workload_is_let_in(tmp_path: Path, logins: Logins, store: TokenStore) -> None:
    told = federated(tmp_path, logins) | {"GOOGLE_BASE_URL": store.url}
    backend = open_backend("gs://bucket/x", environment=told)
    assert not logins.asked
    backend.overwrite("log/1", [b"a"])
    assert backend.read("log/1") == b"a"
    assert logins.paths == ["/sts"]
    assert logins.asked[0][1]["subject_token"] == "token-of-the-cluster"
    assert len(set(store.seen)) == 1


def test_a_token_that_expires_is_fetched_anew(tmp_path: Path, logins: Logins) -> None:
    chain = find_place("gs://bucket", {}, federated(tmp_path, logins)).chain
    assert chain is not None
    provider = chain.provider()
    assert provider is not None
    assert provider() == provider()
    assert len(logins.asked) == 1
    credentials._google_tokens.cache_clear()
    logins.seconds = 60
    provider = chain.provider()
    assert provider is not None
    first = provider()["token"]
    (tmp_path / "subject").write_text("the next one")  # which a cluster renews in its file
    assert provider()["token"] != first
    assert logins.asked[-1][1]["subject_token"] == "the next one"


def test_a_service_account_is_impersonated(
    tmp_path: Path, logins: Logins, store: TokenStore
) -> None:
    path = "/v1/projects/-/serviceAccounts/reader@p.iam.gserviceaccount.com:generateAccessToken"
    more = {"service_account_impersonation_url": f"{logins.url}{path}"}
    told = federated(tmp_path, logins, **more) | {"GOOGLE_BASE_URL": store.url}
    open_backend("gs://bucket/x", environment=told).overwrite("log/1", [b"a"])
    assert logins.paths == ["/sts", path]
    assert store.seen[0].startswith("token-as-another-")


def login_of(kind: str, tmp_path: Path, url: str) -> dict[str, object]:
    """What a file of Google says of the login, besides what all of them say."""
    if kind == "workforce":
        audience = "//iam.googleapis.com/locations/global/workforcePools/p/providers/x"
        return {
            "type": "external_account_authorized_user", "audience": audience,
            "refresh_token": "token-to-renew", "client_id": "me", "client_secret": "secret",
            "token_info_url": f"{url}/info",
        }  # fmt: skip
    if kind == "aws":
        safe = url.replace("http:", "https:")  # what is signed; Google's side would ask it
        check = f"{safe}/{{region}}?Action=GetCallerIdentity&Version=2011-06-15"
        source = {"environment_id": "aws1", "regional_cred_verification_url": check}
        return {
            "subject_token_type": "urn:ietf:params:aws:token-type:aws4_request",
            "credential_source": source,
        }
    script = tmp_path / "login.py"
    told = {"version": 1, "success": True, "id_token": "token-of-a-program", "token_type": JWT}
    script.write_text(f"print({json.dumps(json.dumps(told))})")
    command = {"command": f"{sys.executable} {script}", "timeout_millis": 5000}
    return {"credential_source": {"executable": command}}


JWT = "urn:ietf:params:oauth:token-type:jwt"
# What lets google-auth run a program or sign as AWS does; it reads the process's environment.
LETS = {
    "executable": {"GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES": "1"},
    "aws": {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "eu-west-1"},
    "workforce": {},
}


@pytest.mark.parametrize(
    ("kind", "sent", "holds"),
    [
        ("executable", "subject_token", "token-of-a-program"),
        ("aws", "subject_token", "Credential%3DAKID"),
        ("workforce", "refresh_token", "token-to-renew"),
    ],
)
def test_every_kind_of_federated_login_is_let_in(
    tmp_path: Path, logins: Logins, store: TokenStore, monkeypatch: pytest.MonkeyPatch,
    kind: str, sent: str, holds: str,
) -> None:  # fmt: skip
    for name, value in LETS[kind].items():
        monkeypatch.setenv(name, value)
    told = federated(tmp_path, logins) | LETS[kind] | {"GOOGLE_BASE_URL": store.url}
    file = tmp_path / "login.json"
    changed = login_of(kind, tmp_path, logins.url)
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    open_backend("gs://bucket/x", environment=told).overwrite("log/1", [b"a"])
    assert logins.paths == ["/sts"]
    assert holds in logins.asked[0][1][sent]


def test_a_program_that_nobody_allowed_is_not_run(tmp_path: Path, logins: Logins) -> None:
    told = federated(tmp_path, logins)
    file = tmp_path / "login.json"
    changed = login_of("executable", tmp_path, logins.url)
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(PermissionDenied, match="Executables need to be explicitly allowed"):
        open_backend("gs://bucket/x", environment=told).read("repo.json")
    assert not logins.asked


def test_a_refused_exchange_says_why_and_what_to_do(tmp_path: Path, logins: Logins) -> None:
    logins.status = 400
    backend = open_backend("gs://bucket/x", environment=federated(tmp_path, logins))
    with pytest.raises(PermissionDenied, match=r"login\.json.*subject is unknown.*gcloud auth"):
        backend.read("repo.json")


def test_an_identity_of_azure_is_found_by_its_library(
    tmp_path: Path, logins: Logins, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {
        "AZURE_TOKEN_CREDENTIALS": "managedidentitycredential",
        "IDENTITY_ENDPOINT": f"{logins.url}/msi",
        "IDENTITY_HEADER": "secret-of-the-app",
    }
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    place = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ENDPOINT": store.url}
    told = {"HOME": str(tmp_path), **names, **place}
    backend = open_backend("az://bucket/x", environment=told)
    assert not logins.asked
    backend.overwrite("log/1", [b"a"])
    assert backend.read("log/1") == b"a"
    assert logins.paths == ["/msi"]
    assert logins.asked[0][1]["secret"] == "secret-of-the-app"
    assert logins.asked[0][1]["resource"] == "https://storage.azure.com"


def test_no_login_of_azure_says_what_to_do(
    tmp_path: Path,
    logins: Logins,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del logins
    monkeypatch.setattr(logging.getLogger("azure"), "propagate", False)  # to pytest's handlers
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "environmentcredential")
    names = {"HOME": str(tmp_path), "AZURE_TOKEN_CREDENTIALS": "environmentcredential"}
    backend = open_backend(
        "az://bucket/x", environment={**names, "AZURE_STORAGE_ACCOUNT_NAME": "account"}
    )
    with pytest.raises(PermissionDenied, match=r"AZURE_TOKEN_CREDENTIALS.*az login"):
        backend.read("repo.json")
    assert capsys.readouterr().err == ""


def test_what_cannot_be_read_is_refused_when_opened(
    tmp_path: Path, logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = federated(tmp_path, logins)
    monkeypatch.setitem(sys.modules, "google.auth.exceptions", None)
    with pytest.raises(UnsupportedError, match=r"external_account.*tensorrepo\[gcp\]"):
        open_backend("gs://bucket/x", environment=told).read("repo.json")
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    names = {"HOME": str(tmp_path), "AZURE_CLIENT_CERTIFICATE_PATH": "/cert.pem"}
    place = {"AZURE_STORAGE_ACCOUNT_NAME": "account"}
    with pytest.raises(UnsupportedError, match=r"CERTIFICATE_PATH.*tensorrepo\[azure\]"):
        open_backend("az://bucket/x", environment={**names, **place}).read("repo.json")
    (tmp_path / "login.json").write_text('{"type": "typo"}')
    with pytest.raises(InvalidInputError, match=r"'typo'.*impersonated_service_account"):
        open_backend("gs://bucket/x", environment=told)
