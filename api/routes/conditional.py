"""Answers with an ETag, for clients that ask again and may have the newest already."""

from __future__ import annotations

from typing import Final

import xxhash
from fastapi import Request, Response
from pydantic import BaseModel

PRIVATE: Final = "private, no-cache"  # kept by the caller alone, who asks whether it is fresh


def answer_json(request: Request, body: BaseModel) -> Response:
    """`body` as JSON with a strong ETag; 304 where the caller has it."""
    content = body.__pydantic_serializer__.to_json(body)
    etag = f'"{xxhash.xxh3_128_hexdigest(content)}"'
    headers = {"ETag": etag, "Cache-Control": PRIVATE}
    if matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type="application/json")


def matches(header: str | None, etag: str) -> bool:
    """Whether a header of If-None-Match or If-Match names `etag`, whatever its strength."""
    if header is None:
        return False
    named = {one.strip().removeprefix("W/") for one in header.split(",")}
    return "*" in named or etag in named
