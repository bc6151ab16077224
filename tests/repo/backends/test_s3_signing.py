"""Signed URLs of S3 that are bound to headers, beside what AWS's own library signs."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import obstore
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from obstore.store import S3Store

from tensorrepo.repo.backends.s3_signing import bound_to

KEY, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "to/ken+="


def _signed(method: str, token: str | None, key: str = "objects/ab/cd") -> str:
    config = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "eu-west-1"}
    config |= {} if token is None else {"session_token": token}
    store = S3Store("bucket", config=config)  # type: ignore[arg-type]
    life = timedelta(seconds=900)
    return str(obstore.sign(store, method, key, expires_in=life))  # type: ignore[arg-type]


def _of_botocore(url: str, method: str, headers: dict[str, str], token: str | None) -> str:
    query = parse_qs(urlsplit(url).query)
    request = AWSRequest(method, url.partition("?")[0], headers=headers)
    request.context["timestamp"] = query["X-Amz-Date"][0]
    auth = S3SigV4QueryAuth(Credentials(KEY, SECRET, token), "s3", "eu-west-1", expires=900)
    auth._modify_request_before_signing(request)
    string = auth.string_to_sign(request, auth.canonical_request(request))
    return str(auth.signature(string, request))


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {}),
        ("GET", {"Range": "bytes=7-1048575"}),
        ("PUT", {"Content-Length": "2097200", "x-amz-checksum-sha256": "3q2+7w=="}),
    ],
)
def test_it_is_signed_as_aws_signs(method: str, headers: dict[str, str], token: str | None) -> None:
    url = _signed(method, token)
    bound = parse_qs(urlsplit(bound_to(url, method, headers, SECRET)).query)
    assert bound["X-Amz-Signature"] == [_of_botocore(url, method, headers, token)]


@pytest.mark.parametrize("key", ["objects/ab/cd", "a b/c+d", "a/%25"])
def test_without_headers_it_is_the_url_that_it_was(key: str) -> None:
    url = _signed("GET", TOKEN, key)
    assert parse_qs(urlsplit(bound_to(url, "GET", {}, SECRET)).query) == parse_qs(
        urlsplit(url).query
    )
