"""Erasure of tensors from the models of all history: their twins, and new packs without them.

A tensor is erased with its content: every model that holds the same bytes loses it, under whatever
name. A pack goes as a whole, so that all models that use one of those packs are stored anew, with
bases among themselves: what was a delta against an erased tensor is none any more.

Source:
    docs/spec/log.md, section "Purges"; docs/design/071-a-purge-maps-roots-to-twins.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property

import msgspec

from tensorrepo.formats.model.layout.manifest import (
    Manifest,
    TensorEntry,
    decode_manifest,
    encode_manifest,
)
from tensorrepo.formats.model.layout.placement import decode_placement
from tensorrepo.formats.model.maintenance.repack import RepackOptions, store_anew
from tensorrepo.repo.changes.purge import HeldEntry, Twins
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest, digest_from_bytes
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.suggest import did_you_mean


@dataclass(eq=False)
class TensorSurvey:
    """What one state of a repository holds of tensors that are to be erased.

    Attributes:
        core: the repository.
        paths: full paths of the models that are named.
        names: names of tensors.
        held: every entry of its history.
        purged: path of each model to the tensors that were erased of it before, with their names.
    """

    core: RepositoryCore
    paths: Sequence[str]
    names: Sequence[str]
    held: Sequence[HeldEntry]
    purged: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    _manifests: dict[Digest, Manifest] = field(default_factory=dict)

    @cached_property
    def models(self) -> Mapping[Entry, frozenset[str]]:
        """Every model of history as it is stored now, and its paths."""
        found: dict[Entry, set[str]] = {}
        for each in self.held:
            if each.entry.kind is Kind.MODEL:
                current = self.core.current(each.entry)
                living = self.core.objects.living(current.digest)
                entry = Entry(Kind.MODEL, living, current.storage)
                found.setdefault(entry, set()).add(each.path)
        return {entry: frozenset(paths) for entry, paths in found.items()}

    @cached_property
    def prints(self) -> Mapping[bytes, str]:
        """Fingerprints of what is erased, and the name it was named by."""
        known = {path for paths in self.models.values() for path in paths}
        for path in self.paths:
            if path not in known:
                hint = did_you_mean(path, sorted(known))
                raise NotFoundError(f"no model {path!r} in any commit.{hint}")
        found, there = dict[bytes, str](), set[str]()
        for entry in self._named():
            for tensor in self.manifest(entry.digest).tensors:
                there.add(tensor.name)
                if tensor.name in self.names:
                    prints = (piece.fingerprint for piece in tensor.pieces)
                    found |= {each: tensor.name for each in prints if each is not None}
        for path in self.paths:  # so that a purge that was cut off is ended
            there |= set(self.purged.get(path, {}).values())
        for name in self.names:
            if name not in there:
                paths, hint = ", ".join(self.paths), did_you_mean(name, sorted(there))
                raise NotFoundError(f"no version of {paths} has a tensor {name!r}.{hint}")
        return found

    @cached_property
    def packs(self) -> frozenset[Digest]:
        """Packs that hold some of it."""
        found = set[Digest]()
        for storage in {entry.storage for entry in self.models}:
            assert storage is not None, "a model has a placement"
            placement = decode_placement(self.core.objects.get(storage).payload, storage)
            for tensor in placement.tensors:
                if tensor.fingerprint in self.prints:
                    found |= {placement.packs[member.pack].digest for member in tensor.members}
        return frozenset(found)

    @cached_property
    def holders(self) -> Mapping[Entry, tuple[str, ...]]:
        """Models that hold some of it, and the names of the tensors that go."""
        gone = {entry: self._gone(entry) for entry in self.models}
        return {entry: names for entry, names in gone.items() if names}

    def manifest(self, digest: Digest) -> Manifest:
        """A manifest, read once."""
        if digest not in self._manifests:
            payload = self.core.objects.get(digest).payload
            self._manifests[digest] = decode_manifest(payload, digest)
        return self._manifests[digest]

    def _named(self) -> Iterable[Entry]:
        return (entry for entry, paths in self.models.items() if paths & set(self.paths))

    def _gone(self, entry: Entry) -> tuple[str, ...]:
        named = bool(self.models[entry] & set(self.paths))

        def goes(tensor: TensorEntry) -> bool:
            if named and tensor.name in self.names:
                return True  # also one whose value stands in the manifest
            return any(piece.fingerprint in self.prints for piece in tensor.pieces)

        return tuple(tensor.name for tensor in self.manifest(entry.digest).tensors if goes(tensor))

    # -------------------------------------------------------------------- twins

    def rewrite(
        self,
        view: LogView,
        writer: ObjectWriter,
        options: RepackOptions,
        clock: Callable[[], float],
        progress: Callable[[str, int, int], None],
    ) -> Twins:
        """Store the twins of all that holds some of it, or shares a pack with it."""
        twins: dict[Digest, Digest] = {}
        where: dict[Digest, str] = {}
        tainted = set(self.packs)
        for entry, names in self.holders.items():
            manifest = self.manifest(entry.digest)
            less, blobs = without_tensors(manifest, names)
            link = writer.put(Kind.MODEL, encode_manifest(less), less.links())
            twins[entry.digest] = link.digest
            where[entry.digest] = ", ".join(sorted(self.models[entry]))
            tainted |= blobs
        entries = [
            msgspec.structs.replace(entry, digest=twins.get(entry.digest, entry.digest))
            for entry in self.models
            if self._uses_packs(entry)
        ]
        for old, new in store_anew(self.core, options, view, writer, entries, clock, progress):
            if old != new:
                twins[old], where[old] = new, "packs of models"
        told = {print_.hex(): name for print_, name in self.prints.items()}
        return Twins(twins, where, frozenset(tainted), columns=dict.fromkeys(self.paths, told))

    def _uses_packs(self, entry: Entry) -> bool:
        assert entry.storage is not None, "a model has a placement"
        return any(link.digest in self.packs for link in self.core.objects.get(entry.storage).links)


def without_tensors(manifest: Manifest, names: Iterable[str]) -> tuple[Manifest, frozenset[Digest]]:
    """A manifest without some tensors, and blobs that hold them in another form.

    Files that could be given back byte for byte with them cannot any more.

    Raises:
        InvalidInputError: no tensor is left.
    """
    gone = set(names)
    tensors = tuple(tensor for tensor in manifest.tensors if tensor.name not in gone)
    if not tensors:
        raise InvalidInputError(
            "no tensor would be left. Remove the model, and let its old commits expire: "
            "`tensorrepo rm`, `tensorrepo expire`"
        )
    used = {tensor.type for tensor in tensors}
    gone |= {alias.name for alias in manifest.aliases if alias.target in gone}
    whole = tuple(
        each for each in manifest.originals if gone.isdisjoint({*each.parts, *each.others})
    )
    less = msgspec.structs.replace(
        manifest,
        types=tuple(each for each in manifest.types if each.name in used),
        tensors=tensors,
        aliases=tuple(each for each in manifest.aliases if each.name not in gone),
        originals=whole,
    )
    left = set(less.links())
    blobs = {
        digest_from_bytes(each.blob)
        for each in manifest.originals
        if each.blob is not None and gone & set(each.others)
    }
    return less, frozenset(blobs - left)
