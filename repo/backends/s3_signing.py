"""Signed URLs of S3, bound to headers: whoever uses one sends exactly these.

A signed URL alone is good for a method and a key. With `Range` among what is signed it is good for
one range; with the length and the checksum of a body, for this body.

Source:
    AWS, "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

_PREFIX: Final = "X-Amz-"


def bound_to(url: str, method: str, headers: Mapping[str, str], secret_key: str) -> str:
    """`url`, signed anew so that it is good with these headers alone.

    Args:
        url: signed for `method`, without further headers.
        method: such as GET.
        headers: that a request has to have, beside `Host`.
        secret_key: what `url` was signed with.
    """
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    query.pop(f"{_PREFIX}Signature", None)
    signed = {"host": parts.netloc} | {
        name.lower(): " ".join(value.split()) for name, value in headers.items()
    }
    query[f"{_PREFIX}SignedHeaders"] = ";".join(sorted(signed))
    asked = "&".join(f"{_escaped(name)}={_escaped(query[name])}" for name in sorted(query))
    lines = [
        method,
        parts.path or "/",
        asked,
        *(f"{name}:{signed[name]}" for name in sorted(signed)),
        "",
        query[f"{_PREFIX}SignedHeaders"],
        "UNSIGNED-PAYLOAD",
    ]
    signature = _signature("\n".join(lines), query, secret_key)
    return urlunsplit(parts._replace(query=f"{asked}&{_PREFIX}Signature={signature}"))


def _signature(request: str, query: Mapping[str, str], secret_key: str) -> str:
    _, *scope = query[f"{_PREFIX}Credential"].split("/")
    key = f"AWS4{secret_key}".encode()
    for part in scope:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    hashed = hashlib.sha256(request.encode()).hexdigest()
    algorithm, date = query[f"{_PREFIX}Algorithm"], query[f"{_PREFIX}Date"]
    told = f"{algorithm}\n{date}\n{'/'.join(scope)}\n{hashed}"
    return hmac.new(key, told.encode(), hashlib.sha256).hexdigest()


def _escaped(text: str) -> str:
    return quote(text, safe="-_.~")
