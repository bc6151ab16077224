"""What may be read outside the repository."""

from __future__ import annotations

import pickle

import pytest

from tensorrepo.formats.dataset.external.outside import (
    Nothing,
    check_allowed,
    hide_secrets,
    parse_address,
)
from tensorrepo.repo.errors import InvalidInputError, PermissionDenied, UnsupportedError

SAME = [
    ("/data/x.npy", "file:///data/x.npy"),
    ("//data///x.npy", "file:///data/x.npy"),
    ("file://localhost/data/a%20b", "file:///data/a%20b"),
    ("s3a://bucket/raw/a b.jpg", "s3://bucket/raw/a b.jpg"),
    ("gcs://bucket/x", "gs://bucket/x"),
    ("HTTPS://Example.COM:443/a%20b/%63", "https://example.com/a%20b/c"),
    ("http://example.com:80/x", "http://example.com/x"),
    ("http://example.com:8080/x", "http://example.com:8080/x"),
    ("abfss://container@account/x", "abfss://container@account/x"),
]


@pytest.mark.parametrize(("url", "normal"), SAME)
def test_spellings_of_one_place_are_one_url(url: str, normal: str) -> None:
    assert parse_address(url).url == normal


@pytest.mark.parametrize(
    "url",
    [
        "/data/../etc/passwd",
        "/data/./x",
        "file:///data/%2e%2e/etc/passwd",
        "https://example.com/a/%2e%2e/b",
        "https://example.com/a/%252e%252e/b",
        "s3://bucket/a/../b",
        "s3://bucket/a//b",
        "s3://",
        "file://other/data",
        "data/x.npy",
        "s3://bucket/a\nb",
        "https://example.com/x?signature=secret",
        "https://example.com/x#part",
        "https://user:secret@example.com/x",
        "s3://key:secret@bucket/x",
        "",
    ],
)
def test_what_is_not_plainly_one_place_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["zip::file:///a.zip", "zip://x::s3://bucket/a.zip", "local:///etc/passwd"]
)
def test_detours_to_other_file_systems_are_refused(url: str) -> None:
    with pytest.raises(UnsupportedError):
        parse_address(url)


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("s3://bucket/raw/a.jpg", "s3://bucket/raw/"),
        ("s3://bucket/raw/a.jpg", "s3://bucket/raw"),
        ("s3://bucket/raw", "s3://bucket/raw/"),
        ("s3a://bucket/raw/a.jpg", "s3://bucket"),
        ("/data/x", "/"),
        ("file:///data/a%20b/x", "/data/a b"),
        ("https://example.com:443/x", "HTTPS://EXAMPLE.com/"),
    ],
)
def test_what_lies_below_a_prefix_is_allowed(url: str, prefix: str) -> None:
    allowed = parse_address(prefix)
    assert check_allowed(parse_address(url), [parse_address("gs://other"), allowed]) == allowed


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("s3://bucket/rawer/a.jpg", "s3://bucket/raw"),
        ("s3://bucket2/raw/a.jpg", "s3://bucket/raw"),
        ("s3://Bucket/raw/a.jpg", "s3://bucket/raw"),
        ("gs://bucket/raw/a.jpg", "s3://bucket/raw"),
        ("http://example.com/x", "https://example.com/"),
        ("HTTPS://example.com.evil.test/x", "https://example.com/"),
        ("https://example.com:8443/x", "https://example.com/"),
        ("/database/x", "/data"),
        ("/Data/x", "/data"),
    ],
)
def test_what_lies_elsewhere_is_refused_and_the_error_says_how_to_allow_it(
    url: str, prefix: str
) -> None:
    address = parse_address(url)
    with pytest.raises(PermissionDenied) as caught:
        check_allowed(address, [parse_address(prefix)])
    assert address.folder.url in str(caught.value)
    assert "--allow-outside" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pw@example.com/x?token=1#y", "https://example.com/x"),
        ("s3://key:pw@bucket/a?b", "s3://bucket/a?b"),
        ("abfss://box@account/x", "abfss://box@account/x"),
        ("/plain/path", "/plain/path"),
    ],
)
def test_messages_show_no_secrets(url: str, shown: str) -> None:
    assert hide_secrets(url) == shown


def test_by_default_nothing_may_be_read() -> None:
    outside = pickle.loads(pickle.dumps(Nothing()))
    with pytest.raises(PermissionDenied, match="allowed is nothing"):
        outside.stat("s3://bucket/x")
    with pytest.raises(PermissionDenied):
        outside.read("/etc/passwd", 0, 1)
