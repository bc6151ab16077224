"""Errors as pages: for whoever asked for a page, in the words of the error, with what to do."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tensorrepo.api.access.callers import NOBODY, Caller
from tensorrepo.api.errors import (
    HTTP_STATUSES,
    answer_bug,
    answer_error,
    answer_http,
    answer_invalid,
    told,
)
from tensorrepo.api.pages.rendering import HEADERS, WebPage
from tensorrepo.api.requests import CALLER
from tensorrepo.repo.errors import Error, UnauthenticatedError

_NOT_PAGES: Final = ("/api/", "/cas/", "/v2/", "/health", "/metrics", "/static/")
_TITLES: Final = {
    HTTPStatus.BAD_REQUEST: "That cannot be done",
    HTTPStatus.FORBIDDEN: "Not for you",
    HTTPStatus.NOT_FOUND: "Nothing is here",
    HTTPStatus.METHOD_NOT_ALLOWED: "That cannot be done here",
    HTTPStatus.CONFLICT: "Somebody was faster",
    HTTPStatus.GONE: "It is gone",
    HTTPStatus.TOO_MANY_REQUESTS: "Too much at once",
    HTTPStatus.SERVICE_UNAVAILABLE: "The storage does not answer",
}


def is_for_page(request: Request) -> bool:
    """Whether an answer is looked at by a person, rather than by a program."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    if path.startswith(_NOT_PAGES) or path == "/api":
        return False
    return "text/html" in request.headers.get("accept", "") or "hx-request" in request.headers


async def page_error(request: Request, error: Exception) -> Response:
    """One of our errors; who is not known is asked to sign in first."""
    if not is_for_page(request):
        return answer_error(request, error)
    assert isinstance(error, Error), "registered for these alone"
    if isinstance(error, UnauthenticatedError):
        return _sign_in(request)
    return _error_page(request, HTTP_STATUSES[error.kind], error.kind, told(request, error))


async def page_invalid(request: Request, error: Exception) -> Response:
    """A request whose query or form is not as expected."""
    if not is_for_page(request):
        return answer_invalid(request, error)
    assert isinstance(error, RequestValidationError), "registered for these alone"
    words = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors()[:5])
    return _error_page(request, HTTPStatus.BAD_REQUEST, "invalid-input", words)


async def page_http(request: Request, error: Exception) -> Response:
    """What the framework refuses: no such page."""
    if not is_for_page(request):
        return answer_http(request, error)
    assert isinstance(error, HTTPException), "registered for these alone"
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND:
        if (there := _without_slash(request)) is not None:
            return RedirectResponse(there, HTTPStatus.PERMANENT_REDIRECT, HEADERS)
        detail = "There is no such page. Follow a link, or begin at the list of repositories."
    return _error_page(request, error.status_code, "", detail)


async def page_bug(request: Request, error: Exception) -> Response:
    """What should never happen: the log has the details, the page only its id."""
    answer = answer_bug(request, error)
    if not is_for_page(request):
        return answer
    words = "The service failed unexpectedly; its log tells more under this request's id."
    return _error_page(request, HTTPStatus.INTERNAL_SERVER_ERROR, "error", words)


def install_page_errors(app: FastAPI) -> None:
    """Let `app` answer failures as pages where a page was asked for, else as before."""
    app.add_exception_handler(Error, page_error)
    app.add_exception_handler(RequestValidationError, page_invalid)
    app.add_exception_handler(HTTPException, page_http)
    app.add_exception_handler(Exception, page_bug)


def _error_page(request: Request, status: int, kind: str, detail: str) -> HTMLResponse:
    caller: Caller = request.scope.get(CALLER, NOBODY)
    page = WebPage(request, request.app.state.service, caller)
    template = "_error.html" if page.is_fragment else "error.html"
    title = _TITLES.get(HTTPStatus(status), HTTPStatus(status).phrase)
    request_id = request.scope.get("request_id", "")
    # htmx swaps errors as well: see `responseHandling` in base.html.
    base = request.scope.get("root_path", "").rstrip("/")
    repository, dash, _ = request.url.path.removeprefix(base).strip("/").partition("/-/")
    return page.render(
        template,
        status=status,
        title=title,
        kind=kind,
        detail=detail,
        request_id=request_id,
        repository=repository if dash else "",
    )


def _without_slash(request: Request) -> str | None:
    """The page that a path with a slash at its end means; None: it has none."""
    base = request.scope.get("root_path", "").rstrip("/")
    path = request.url.path.removeprefix(base)
    page = path.strip("/")  # at its beginning, too: `//name` would be another host
    if request.method not in {"GET", "HEAD"} or not path.endswith("/") or not page:
        return None
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{base}/{quote(page)}{query}"


def _sign_in(request: Request) -> Response:
    base = request.scope.get("root_path", "").rstrip("/")
    path = request.url.path.removeprefix(base)
    following = f"{path}?{request.url.query}" if request.url.query else path
    wanted = following if request.method == "GET" and "hx-request" not in request.headers else "/"
    to = f"{base}/login" + (f"?next={quote(wanted, safe='')}" if wanted != "/" else "")
    if "hx-request" in request.headers:
        return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={**HEADERS, "HX-Redirect": to})
    return RedirectResponse(to, HTTPStatus.SEE_OTHER, HEADERS)
