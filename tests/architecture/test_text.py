"""What the project's files say, and what they must not mention."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.architecture.pages import headings, pages, text_files
from tests.support.architecture.rules import dangling_descriptions
from tests.support.architecture.sources import ROOT, sources

# Hosts that our text may name. A package registry's is not among them: clients know their own.
HOSTS = {
    "127.0.0.1",
    "data.example.org",
    "evil.example",
    "example.com",
    "example.org",
    "example.org.example.com",  # of a host that begins as another one
    "example.test",
    "git-lfs.github.com",  # first line of a pointer
    "github.com",
    "host",
    "keepachangelog.com",
    "localhost",
    "login.example.org",
    "models.example.org",
    "s3.amazonaws.com",
    "semver.org",
    "storage.azure.com",  # what a token of Azure is for
    "tensorrepo.readthedocs.io",
    "www.apache.org",
    "www.example.org",
    "www.googleapis.com",  # what a token of Google is for
    "www.w3.org",  # the name of SVG
}
_HOST = re.compile(r"https?://(?:[^/\s@'\"]*@)?([A-Za-z0-9.-]+)")
# Folders of the machines on which the project is written: nothing of it may need them.
_OUTSIDE = re.compile(
    r"(?<![\w.~-])/" + r"(?:work|farm)/|\.\./" + r"shared\b|\b" + r"shared/(?:design|ref)"
)
_PAGE = re.compile(r"docs/[\w/-]+\.md")
_SECTIONS = re.compile(
    r"(docs/[\w/-]+\.md),?\s+(?:sections?\s+)((?:\"[^\"]+\"(?:,\s+|\s+and\s+)?)+)"
)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def _lines(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Lines of files of ours in which a pattern is found; most files are searched as a whole."""
    for path in text_files():
        text = path.read_text("utf-8")
        if not pattern.search(text):
            continue
        name = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                yield f"{name}:{number}", line


def test_no_file_names_a_host_that_is_not_listed() -> None:
    found = [
        f"{place}: {host}"
        for place, line in _lines(_HOST)
        for host in _HOST.findall(line)
        if host.rstrip(".") not in HOSTS
    ]
    assert found == []


def test_no_file_names_a_folder_outside_the_project() -> None:
    assert [f"{place}: {line}" for place, line in _lines(_OUTSIDE)] == []


@pytest.mark.parametrize(
    "text", ["see /" + "work/x", "../" + "shared/x", "shared" + "/design/x.md"]
)
def test_a_folder_outside_the_project_is_recognised(text: str) -> None:
    assert _OUTSIDE.search(text)


def test_every_argument_is_described_by_a_phrase_that_stands_alone() -> None:
    found = [finding for source in sources() for finding in dangling_descriptions(source)]
    assert found == []


def test_no_unfinished_mark_is_left() -> None:
    marks = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    found = [(place, line) for place, line in _lines(marks) if ".py:" in place]
    assert [f"{place}: {line.strip()}" for place, line in found] == []


def test_every_page_that_a_source_names_exists() -> None:
    named = {
        f"{source.path}: {page}"
        for source in sources()
        for page in _PAGE.findall(source.text)
        if not (ROOT / page).is_file()
    }
    assert named == set()


def test_every_section_that_a_source_names_exists() -> None:
    missing = [
        f"{source.path}: {page} has no section {section!r}"
        for source in sources()
        for page, quoted in _SECTIONS.findall(source.text)
        if (ROOT / page).is_file()
        for section in re.findall(r'"([^"]+)"', quoted)
        if not any(heading.lower() == section.lower() for heading in headings(ROOT / page))
    ]
    assert missing == []


def test_every_link_from_page_to_page_leads_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages()
        for target in _LINK.findall(page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []
