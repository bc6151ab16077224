"""Rendering of pages: templates, what each page gets, and the headers that it is sent with.

All text is escaped by the templates. Pages run no inline script or style, ask no other host for
anything and may not be framed: their content security policy says so.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup

from tensorrepo.api.access.callers import Caller
from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.content.cards import render_card
from tensorrepo.api.service import Service
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.tables import age_text, bounded_text, bytes_text, counted, moment_text

if TYPE_CHECKING:  # loaded beside the first answers
    from jinja2 import Environment

FOLDER: Final = Path(__file__).parent
STATIC: Final = FOLDER / "static"
SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "media-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": SECURITY_POLICY,
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PAUSE_SECONDS: Final = 0.01  # between two templates: requests get the interpreter meanwhile
FOREVER: Final = "private, max-age=31536000, immutable"  # what a digest names never changes
# Files of users: nothing in them may run, whatever a browser takes them for.
FILE_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class WebPage:
    """One request for a page: who asks, and how it is answered."""

    request: Request
    service: Service
    caller: Caller

    @property
    def is_fragment(self) -> bool:
        """Whether htmx asks for a part of the page, to put into one that is shown."""
        return self.request.headers.get("hx-request") == "true"

    @property
    def base_url(self) -> str:
        """Where clients reach the service, for commands that are shown."""
        return self.service.settings.public_url or str(self.request.base_url).rstrip("/")

    def static(self, name: str) -> str:
        """URL of a static file, with its version, so that it may be kept for ever."""
        return self.href("static", name, v=static_version(name))

    def csrf_field(self) -> Markup:
        """What each form sends back, so that no other site sends one."""
        return Markup('<input type="hidden" name="csrf" value="{}">').format(self.caller.csrf)

    def href(self, *segments: str, **query: object) -> str:
        """A URL of the service; `segments` are quoted but for their slashes, None is left out."""
        base = self.request.scope.get("root_path", "").rstrip("/")
        path = "".join(f"/{quote(one)}" for one in segments if one) or "/"
        kept = {name: value for name, value in query.items() if value not in (None, "", False)}
        return f"{base}{path}{'?' + urlencode(kept, doseq=True) if kept else ''}"

    def render(
        self, template: str, *, status: int = HTTPStatus.OK, **values: object
    ) -> HTMLResponse:
        """The answer that a template makes of `values`."""
        text = (
            templates()
            .get_template(template)
            .render(page=self, caller=self.caller, href=self.href, **values)
        )
        return HTMLResponse(text, status, HEADERS)

    def redirect(self, to: str) -> RedirectResponse:
        """After a form was taken: the page that shows what came of it."""
        return RedirectResponse(to, HTTPStatus.SEE_OTHER, HEADERS)


@dataclass(frozen=True, slots=True)
class RepositoryPage(WebPage):
    """The same, about a repository that the caller may enter."""

    access: RepositoryAccess = field(kw_only=True)

    def here(self, *segments: str, **query: object) -> str:
        """A URL below this repository: what follows ``/-/``."""
        return self.href(self.access.name, "-", *segments, **query)

    def render(
        self, template: str, *, status: int = HTTPStatus.OK, **values: object
    ) -> HTMLResponse:
        # Not `super()`: a dataclass with slots is another class than the one in this cell.
        return WebPage.render(
            self, template, status=status, access=self.access, here=self.here, **values
        )


@cache
def compile_templates() -> None:
    """Compile all templates, so that the first page of each kind does not wait for it.

    That takes about a second, for which whoever calls this has a thread of its own.
    """
    made = templates()
    for name in made.list_templates(extensions=["html"]):
        made.get_template(name)
        time.sleep(_PAUSE_SECONDS)


@cache
def templates() -> Environment:
    """The environment of all templates, made once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": bytes_text,
        "counted": counted,
        "bounded": bounded_text,
        "moment": moment_text,
        "ago": ago,
        "took": age_text,
        "short": short,
        "name": lambda author: author.partition(" <")[0],
        "svg": Markup,  # what `query.drawing` made, which escapes by itself
        "sanitized": Markup,  # what `content.cards` rendered, which leaves nothing that runs
        "card": lambda text: Markup(render_card(text)),  # noqa: S704  the same
    }
    return environment


def short(value: object) -> str:
    """A value in a few characters."""
    return f"{value:.6g}" if isinstance(value, float) else bounded_text(str(value), 40)


def ago(time_ns: int) -> Markup:
    """How long ago something was, with the moment itself for machines and as a title."""
    seconds = datetime.now(UTC).timestamp() - time_ns / 1e9
    moment = datetime.fromtimestamp(time_ns / 1e9, UTC)
    words = "just now" if seconds < 1 else f"{age_text(seconds)} ago"
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        moment.isoformat(timespec="seconds"), moment_text(time_ns), words
    )


@cache
def static_version(name: str) -> str:
    """Version of a static file: a digest of what is in it."""
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


def disposition(name: str, *, inline: bool) -> str:
    """The header that says whether a file is shown or saved, and what it is called."""
    plain = "".join(
        each if each.isascii() and (each.isalnum() or each in "._-") else "_" for each in name
    )
    return f'{"inline" if inline else "attachment"}; filename="{plain}"'
