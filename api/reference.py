"""Reference of the HTTP API as Markdown, made of its OpenAPI: docs/reference/rest.md.

Nothing in the page is written by hand: descriptions and examples stand beside the routes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from tensorrepo.api.app import create_app
from tensorrepo.api.settings import make_settings

COMMAND: Final = "make reference"
_HEAD: Final = f"""\
# HTTP API

All routes of `tensorrepo serve`, as its OpenAPI (`/api/v1/openapi.json`) tells them. Every request
but those of the service's health carries a token: `Authorization: Bearer trp_...`. What goes wrong
is answered as problem+json with a `kind` ({{doc}}`errors`). Lists come in pages: `next` of one is
the `cursor` of the page that follows. Answers with an `ETag` take `If-None-Match`.

This page is made by `{COMMAND}`.
"""
_REPOSITORY: Final = "team/photos"
_PLACES: Final = {
    "repository": _REPOSITORY, "space": "datasets", "path": "digits", "name": "net",
    "revision": "main",
}  # fmt: skip


def reference(openapi: Mapping[str, Any]) -> str:
    """The page of an OpenAPI document."""
    by_tag: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["service"])[0]
            by_tag.setdefault(tag, []).append((path, method, operation))
    lines = [_HEAD]
    for tag in sorted(by_tag):
        lines += [f"## {tag.capitalize()}", ""]
        for path, method, operation in sorted(by_tag[tag], key=lambda each: each[:2]):
            lines += _operation(path, method, operation, openapi)
    lines += ["## Answers and bodies", ""]
    for name, schema in sorted(openapi["components"]["schemas"].items()):
        lines += _schema(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def write_reference(page: Path) -> None:
    """Write the page of this version's API."""
    app = create_app(make_settings(data=Path("nowhere")))
    page.write_text(reference(app.openapi()), "utf-8")


def _operation(
    path: str, method: str, operation: Mapping[str, Any], openapi: Mapping[str, Any]
) -> Iterator[str]:
    yield from (f"### `{method.upper()} {path}`", "")
    summary = f"**{operation.get('summary', '')}.** "
    yield from (summary + _text(operation.get("description", "")), "")
    parameters = operation.get("parameters", [])
    if parameters:
        yield from ("| parameter | in | type | what |", "|---|---|---|---|")
        for each in parameters:
            needed = " (needed)" if each.get("required") and each["in"] != "path" else ""
            what = _cell(each.get("description", "") + needed)
            yield f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} | {what} |"
        yield ""
    body = _content(operation.get("requestBody", {}))
    if body:
        yield from (f"Body: {body}.", "")
    answers = [
        f"{status}: {_content(answer) or _text(answer.get('description', ''))}"
        for status, answer in operation["responses"].items()
        if status != "default"
    ]
    yield from (f"Answers {'; '.join(answers)}.", "")
    yield from ("```", *_example(path, method, operation, openapi), "```", "")


def _example(
    path: str, method: str, operation: Mapping[str, Any], openapi: Mapping[str, Any]
) -> Iterator[str]:
    """A request, of the examples that stand with its parameters and its body."""
    parameters = operation.get("parameters", [])
    query = {
        each["name"]: _example_of(each)
        for each in parameters
        if each["in"] == "query" and (_example_of(each) is not None)
    }
    for each in parameters:
        if each["in"] == "path":
            value = str(_example_of(each) or _PLACES.get(each["name"], "1"))
            path = path.replace(f"{{{each['name']}}}", quote(value))
    yield f"{method.upper()} {path}" + (f"?{urlencode(query)}" if query else "")
    schema = _resolved(_body_schema(operation), openapi)
    fields = {
        name: field["examples"][0]
        for name, field in schema.get("properties", {}).items()
        if field.get("examples")
    }
    if fields:
        shown = ", ".join(f'"{name}": "{value}"' for name, value in fields.items())
        yield f"{{{shown}}}"


def _example_of(parameter: Mapping[str, Any]) -> Any:
    schema = parameter.get("schema", {})
    found = schema.get("examples") or parameter.get("examples")
    return found[0] if isinstance(found, list) and found else None


def _body_schema(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    content = operation.get("requestBody", {}).get("content", {})
    return next((each.get("schema", {}) for each in content.values()), {})


def _resolved(schema: Mapping[str, Any], openapi: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    found: Mapping[str, Any] = openapi["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def _content(part: Mapping[str, Any]) -> str:
    kinds = part.get("content", {})
    told = (
        _type(each.get("schema", {})) if kind.endswith("json") else f"`{kind}`"
        for kind, each in kinds.items()
    )
    return ", ".join(filter(None, told))


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### {_title(name)}", "", _text(schema.get("description", "")), "")
    fields = schema.get("properties", {})
    if not fields:
        return
    needed = set(schema.get("required", ()))
    yield from ("| field | type | what |", "|---|---|---|")
    for field, each in fields.items():
        star = "" if field in needed else "?"
        yield f"| `{field}`{star} | {_type(each)} | {_cell(each.get('description', ''))} |"
    yield ""


def _type(schema: Mapping[str, Any]) -> str:
    """A type in words."""
    if "$ref" in schema:
        return f"*{_title(schema['$ref'].rpartition('/')[2])}*"
    for together in ("anyOf", "oneOf"):
        if together in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[together]))
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("format") or kind) if kind == "string" else str(kind)


def _title(name: str) -> str:
    return re.sub(r"_(\w+)_$", r" of \1", name)


def _text(words: str) -> str:
    return " ".join(words.split())


def _cell(words: str) -> str:
    return _text(words).replace("|", "\\|")
