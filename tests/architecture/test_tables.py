"""Every kind of error has an exit code, an HTTP status and a line in the reference."""

from __future__ import annotations

import ast
import importlib
import re

import pytest

from tensorrepo.api.errors import HTTP_STATUSES
from tensorrepo.cli.exit_codes import EXIT_CODES, exit_code
from tensorrepo.repo.errors import NotFoundError, error_classes
from tests.support.architecture.sources import ROOT, Source, dotted, sources

ROW = re.compile(r"^\| `(?P<name>\w+)` \| `(?P<kind>[\w-]+)` \| (?P<exit>\d+) \| (?P<http>\d+) \|")


def _bases(source: Source) -> set[str]:
    """The last names of what the classes of a module are classes of."""
    classes = (node for node in source.nodes if isinstance(node, ast.ClassDef))
    return {dotted(base).rsplit(".", 1)[-1] for node in classes for base in node.bases}


def _kinds() -> dict[str, set[str]]:
    # A class is only known once its module is loaded: load whoever defines one.
    for source in sources():
        if _bases(source) & {"Error", *(each.__name__ for each in error_classes())}:
            importlib.import_module(source.module)
    kinds: dict[str, set[str]] = {}
    for each in error_classes():
        kinds.setdefault(each.kind, set()).add(each.__name__)
    return kinds


@pytest.mark.parametrize("table", [EXIT_CODES, HTTP_STATUSES], ids=["exit codes", "HTTP"])
def test_a_table_maps_every_kind_and_no_other(table: dict[str, int]) -> None:
    assert set(table) == set(_kinds())


def test_every_class_of_error_has_a_kind_of_its_own() -> None:
    assert {kind: names for kind, names in _kinds().items() if len(names) > 1} == {}


def test_the_reference_shows_both_tables_as_they_are() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text("utf-8").splitlines()
    rows = {m["kind"]: m.groupdict() for line in page if (m := ROW.match(line))}
    assert {kind: int(row["exit"]) for kind, row in rows.items()} == dict(EXIT_CODES)
    assert {kind: int(row["http"]) for kind, row in rows.items()} == dict(HTTP_STATUSES)
    assert {kind: {row["name"]} for kind, row in rows.items()} == _kinds()


def test_an_error_ends_the_command_with_the_code_of_its_kind() -> None:
    assert exit_code(NotFoundError("no branch of that name")) == 3
