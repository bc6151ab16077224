"""Range coalescing: many small byte ranges read in few requests.

Ranges that lie side by side, or nearly so, are asked for together and cut apart afterwards, because
a request costs about as much as the bytes between them; no request is larger than one usefully is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects import Link, ObjectSource

GAP_BYTES: Final = 64 << 10  # what costs less to read along than to ask twice
REQUEST_BYTES: Final = 16 << 20


class JoinedRange(NamedTuple):
    """Bytes ``[start, stop)`` that one request brings.

    Attributes:
        start: first byte.
        stop: first byte behind it.
        members: positions of the ranges that lie in it, among those given, by start.
    """

    start: int
    stop: int
    members: list[int]


def join_ranges(
    ranges: Sequence[tuple[int, int]],
    *,
    gap_bytes: int = GAP_BYTES,
    most_bytes: int = REQUEST_BYTES,
) -> list[JoinedRange]:
    """Cover byte ranges by fewer, larger ones.

    Args:
        ranges: ``(start, stop)`` of each, half-open, in any order.
        gap_bytes: most bytes between two ranges that are joined.
        most_bytes: most bytes of a joined range; a single range that is larger stays whole.

    Returns:
        The joined ranges, ascending by start; each range is a member of exactly one.
    """
    joined: list[JoinedRange] = []
    for position in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, stop = ranges[position]
        if joined:
            last = joined[-1]
            most_stop = max(stop, last.stop)
            if start <= last.stop + gap_bytes and most_stop - last.start <= most_bytes:
                last.members.append(position)
                joined[-1] = JoinedRange(last.start, most_stop, last.members)
                continue
        joined.append(JoinedRange(start, stop, [position]))
    return joined


def split_range(start: int, stop: int, most_bytes: int = REQUEST_BYTES) -> list[tuple[int, int]]:
    """``[start, stop)`` in parts of at most `most_bytes`, which are read side by side."""
    return [(at, min(stop, at + most_bytes)) for at in range(start, stop, most_bytes)]


class Span(NamedTuple):
    """Payload bytes ``[start, stop)``, whose `content_tag` is `tag`."""

    start: int
    stop: int
    tag: bytes


@runtime_checkable
class ReadsSpans(Protocol):
    """A source that joins ranges by itself."""

    def read_spans(self, link: Link, spans: Sequence[Span]) -> list[Buffer]:
        """The bytes of each span, verified; raises CorruptError as `read_checked`."""
        ...


def read_spans(objects: ObjectSource, link: Link, spans: Sequence[Span]) -> list[Buffer]:
    """The bytes of each span of an object, verified, in few requests where the source can."""
    if isinstance(objects, ReadsSpans):
        return objects.read_spans(link, spans)
    return [objects.read_checked(link, *span) for span in spans]
