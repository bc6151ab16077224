"""Every version of a stored format that was declared is read; a newer one is refused as such."""

from __future__ import annotations

import re

import pytest

from tensorrepo.repo.errors import UnsupportedError
from tests.support.architecture.sources import ROOT
from tests.support.golden.declared import DECLARED, DeclaredFormat
from tests.support.golden.others import GOLDEN, golden_files

each_format = pytest.mark.parametrize(
    "declared", DECLARED, ids=lambda one: f"{one.name}-{one.version}"
)


@each_format
def test_a_golden_file_of_each_declared_version_is_read(declared: DeclaredFormat) -> None:
    assert declared.read(declared.data) is not None


@each_format
def test_a_newer_version_is_refused_and_says_to_update(declared: DeclaredFormat) -> None:
    newer = declared.newer(declared.data)
    assert newer != declared.data
    with pytest.raises(UnsupportedError, match="Update"):
        declared.read(newer)


@each_format
def test_what_is_written_today_was_declared(declared: DeclaredFormat) -> None:
    versions = {one.version for one in DECLARED if one.name == declared.name}
    assert declared.written == max(versions)


def test_the_page_on_stability_has_every_declared_format() -> None:
    page = (ROOT / "docs/design/stability.md").read_text()
    rows = dict(re.findall(r"^\| ([a-zA-Z ]+) \| ([0-9, ]+) \| \{doc\}", page, re.MULTILINE))
    versions: dict[str, list[str]] = {}
    for one in DECLARED:
        versions.setdefault(one.name, []).append(str(one.version))
    assert rows == {name: ", ".join(found) for name, found in versions.items()}


@pytest.mark.parametrize("name", golden_files())
def test_a_golden_file_is_written_as_it_always_was(name: str) -> None:
    assert golden_files()[name] == (GOLDEN / name).read_bytes()
