"""A long `add` of a dataset that goes on where an earlier one was cut off.

After every stretch what is stored so far is made durable, kept by the lease of the staging area and
noted in the workspace. The same command on the same files then goes on behind it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tensorrepo.formats.codecs.choice import parse_codec
from tensorrepo.formats.dataset.columns.schema import ClassLabel, Schema
from tensorrepo.formats.dataset.evolve import add_lineage
from tensorrepo.formats.dataset.ingest import CHECKPOINT_BYTES, ingest
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.origins import edge_of_reading
from tensorrepo.repo.ids import content_tag
from tensorrepo.repo.workspace import Unfinished, describe_files
from tensorrepo.workspace.staging import held, keep_alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorrepo.formats.dataset.columns.lenient import Misfits
    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.formats.exchange.base import Reading
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import Link
    from tensorrepo.repo.writer import ObjectWriter
    from tensorrepo.workspace.request import Request
    from tensorrepo.workspace.session import Session


def ingest_dataset(
    session: Session,
    request: Request,
    reading: Reading,
    writer: ObjectWriter,
    base: Dataset | None,
    misfits: Misfits,
    progress: Callable[[int], None],
    since: int,
) -> tuple[Link, int, int]:
    """Store what was opened, behind `base` if there is one.

    Returns:
        The root, how many rows an earlier run had stored, and where the log stood before any of it
        was: `since`, where this run did all.
    """
    source = _fingerprint(request) if reading.bytes >= CHECKPOINT_BYTES else ""
    known = _gone_on(session, request, source, base)
    if known is not None and known.generation is not None:
        since = min(since, known.generation)

    def checkpoint(link: Link, rows: int) -> None:
        if source:
            writer.flush()
            told = rows, misfits.skipped, misfits.nulled, since
            _note(session, request, Unfinished(source, _digest(base), link.digest, *told))

    if known:
        misfits.skipped, misfits.nulled = known.skipped, known.nulled
    link = ingest(
        writer,
        reading.schema if base is None else _schema_to_append(base, reading.schema),
        reading.batches,
        checkpoint,
        base=open_dataset(writer, known.root) if known else base,
        skip_rows=known.rows if known else 0,
        checkpoint_bytes=CHECKPOINT_BYTES,
        misfits=misfits,
        progress=lambda _, done: progress(done),
        codec=parse_codec(request.codec),
    )
    edge = edge_of_reading(reading)
    link = add_lineage(writer, open_dataset(writer, link.digest), [edge])
    return link, known.rows if known else 0, since


def forget_unfinished(session: Session, path: str) -> None:
    """An entry is staged: what was stored on the way to it is in it."""
    unfinished = session.here.unfinished()
    if unfinished.pop(path, None) is not None:
        session.here.write_unfinished(unfinished)


def _gone_on(
    session: Session, request: Request, source: str, base: Dataset | None
) -> Unfinished | None:
    """What an earlier run of the same `add` had stored, if it is still kept."""
    known = session.here.unfinished().get(request.path)
    if known is None or (known.source, known.base) != (source, _digest(base)):
        return None
    # Without its generation nobody knows which condemnations it may have missed.
    return known if known.generation is not None and known.root in held(session) else None


def _note(session: Session, request: Request, unfinished: Unfinished) -> None:
    """Keep first, then note: what was noted before is kept until then."""
    entries = [staged.entry for staged in session.here.staging().entries.values()]
    keep_alive(session, entries, unfinished.root)
    here = session.here
    here.write_unfinished({**here.unfinished(), request.path: unfinished})


def _schema_to_append(base: Dataset, found: Schema) -> Schema:
    """The columns of `base`, into which what was read is coerced value by value.

    Numbers of classes mean something only with their names, so these must agree.
    """
    columns = []
    for column in base.schema.visible.without_ids().columns:
        read = next((each for each in found.columns if each.name == column.name), column)
        columns.append(read if isinstance(read.type, ClassLabel) else column)
    return Schema(tuple(columns))


def _digest(dataset: Dataset | None) -> Digest | None:
    return None if dataset is None else dataset.digest


def _fingerprint(request: Request) -> str:
    """What is read and how: files by size and time, as git does."""
    told = {
        "path": str(request.source.resolve()),
        "format": request.format,
        "options": {name: str(value) for name, value in sorted(request.options.items())},
        "on_error": request.on_error,
        "codec": request.codec,
        "files": sorted(describe_files(request.source).items()),
    }
    text = json.dumps(told, sort_keys=True)
    return content_tag(text.encode()).hex()
