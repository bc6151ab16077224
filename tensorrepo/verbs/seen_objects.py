"""Objects behind a URL as the last sync saw them: which of them need not be read again.

Beside the rows that a source had, a table of its objects is kept, with the version of each (an
etag): the dataset of these rows has an edge ``synced-with`` of its own, whose digest names the
table. What has the version that it had is what it was.

Source:
    docs/spec/lineage.md.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, get_args

from tensorrepo.formats.common.buffer_codecs import DEFAULT_CODEC, parse_codec
from tensorrepo.formats.common.provenance import (
    SYNCED_WITH,
    ProvenanceEdge,
    edges_of,
    synced_states,
)
from tensorrepo.formats.dataset.evolve import add_lineage, without_lineage
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset, scan
from tensorrepo.formats.dataset.schema.lenient import OnMisfit
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    Column,
    Image,
    Scalar,
    Schema,
    Text,
)
from tensorrepo.formats.dataset.schema.values import BinaryValues, FixedValues, binary_rows
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.exchange.base import OpenedSource, SourceObject
from tensorrepo.formats.exchange.remote import RemotePlace
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectSink, ObjectSource

_TABLE: Final = Schema(
    (Column("name", Text()), Column("bytes", Scalar("int64")), Column("version", Text()))
)
_ROWS: Final = 1 << 16
# Columns of importers that make a row of each file, as it is.
_WHOLE_FILES: Final = {"image": Image, "audio": Bytes, "text": Text}


def options_digest(format_name: str | None, options: Mapping[str, Any], on_error: str) -> str:
    """A digest of what the caller says of how a source is read."""
    told = {name: str(value) for name, value in sorted(options.items())}
    return content_tag(json.dumps([format_name, told, on_error]).encode()).hex()


def _plain_options() -> set[str]:
    """Digests of a reading of texts of which nobody said how."""
    formats, fates = (None, "text"), get_args(OnMisfit)
    return {options_digest(name, {}, fate) for name in formats for fate in fates}


def keep_state(objects: ObjectSink, rows: StoredDataset, reading: OpenedSource) -> Digest:
    """Store what a source is now: its rows, and of a URL which objects they are of.

    Returns:
        The digest that an edge `SYNCED_WITH` names. Nothing else is said of these rows: else each
        state would keep the one before it, for ever.
    """
    plain = without_lineage(objects, rows)
    found = reading.origin.objects
    if not found:
        return plain.digest
    table = write_dataset(objects, _TABLE, _batches(found), codec=parse_codec(DEFAULT_CODEC))
    details = {"options": reading.origin.options}
    edge = ProvenanceEdge(SYNCED_WITH, reading.origin.path, table.digest, None, details)
    return add_lineage(objects, open_dataset(objects, plain.digest, rows.outside), [edge]).digest


def _batches(found: Sequence[SourceObject]) -> Iterator[dict[str, list[Any]]]:
    walk = iter(found)
    while part := list(islice(walk, _ROWS)):
        yield {
            "name": [each.name for each in part],
            "bytes": [each.bytes for each in part],
            "version": [each.version for each in part],
        }


@dataclass(frozen=True, slots=True, eq=False)
class SeenObjects:
    """What a source was when it was last seen.

    Attributes:
        rows: the rows that it had.
        table: its objects.
        options: digest of how it was read.
    """

    rows: StoredDataset
    table: StoredDataset
    options: str

    @classmethod
    def of(
        cls, objects: ObjectSource, dataset: StoredDataset, place: str, outside: Outside | None
    ) -> SeenObjects | None:
        """Of the source at a place; None if it was not synced before, or no versions are known."""
        known = synced_states(dataset.root.lineage).get(place)
        if known is None:
            return None
        try:
            rows = open_dataset(objects, known, outside)
            edges = (each for each in edges_of(rows.root.lineage) if each.relation == SYNCED_WITH)
            edge = next((each for each in edges if each.path == place and each.digest), None)
            if edge is None:
                return None
            table = open_dataset(objects, Digest(edge.digest), outside)
        except NotFoundError:
            return None
        if table.schema.visible.names != _TABLE.names:
            return None
        return cls(rows, table, str(edge.details.get("options", "")))

    def is_still(self, place: RemotePlace, options: str) -> bool:
        """Whether a URL holds what it held, and would be read as it was."""
        if options != self.options:
            return False
        now = place.objects
        if not now or len(now) != len(self.table):
            return False
        return all(known == found for known, found in zip(self._known(), now, strict=True))

    def contents(
        self, now: Sequence[SourceObject]
    ) -> Generator[tuple[str, memoryview], None, None]:
        """Pictures, sounds and texts that did not change, from the rows that hold whole files."""
        held = self._whole_files()
        names = {each.name for each in set(self._known()).intersection(now)} if held else set()
        if held is None or not names:
            return
        for _, values in scan(self.rows, ["file", held]):
            files, contents = values["file"], values[held]
            assert isinstance(files, BinaryValues)
            assert isinstance(contents, BinaryValues)
            offsets = contents.offsets.tolist()
            for at, file in enumerate(binary_rows(files)):
                name = "" if file is None else file.decode()
                if name in names:
                    names.remove(name)
                    yield name, contents.data[offsets[at] : offsets[at + 1]].data

    def _whole_files(self) -> str | None:
        """The column whose values are the bytes of the files that column `file` names."""
        schema = self.rows.schema
        if "file" not in schema or not isinstance(schema.column("file").type, Text):
            return None
        for name, kind in _WHOLE_FILES.items():
            if name in schema and isinstance(schema.column(name).type, kind):
                # A text that was read in another encoding, or by lines, is not what its file is.
                as_it_is = kind is not Text or self.options in _plain_options()
                return name if as_it_is else None
        return None

    def _known(self) -> Iterator[SourceObject]:
        """The objects by name, as they were stored."""
        for _, values in scan(self.table, _TABLE.names):
            names, sizes, versions = (values[name] for name in _TABLE.names)
            assert isinstance(names, BinaryValues)
            assert isinstance(sizes, FixedValues)
            assert isinstance(versions, BinaryValues)
            texts = zip(binary_rows(names), binary_rows(versions), strict=True)
            for (name, version), size in zip(texts, sizes.values.tolist(), strict=True):
                yield SourceObject((name or b"").decode(), size, (version or b"").decode())
