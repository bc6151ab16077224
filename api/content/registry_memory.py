"""Registry in memory: names, cards and facts of versions, so that most reads wait for no disk.

Versions never change, and cards are found by their digest: what is kept here is never stale. Which
versions and aliases there are is told by the view of the repository, see `RegistryIndex`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Final

from tensorrepo.formats.common.summaries import summarized_model
from tensorrepo.formats.model.layout.manifest import decode_manifest
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import Entry, iterate, lookup
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.registry.cards import BRANCH, FOLDER, SUFFIX, Card, card_path, decode_card
from tensorrepo.repo.registry.index import RegistryIndex
from tensorrepo.repo.registry.versions import Registered, RegisteredVersion, read_version

_FACTS_BYTES: Final = 64 << 20
_CARDS_BYTES: Final = 32 << 20
_FOLDER_BYTES: Final = 32 << 20
_ENTRY_BYTES: Final = 200  # of a path and its entry, about


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What is known of a version for ever: where it is from, and what model it is."""

    version: RegisteredVersion  # its aliases are left out: they move
    message: str
    entry: Entry
    tensors: int
    bytes: int
    metrics: Mapping[str, Any]


@dataclass(slots=True)
class RegistryMemory:
    """What is kept of one repository's registry. Thread-safe; see `ServedRepository.kept`."""

    index: RegistryIndex = field(default_factory=RegistryIndex)
    facts: LimitedCache[VersionFacts] = field(default_factory=lambda: LimitedCache(_FACTS_BYTES))
    cards: LimitedCache[Card] = field(default_factory=lambda: LimitedCache(_CARDS_BYTES))
    folders: LimitedCache[dict[str, Entry]] = field(
        default_factory=lambda: LimitedCache(_FOLDER_BYTES)
    )

    def known_facts(self, commit: Digest) -> VersionFacts | None:
        """Facts of a version, where that takes no reading."""
        return self.facts.get(commit)

    def facts_of(
        self, core: RepositoryCore, name: str, number: int, one: Registered
    ) -> VersionFacts:
        """Facts of a version that `one` has."""
        commit = one.versions[number]
        return self.facts.get_or_load(commit, lambda: _read_facts(core, name, number, one))

    def card(self, core: RepositoryCore, view: LogView, name: str) -> Card | None:
        """What is said about a name; None where nothing is, or the name is gone."""
        commit = view.state.refs.get(f"heads/{BRANCH}")
        if commit is None:
            return None
        folder = self.folders.get(commit)
        if folder is not None:
            entry = folder.get(name)
        else:
            entry = lookup(core.objects, read_commit(core.objects, commit).tree, card_path(name))
        return None if entry is None else self._card_of(core, entry)

    def known_card(self, view: LogView, name: str) -> tuple[bool, Card | None]:
        """Whether what is said about a name is known without reading, and what that is."""
        commit = view.state.refs.get(f"heads/{BRANCH}")
        if commit is None:
            return True, None
        folder = self.folders.get(commit)
        if folder is None:
            return False, None
        entry = folder.get(name)
        card = None if entry is None else self.cards.get(entry.digest)
        if entry is not None and card is None:
            return False, None
        return True, None if card is None or card.gone else card

    def described(self, core: RepositoryCore, view: LogView) -> Mapping[str, Entry]:
        """Where what is said about each name lies, those that are gone included."""
        commit = view.state.refs.get(f"heads/{BRANCH}")
        if commit is None:
            return {}
        return self.folders.get_or_load(commit, lambda: _sized(dict(_descriptions(core, commit))))

    def card_at(self, core: RepositoryCore, entry: Entry) -> Card | None:
        """The card that lies there; None: its name is gone."""
        return self._card_of(core, entry)

    def _card_of(self, core: RepositoryCore, entry: Entry) -> Card | None:
        def load() -> tuple[Card, int]:
            data = core.objects.get(entry.digest).payload
            return decode_card(data, f"description {entry.digest:.12}"), data.nbytes + _ENTRY_BYTES

        card = self.cards.get_or_load(entry.digest, load)
        return None if card.gone else card


def _descriptions(core: RepositoryCore, commit: Digest) -> Iterator[tuple[str, Entry]]:
    tree = read_commit(core.objects, commit).tree
    for path, entry in iterate(core.objects, tree, FOLDER):
        if path.endswith(SUFFIX):
            yield path.removeprefix(FOLDER).removesuffix(SUFFIX), entry


def _sized(folder: dict[str, Entry]) -> tuple[dict[str, Entry], int]:
    return folder, len(folder) * _ENTRY_BYTES


def _read_facts(
    core: RepositoryCore, name: str, number: int, one: Registered
) -> tuple[VersionFacts, int]:
    version = read_version(core, name, number, one)
    commit = read_commit(core.objects, version.commit)
    _, entry = next(core.entries(commit.tree))
    payload = core.objects.get(entry.digest).payload
    manifest = decode_manifest(payload, entry.digest)
    tensors, size = summarized_model(entry) or (len(manifest.tensors), manifest.tensor_bytes)
    facts = VersionFacts(
        replace(version, aliases=()), commit.message, entry, tensors, size, manifest.metrics
    )
    return facts, 1000 + len(repr(manifest.metrics))
