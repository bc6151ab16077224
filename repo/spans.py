"""How are many small ranges of one object read in few requests?

Ranges that lie side by side, or nearly so, are asked for together and cut apart afterwards. Each is
verified by its own tag, and each is cached by itself: another reader may want it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tensorrepo.repo.ids import Buffer
    from tensorrepo.repo.objects import Link, ObjectSource

GAP_BYTES: Final = 64 << 10  # what costs less to read along than to ask twice
REQUEST_BYTES: Final = 16 << 20


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


def joined(
    spans: Iterable[Span], *, gap_bytes: int = GAP_BYTES, most_bytes: int = REQUEST_BYTES
) -> Iterator[list[Span]]:
    """The spans in the order of their places, those together that one request should bring."""
    run: list[Span] = []
    stop = 0
    for span in sorted(spans):
        if run and (span.start > stop + gap_bytes or span.stop - run[0].start > most_bytes):
            yield run
            run = []
        stop = max(span.stop, stop) if run else span.stop
        run.append(span)
    if run:
        yield run
