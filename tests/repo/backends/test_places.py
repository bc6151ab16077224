from __future__ import annotations

import json
import pickle

import pytest

from tensorrepo.repo.backends.remote import StoreLocation, find_place
from tensorrepo.repo.errors import InvalidInputError

SECRET = "hunter2-hunter2"


def s3(options: dict[str, str] | None = None, **environment: str) -> StoreLocation:
    return find_place("s3://bucket/name", options or {}, environment)


@pytest.mark.parametrize(
    ("variables", "setting", "value"),
    [
        ({"AWS_ACCESS_KEY_ID": "id"}, "access_key_id", "id"),
        ({"AWS_ENDPOINT_URL": "https://example.com"}, "endpoint", "https://example.com"),
        (
            {
                "AWS_ENDPOINT_URL": "https://example.com",
                "AWS_ENDPOINT_URL_S3": "https://example.org",
            },
            "endpoint",
            "https://example.org",
        ),
        ({"AWS_DEFAULT_REGION": "eu-1"}, "region", "eu-1"),
        ({"AWS_DEFAULT_REGION": "eu-1", "AWS_REGION": "eu-2"}, "region", "eu-2"),
        ({"AWS_REGION": "", "AWS_DEFAULT_REGION": "eu-1"}, "region", "eu-1"),
    ],
)
def test_settings_come_from_the_usual_variables(
    variables: dict[str, str], setting: str, value: str
) -> None:
    assert s3(**variables).config[setting] == value


def test_variables_that_mean_nothing_here_are_left_alone() -> None:
    assert s3(AWS_PROFILE="me", AWS_PAGER="less", HOME="/root").config == {}


@pytest.mark.parametrize(
    ("url", "options", "config"),
    [
        (
            "s3://b",
            {"key": "k", "secret": "s", "token": "t"},
            {"access_key_id": "k", "secret_access_key": "s", "session_token": "t"},
        ),
        (
            "s3://b",
            {"aws_access_key_id": "k", "AWS_REGION": "r"},
            {"access_key_id": "k", "region": "r"},
        ),
        (
            "s3://b",
            {"client_kwargs": '{"endpoint_url": "https://example.test", "region_name": "r"}'},
            {"endpoint": "https://example.test", "region": "r"},
        ),
        ("s3://b", {"anon": "true"}, {"skip_signature": "true"}),
        ("gs://b", {"token": "/key.json", "project": "p"}, {"service_account": "/key.json"}),
        ("gcs://b", {"token": "anon"}, {"skip_signature": "true"}),
        ("az://c", {"account_name": "a", "sas_token": "s"}, {"account_name": "a", "sas_key": "s"}),
    ],
)
def test_options_may_have_the_names_of_obstore_or_of_fsspec(
    url: str, options: dict[str, str], config: dict[str, str]
) -> None:
    assert find_place(url, options, {}).config == config


def test_nested_options_may_be_a_mapping_and_flags_may_be_bools() -> None:
    options = {"client_kwargs": {"endpoint_url": "https://example.test"}, "anon": True}
    place = find_place("s3://b", options, {})  # type: ignore[arg-type]  # as people pass to fsspec
    assert place.config == {"endpoint": "https://example.test", "skip_signature": "true"}


@pytest.mark.parametrize("value", ["no json", "[]", "3"])
def test_nested_options_that_are_no_object_are_refused(value: str) -> None:
    with pytest.raises(InvalidInputError, match="client_kwargs"):
        s3({"client_kwargs": value})


def test_options_win_over_the_environment() -> None:
    place = s3({"endpoint_url": "https://example.com"}, AWS_ENDPOINT_URL_S3="https://example.org")
    assert place.config["endpoint"] == "https://example.com"


def test_settings_of_the_connection_are_told_from_those_of_the_store() -> None:
    place = s3({"timeout": "5s", "region": "r"})
    assert (place.client, place.config) == ({"timeout": "5s"}, {"region": "r"})


@pytest.mark.parametrize("host", ["127.0.0.1:9000", "localhost", "[::1]:80"])
def test_this_machine_may_be_reached_without_encryption(host: str) -> None:
    assert s3(AWS_ENDPOINT_URL=f"http://{host}").client["allow_http"] == "true"


def test_another_machine_may_not_unless_somebody_says_so() -> None:
    with pytest.raises(InvalidInputError, match="AWS_ALLOW_HTTP=true"):
        s3(AWS_ENDPOINT_URL="http://example.test")
    allowed = s3(AWS_ENDPOINT_URL="http://example.test", AWS_ALLOW_HTTP="true")
    assert allowed.client["allow_http"] == "true"


@pytest.mark.parametrize("host", ["localhost:4443", "http://example.test:4443"])
def test_an_emulator_of_gcs_needs_no_account(host: str) -> None:
    place = find_place("gs://b", {}, {"STORAGE_EMULATOR_HOST": host})
    account = json.loads(place.config["service_account_key"])
    assert account["gcs_base_url"] == f"http://{host.removeprefix('http://')}"
    assert account["disable_oauth"]


@pytest.mark.parametrize(
    "url", [f"s3://key:{SECRET}@bucket", f"https://me:{SECRET}@host/x", f"az://me:{SECRET}@c/x"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInputError, match="credentials") as caught:
        find_place(url, {}, {})
    assert SECRET not in str(caught.value)


def test_the_account_in_an_azure_url_is_no_credential() -> None:
    url = "abfss://container@account.dfs.core.windows.net/name"
    assert find_place(url, {}, {}).url == url


@pytest.mark.parametrize("url", ["s3://", "s3:///key", "gs://", "http:///x", "az://"])
def test_a_url_must_name_a_bucket(url: str) -> None:
    with pytest.raises(InvalidInputError, match="names no"):
        find_place(url, {}, {})


@pytest.mark.parametrize("url", ["https://host/x?sig=abc", "s3://b/x#y"])
def test_a_url_with_a_query_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="has no '\\?'"):
        find_place(url, {}, {})


def test_the_repr_shows_no_setting_and_a_pickle_keeps_them() -> None:
    place = s3({"secret": SECRET, "proxy_url": f"http://u:{SECRET}@example.test"})
    assert SECRET not in repr(place)
    assert pickle.loads(pickle.dumps(place)) == place


def test_what_no_message_may_show_is_known_and_names_may_be_shown() -> None:
    place = s3({"secret": SECRET, "region": "eu-central-1", "endpoint": "https://example.org"})
    assert place.secrets == (SECRET,)
