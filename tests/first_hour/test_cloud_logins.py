"""F12: logins to clouds are found where their own tools leave them."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tensorrepo.repo.backends import credentials
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.backends.remote import find_place
from tensorrepo.repo.errors import PermissionDenied, UnsupportedError
from tests.support.processes.shell import Shell
from tests.support.servers.object_stores import AzureServer, Bucket, s3_on_ours
from tests.support.servers.web import web_server

KEY = "AKIA-of-the-profile"


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield
    credentials._session.cache_clear()


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """A store that knows one key."""
    with s3_on_ours(tmp_path_factory.mktemp("s3"), access_key=KEY) as bucket:
        yield bucket


def write(home: Path, name: str, text: str) -> None:
    (home / ".aws").mkdir(exist_ok=True)
    (home / ".aws" / name).write_text(text)


def environment(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), **more}


def test_a_profile_of_aws_configure_is_enough(empty: Shell, strict: Bucket) -> None:
    endpoint = strict.environment["AWS_ENDPOINT_URL"]
    config = f"[profile team]\nregion = eu-central-1\nendpoint_url = {endpoint}\n"
    write(empty.home, "config", config)
    write(
        empty.home,
        "credentials",
        f"[team]\naws_access_key_id = {KEY}\naws_secret_access_key = s\n[other]\nregion = x\n",
    )
    empty.environment = {"AWS_PROFILE": "team", "AWS_EC2_METADATA_DISABLED": "true"}
    empty("init", "s3://bucket/mine")
    assert "s3://bucket/mine" in empty("status", "--json") + empty("config")
    place = empty.home.parent / "elsewhere"
    place.mkdir()
    other = Shell(place, empty.home, environment={**empty.environment, "AWS_PROFILE": "other"})
    told = other.fails(6, "init", "s3://bucket/mine")
    assert "'other'" in told
    assert "export-credentials --format env" in told
    assert "Traceback" not in told


def test_a_profile_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(credentials.InvalidInputError, match="typo"):
        open_backend("s3://bucket/x", environment=environment(tmp_path, AWS_PROFILE="typo"))


def test_a_role_is_assumed_with_the_keys_of_another_profile(
    tmp_path: Path, moto: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = moto.environment["AWS_ENDPOINT_URL"]
    write(tmp_path, "credentials", "[base]\naws_access_key_id = a\naws_secret_access_key = s\n")
    role = "role_arn = arn:aws:iam::123456789012:role/reader\nsource_profile = base\n"
    write(tmp_path, "config", f"[default]\nregion = us-east-1\n{role}")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint)
    told = environment(tmp_path, AWS_ENDPOINT_URL=endpoint)
    backend = open_backend("s3://bucket/assumed", environment=told)
    assert backend.create("log/1", [b"a"])
    chain = find_place("s3://bucket", {}, told).chain
    assert chain is not None
    provider = chain.provider()
    assert provider is not None
    keys = provider()
    assert keys["access_key_id"].startswith("ASIA")
    assert keys["token"]
    assert timedelta(minutes=8) < keys["expires_at"] - datetime.now(UTC) < timedelta(minutes=10)


def test_keys_that_expire_are_asked_for_again(tmp_path: Path, strict: Bucket) -> None:
    counter = tmp_path / "asked"
    program = tmp_path / "login.py"
    program.write_text(
        "import datetime, json, pathlib\n"
        f"counter = pathlib.Path({str(counter)!r})\n"
        "count = len(counter.read_text()) + 1 if counter.exists() else 1\n"
        "counter.write_text('x' * count)\n"
        "soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=6)\n"
        f"print(json.dumps({{'Version': 1, 'AccessKeyId': {KEY!r}, 'SecretAccessKey': 's',\n"
        "    'SessionToken': str(count), 'Expiration': soon.isoformat()}))\n"
    )
    write(tmp_path, "config", f"[default]\ncredential_process = {sys.executable} {program}\n")
    told = environment(tmp_path, AWS_ENDPOINT_URL=strict.environment["AWS_ENDPOINT_URL"])
    backend = open_backend("s3://bucket/renewed", environment=told)
    assert not counter.exists()
    assert backend.create("log/1", [b"a"])
    assert counter.exists()
    chain = find_place("s3://bucket", {}, told).chain
    assert chain is not None
    provider = chain.provider()
    assert provider is not None
    assert int(provider()["token"]) + 1 == int(provider()["token"])


def test_an_expired_single_sign_on_says_how_to_renew_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        "config",
        "[profile team]\nsso_session = us\nsso_account_id = 1\nsso_role_name = r\n"
        "[sso-session us]\nsso_region = us-east-1\nsso_start_url = https://example.org/start\n",
    )
    backend = open_backend("s3://bucket/x", environment=environment(tmp_path, AWS_PROFILE="team"))
    with pytest.raises(PermissionDenied, match="aws sso login --profile team"):
        backend.read("repo.json")


@pytest.mark.parametrize("more", [{}, {"AWS_CONTAINER_AUTHORIZATION_TOKEN": "let me in"}])
def test_a_container_lends_its_role(
    tmp_path: Path, strict: Bucket, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    lent = {"AccessKeyId": KEY, "SecretAccessKey": "s", "Token": "t", "Expiration": later}
    (tmp_path / "role").write_text(json.dumps({**lent, "RoleArn": "arn"}))
    with web_server(tmp_path) as served:
        address = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{served.url}/role", **more}
        for name, value in address.items():
            monkeypatch.setenv(name, value)
        told = environment(
            tmp_path, AWS_ENDPOINT_URL=strict.environment["AWS_ENDPOINT_URL"], **address
        )
        backend = open_backend("s3://bucket/lent", environment=told)
        assert not served.requests
        backend.overwrite("log/1", [b"a"])
        assert served.requests


def test_plain_keys_ask_nobody(tmp_path: Path) -> None:
    write(tmp_path, "config", "[default]\nrole_arn = arn\nsource_profile = none\n")
    told = environment(tmp_path, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="s")
    assert find_place("s3://bucket", {}, told).chain is None
    assert find_place("s3://bucket", {"anon": "true"}, environment(tmp_path)).chain is None
    chain = find_place("s3://bucket", {"profile": "team"}, told).chain
    assert chain is not None
    assert chain.profile == "team"


def test_without_botocore_a_profile_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    told = environment(tmp_path, AWS_PROFILE="team")
    with pytest.raises(UnsupportedError, match=r"tensorrepo\[aws\].*export-credentials"):
        open_backend("s3://bucket/x", environment=told)
    write(tmp_path, "config", "[default]\nregion = us-east-1\n")  # which holds no login
    open_backend("s3://bucket/x", environment=environment(tmp_path))
    write(tmp_path, "config", "[default]\nsso_session = us\n")
    credentials._session.cache_clear()
    with pytest.raises(UnsupportedError, match="default profile"):
        open_backend("s3://bucket/x", environment=environment(tmp_path))


def test_what_az_login_left_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = (datetime.now(UTC).astimezone() + timedelta(hours=1)).strftime(
        "%Y-%m-%d %H:%M:%S.000000"
    )
    token = {"accessToken": "token-of-az", "expiresOn": later, "tokenType": "Bearer"}
    script = tmp_path / "az"
    told = {**token, "subscription": "s", "tenant": "t"}
    script.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / ".azure").mkdir()
    (tmp_path / ".azure/azureProfile.json").write_text("{}")
    (tmp_path / "store/bucket").mkdir(parents=True)
    with AzureServer(tmp_path / "store") as server:
        names = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ENDPOINT": server.url}
        backend = open_backend("az://bucket/x", environment=environment(tmp_path, **names))
        backend.overwrite("log/1", [b"a"])
        assert backend.read("log/1") == b"a"


def test_the_file_of_gcloud_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    folder = tmp_path / ".config/gcloud"
    folder.mkdir(parents=True)
    (folder / "application_default_credentials.json").write_text('{"type": "authorized_user"}')
    with pytest.raises(credentials.InvalidInputError, match="client_id"):
        open_backend("gs://bucket/x", environment=environment(tmp_path))
