"""The guide of questions shows what they answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.architecture.answers import answered, unchanging
from tests.support.architecture.pages import headings
from tests.support.architecture.sources import ROOT

if TYPE_CHECKING:
    import pytest

PAGE = ROOT / "docs/guides/questions.md"


def test_every_question_is_answered_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # The script is that of pytest, whose checkout may be clean or not: the page's lies in none.
    monkeypatch.delattr("__main__.__file__", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TENSORREPO_AUTHOR", "Ada <ada@example.org>")
    text = PAGE.read_text("utf-8")
    assert unchanging(answered(text)) == unchanging(text)


def test_there_are_thirty_questions_or_more() -> None:
    assert sum(heading[:1].isdigit() for heading in headings(PAGE)) >= 30
