"""Moments are read as people type them, and nothing else is guessed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.changes.moments import moment_text, parse_moment
from tensorrepo.repo.errors import InvalidInputError

NOW = 1_774_958_400 * 10**9  # 2026-03-31 12:00:00 UTC


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", "2026-03-31 12:00:00 UTC"),
        ("today", "2026-03-31 00:00:00 UTC"),
        ("Yesterday", "2026-03-30 12:00:00 UTC"),
        ("3 days ago", "2026-03-28 12:00:00 UTC"),
        ("90.minutes.ago", "2026-03-31 10:30:00 UTC"),
        ("an hour ago", "2026-03-31 11:00:00 UTC"),
        ("last week", "2026-03-24 12:00:00 UTC"),
        ("1 month ago", "2026-02-28 12:00:00 UTC"),
        ("13 months ago", "2025-02-28 12:00:00 UTC"),
        ("2 years ago", "2024-03-31 12:00:00 UTC"),
        ("2026-01-02", "2026-01-02 00:00:00 UTC"),
        ("2026-01-02 03:04", "2026-01-02 03:04:00 UTC"),
        ("2026-01-02T03:04:05+02:00", "2026-01-02 01:04:05 UTC"),
    ],
)
def test_a_moment_is_what_people_mean_by_it(text: str, moment: str) -> None:
    assert moment_text(parse_moment(text, now_ns=NOW)) == moment


def test_a_date_alone_ends_with_its_day() -> None:
    assert moment_text(parse_moment("2026-01-02", now_ns=NOW, ends=True)).startswith(
        "2026-01-02 23"
    )


@pytest.mark.parametrize(
    "text", ["", "soon", "3 days", "-1 days ago", "2026-13-01", "999999999 years ago", "x" * 500]
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="no moment"):
        parse_moment(text, now_ns=NOW)


@given(st.text(max_size=30))
def test_any_text_is_a_moment_or_refused(text: str) -> None:
    with suppress(InvalidInputError):
        assert isinstance(parse_moment(text, now_ns=NOW), int)
