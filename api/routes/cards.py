"""Cards as answers: markdown as it was written, or HTML that is safe to show."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import xxhash
from fastapi import Query, Request, Response

from tensorrepo.api.content.cards import render_card
from tensorrepo.api.routes.conditional import PRIVATE, matches

CardFormat = Annotated[
    Literal["markdown", "html"],
    Query(alias="format", description="As it was written, or rendered and sanitized."),
]
# Opened by itself, too, nothing of a card runs or loads.
_POLICY: Final = "default-src 'none'; sandbox"
CARD_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/markdown": {}, "text/html": {}}, "description": "The card."}
}
_TYPES: Final = {"markdown": "text/markdown", "html": "text/html"}


def answer_card(request: Request, text: str, form: Literal["markdown", "html"]) -> Response:
    """`text`, which is markdown, in that form."""
    content = (render_card(text) if form == "html" else text).encode()
    etag = f'"{xxhash.xxh3_128_hexdigest(content)}"'
    headers = {"ETag": etag, "Cache-Control": PRIVATE, "Content-Security-Policy": _POLICY}
    if matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=_TYPES[form])
