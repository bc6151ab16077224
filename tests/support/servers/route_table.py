"""The table of a service's routes: every path and method, every spelling, and bodies that fit.

For proofs about all routes, those that nobody thought of included: a kind of route that this does
not know fails them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.routing import BaseRoute, Host, Mount, Route

from tensorrepo.api.app import create_app
from tensorrepo.api.settings import make_settings

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
_VALUES = {"repository": "team/photos", "space": "datasets"}
NAMESPACE = "photos"  # a repository as clients know it whose names have two segments
_OF_KIND = {"int": "1"}


@dataclass(frozen=True)
class TableRow:
    """One method of one route."""

    method: str
    path: str  # as it was declared
    route: BaseRoute

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def url(self) -> str:
        """A path that it answers, of a repository that there is."""
        return _PARAMETER.sub(_value, self.path)

    @property
    def is_of_repository(self) -> bool:
        return "{repository" in self.path


def _value(match: re.Match[str]) -> str:
    if match[1] == "repository" and match[2] == "namespace":
        return NAMESPACE
    return _VALUES.get(match[1], _OF_KIND.get(match[2] or "", "a"))


@cache
def whole_app() -> FastAPI:
    """The application, which is never started: only to look at.

    One for all tests: to build its routes and its OpenAPI takes half a second each.
    """
    return create_app(make_settings(data=Path("/nonexistent")))


def route_table(app: FastAPI) -> list[TableRow]:
    """All routes, those of mounts and of included routers too."""
    return [
        TableRow(method, prefix + path, route)
        for prefix, path, route in _walk(app.routes)
        for method in sorted(getattr(route, "methods", None) or METHODS)
    ]


def _walk(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str, BaseRoute]]:
    for route in routes:
        if isinstance(route, (Mount, Host)):
            at = getattr(route, "path", "")
            yield prefix, f"{at}/a", route
            yield from _walk(route.routes, prefix + at)
        elif isinstance(route, Route):  # asked for nothing else, or a deferred one is built
            yield prefix, route.path, route
        else:
            inner = getattr(route, "original_router", None)  # FastAPI's included routers
            assert inner is not None, f"the table does not know this kind: {route!r}"
            yield from _walk(inner.routes, prefix)


def spellings(path: str) -> dict[str, str]:
    """Other ways of writing a path."""
    head, _, last = path.rpartition("/")
    return {
        "as it is": path,
        "slash behind": f"{path}/",
        "slashes before": f"//{path.lstrip('/')}",
        "slashes within": path.replace("/", "//"),
        "upper case": path.upper(),
        "title case": path.title(),
        "escaped slash": f"{head}%2F{last}" if head else f"/%2F{last}",
        "all slashes escaped": "/" + path[1:].replace("/", "%2F"),
        "escaped letter": f"{head}/%{ord(last[0]):02X}{last[1:]}" if last else path,
        "dot": f"{head}/./{last}",
        "dots": f"/health/..{path}",
        "semicolon": f"{path};a=b",
        "question": f"{path}?a=b",
        "nul": f"{path}%00",
        "backslash": f"{head or '/'}%5C{last}",
    }


def fitting_query(app: FastAPI, row: TableRow) -> dict[str, str]:
    """The parameters that a route asks for behind its path."""
    asked = _described(app, row).get("parameters", ())
    return {one["name"]: "a" for one in asked if one["in"] == "query" and one["required"]}


def fitting_body(app: FastAPI, row: TableRow) -> Any:
    """A body that the schema of a route takes; None where it takes none."""
    content = _described(app, row).get("requestBody", {}).get("content", {}).get("application/json")
    return None if content is None else _fit(content["schema"], app.openapi())


def _described(app: FastAPI, row: TableRow) -> dict[str, Any]:
    paths = app.openapi()["paths"]
    found: dict[str, Any] = paths.get(_PARAMETER.sub(r"{\1}", row.path), {})
    described: dict[str, Any] = found.get(row.method.lower(), {})
    return described


def _fit(schema: dict[str, Any], whole: dict[str, Any]) -> Any:
    if "$ref" in schema:
        return _fit(whole["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]], whole)
    for key, value in (("examples", None), ("enum", None)):
        if schema.get(key, value):
            return schema[key][0]
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return _fit(schema["anyOf"][0], whole)
    return _of_type(schema, whole)


def _of_type(schema: dict[str, Any], whole: dict[str, Any]) -> Any:
    kind = schema.get("type", "object")
    if kind == "object":
        members = schema.get("properties", {})
        return {name: _fit(members[name], whole) for name in schema.get("required", ())}
    if kind == "string":
        return "read" if "pattern" in schema else "a" * max(1, schema.get("minLength", 1))
    plain = {"integer": schema.get("minimum", 1), "number": 1.0, "boolean": False, "array": []}
    return plain[kind]
