"""What do new entries bring, each thing read once however many commits have it?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tensorrepo.query import tables
from tensorrepo.query.sync.kinds import CONTENTS
from tensorrepo.query.sync.loader import present
from tensorrepo.query.sync.models import placement_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorrepo.query.sync.kinds import RowsOf
    from tensorrepo.query.sync.loader import Loader
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import Kind, ObjectSource
    from tensorrepo.repo.state import State
    from tensorrepo.repo.trees import Entry

_ASKED_TOGETHER: Final = 1000


@dataclass(slots=True)
class Contents:
    """Entries on their way into the catalog. They wait until many can be asked about at once."""

    objects: ObjectSource
    state: State
    loader: Loader
    _waiting: dict[Digest, Entry] = field(default_factory=dict)
    _placed: set[tuple[Digest, Digest]] = field(default_factory=set)
    _readers: dict[Kind, RowsOf] = field(default_factory=dict)

    def add(self, entries: Iterable[Entry]) -> None:
        """Take entries that commits in the catalog have, in any order, any number of times."""
        for entry in entries:
            if entry.kind not in CONTENTS:
                continue
            self._waiting.setdefault(entry.digest, entry)
            if entry.storage is not None:
                self._placed.add((entry.digest, entry.storage))
            if max(len(self._waiting), len(self._placed)) >= _ASKED_TOGETHER:
                self.flush()

    def flush(self) -> None:
        """Read what is new among those that wait, and hand over its rows."""
        self.loader.flush()  # what was found before can be asked for in the tables now
        for kind, content in CONTENTS.items():
            some = [digest for digest, entry in self._waiting.items() if entry.kind is kind]
            known = present(self.loader.connection, content.key, some)
            for digest in some:
                if digest not in known:
                    self._read(self._waiting[digest])
        self._place()
        self._waiting, self._placed = {}, set()

    def _read(self, entry: Entry) -> None:
        reader = self._readers.get(entry.kind)
        if reader is None:
            reader = self._readers[entry.kind] = CONTENTS[entry.kind].reader()
        if entry.storage is not None:
            entry = replace(entry, storage=self.state.resolve(entry.storage))
        self.loader.next_owner()
        self.loader.add(reader(self.objects, entry))

    def _place(self) -> None:
        """Note which placement each model has, and what the new ones of them say."""
        stated = tables.placement.c.stated
        there = present(self.loader.connection, stated, {place for _, place in self._placed})
        pairs = self._known_pairs(there)
        new = sorted(pair for pair in self._placed if pair not in pairs)
        rows = [(model, place, self.state.resolve(place)) for model, place in new]
        self.place_all({current for _, _, current in rows})
        self.loader.add((tables.placement, row) for row in rows)

    def _known_pairs(self, stated: set[str]) -> set[tuple[str, str]]:
        found = self.loader.connection.execute(
            tables.placement.select().where(tables.placement.c.stated.in_(stated))
        )
        return {(row.model, row.stated) for row in found}

    def place_all(self, placements: Iterable[Digest]) -> None:
        """Read those of these placements that are new."""
        self.loader.flush()  # one that was read a moment ago is new no more
        wanted = set(placements)
        known = present(self.loader.connection, tables.placement.c.placement, wanted)
        for digest in sorted(wanted - known):
            self.loader.add(placement_rows(self.objects, digest))
