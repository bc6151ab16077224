"""The project's text: which files there are, and the code blocks and headings of a page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.architecture.sources import LAYERS, ROOT

FOLDERS = (*LAYERS, "tests", "docs", "benchmarks", "examples", ".ci")
SUFFIXES = {"", ".py", ".md", ".toml", ".txt", ".json", ".cfg", ".yml", ".yaml", ".sh"}
_GENERATED = {"__pycache__", "_build", "build", "golden"}
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the line on which the text begins."""

    language: str
    text: str
    line: int


@cache
def text_files() -> tuple[Path, ...]:
    """Every file of ours that holds text, but for golden files and what was built."""
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    files = [*ROOT.iterdir(), *inside]
    return tuple(
        sorted(
            path
            for path in files
            if path.is_file()
            and path.suffix in SUFFIXES
            and not path.name.startswith(".")
            and not _GENERATED & set(path.relative_to(ROOT).parts)
        )
    )


def pages() -> list[Path]:
    return [path for path in text_files() if path.suffix == ".md"]


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 2)
        for match in _FENCE.finditer(text)
    ]


@cache
def sections(page: Path) -> dict[str, str]:
    """The text under each heading, up to the next heading of any level."""
    parts = _HEADING.split(page.read_text("utf-8"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def headings(page: Path) -> list[str]:
    outside = _FENCE.sub("", page.read_text("utf-8"))
    return [heading.replace("`", "") for heading in _HEADING.findall(outside)]
