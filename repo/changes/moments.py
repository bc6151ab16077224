"""Moments as people type them: a date, a date with a time, ``yesterday``, ``3 days ago``.

A closed grammar, by intent: parsers that guess read a typing mistake as some moment, and what it
names may be trained on. What names no time zone is UTC, as everything that is printed.
"""

from __future__ import annotations

import calendar
import re
from datetime import UTC, datetime, timedelta

from tensorrepo.repo.errors import InvalidInputError

_AGO = re.compile(
    r"(?P<count>\d{1,9}|an?)[ .]+(?P<unit>second|minute|hour|day|week|month|year)s?[ .]+ago"
    r"|last[ .]+(?P<last>week|month|year)",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_UNITS = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_SPAN = re.compile(r"(?P<count>[0-9]{1,9})(?P<unit>[smhdw])")
_SPAN_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_moment(text: str, *, now_ns: int, ends: bool = False) -> int:
    """The moment that `text` names, as UTC in ns.

    A date alone is its first moment, or with `ends` its last one.

    Args:
        text: ``2026-11-01``, ``2026-11-01 12:00`` (with a zone or without), ``now``, ``today``,
            ``yesterday`` (a day ago), ``3 days ago``, ``last week``.
        now_ns: UTC in ns, from which the others count.
        ends: whether the end of a period is asked for.

    Raises:
        InvalidInputError: none of these.
    """
    given, now = text.strip(), _EPOCH + timedelta(microseconds=now_ns // 1000)
    try:
        return _nanoseconds(_moment(given, now, ends=ends))
    except (ValueError, OverflowError):
        raise InvalidInputError(
            f"{text!r:.80} is no moment: expected a date such as 2026-11-01 or '2026-11-01 12:00' "
            "(UTC where no zone is given), 'yesterday' or '3 days ago'"
        ) from None


def parse_span(text: str) -> float:
    """Seconds of a span of time: ``90s``, ``30m``, ``12h``, ``30d`` or ``2w``.

    Raises:
        InvalidInputError: none of these.
    """
    if (span := _SPAN.fullmatch(text.strip())) is None:
        raise InvalidInputError(
            f"{text!r:.80} is no span of time: expected a number and one of s, m, h, d, w, as in "
            "90s, 12h or 30d"
        )
    return float(span["count"]) * _SPAN_SECONDS[span["unit"]]


def moment_text(time_ns: int) -> str:
    """A moment for people, in UTC."""
    moment = _EPOCH + timedelta(microseconds=time_ns // 1000)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _moment(text: str, now: datetime, *, ends: bool) -> datetime:
    match text.lower():
        case "now":
            return now
        case "today":
            return now.replace(hour=0, minute=0, second=0, microsecond=0)
        case "yesterday":
            return now - timedelta(days=1)
    if (ago := _AGO.fullmatch(text)) is not None:
        count = ago["count"] or "a"
        return _back(
            now, int(count) if count.isdigit() else 1, (ago["unit"] or ago["last"]).lower()
        )
    moment = datetime.fromisoformat(text)
    if ends and _DATE.fullmatch(text):
        moment += timedelta(days=1, microseconds=-1)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _back(now: datetime, count: int, unit: str) -> datetime:
    if unit in _UNITS:
        return now - count * _UNITS[unit]
    months = now.year * 12 + now.month - 1 - count * (12 if unit == "year" else 1)
    year, month = months // 12, months % 12 + 1
    # A month ago on the 31st is the last day of a month that has fewer.
    return now.replace(
        year=year, month=month, day=min(now.day, calendar.monthrange(year, month)[1])
    )


def _nanoseconds(moment: datetime) -> int:
    since = moment - _EPOCH
    return (since // timedelta(microseconds=1)) * 1000
