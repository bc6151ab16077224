"""Edits of a stored model by its files: some come, some go, and its tensors with them.

A model that came as files is changed as files: a new shard takes the place of an old one, a card
gets other words. What stays is not read again: its tensors keep their entries and their places in
packs. A file of weights that comes is parsed, and its tensors are stored against the most similar
models; one that cannot be parsed is kept as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from tensorrepo.formats.common.tensors import TensorType
from tensorrepo.formats.model.layout.fingerprints import Fingerprint
from tensorrepo.formats.model.layout.manifest import (
    Alias,
    FileEntry,
    Manifest,
    Original,
    TensorEntry,
)
from tensorrepo.formats.model.layout.placement import Placement
from tensorrepo.formats.model.read.frames import PackReader, tensor_chunks
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.formats.model.write.byte_exact import store_original
from tensorrepo.formats.model.write.model_source import (
    FileContent,
    LiesInFile,
    ModelSource,
    with_longer_names,
)
from tensorrepo.formats.model.write.model_writer import (
    WrittenModel,
    store_documents,
    store_files,
    store_tensors,
    type_entries,
)
from tensorrepo.formats.model.write.packing import Locations, build_placement, known_tensors
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import ObjectSink


@dataclass(frozen=True, slots=True)
class FileEdit:
    """What becomes of the files of a model.

    Attributes:
        removed: names of files that go.
        copies: files of this model, or of others, by the name that they get.
        weights: files of weights that were parsed, by the name that they get.
        files: other files that come, by name.
        drops_loose: whether tensors that are in no file go.
    """

    removed: frozenset[str] = frozenset()
    copies: Mapping[str, KeptFile] = field(default_factory=dict)
    weights: Mapping[str, ModelSource] = field(default_factory=dict)
    files: Mapping[str, FileContent] = field(default_factory=dict)
    drops_loose: bool = False

    @property
    def names(self) -> frozenset[str]:
        """Files that come, or come anew."""
        return frozenset(self.copies) | frozenset(self.weights) | frozenset(self.files)


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of a stored model.

    `original` says of which tensors it is made, where the model is not told to have that file.
    """

    model: StoredModel
    name: str
    original: Original | None = None

    @property
    def of_tensors(self) -> Original | None:
        """How it is made of tensors; None: it is not."""
        return self.original or self.model.originals.get(self.name)


@dataclass(slots=True)
class _Joining:
    """The tensors and files of a model that is put together, by name.

    `places` says where each content lies, `types` what each element type is.
    """

    tensors: dict[str, TensorEntry] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)
    originals: dict[str, Original] = field(default_factory=dict)
    places: dict[Fingerprint, Locations] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)

    def keep(self, one: KeptFile, name: str) -> None:
        """Take a file of a stored model over, called `name`, with the tensors that it is made of.

        Tensors of these names that are others are there already: then its own begin with `name`.
        """
        original = one.of_tensors
        if original is None:
            self.files[name] = structs.replace(one.model.files[one.name], name=name)
            return
        named = {*original.others, *(part for part in original.parts if isinstance(part, str))}
        # Other names of a tensor come and go with the file that the tensor is in.
        named |= {alias for alias, target in one.model.aliases.items() if target in named}
        longer = {each: f"{name}/{each}" for each in named}
        names = longer if any(self._differs(one.model, each) for each in named) else {}
        self.originals[name] = structs.replace(
            original,
            name=name,
            parts=tuple(
                names.get(part, part) if isinstance(part, str) else part for part in original.parts
            ),
            others=tuple(sorted(names.get(each, each) for each in original.others)),
        )
        for each in sorted(named):
            self.keep_tensor(one.model, each, names)

    def keep_tensor(self, model: StoredModel, name: str, names: Mapping[str, str]) -> None:
        """Take a tensor of a stored model over, or an alias with what it stands for."""
        target = model.aliases.get(name, name)
        if target != name:
            self.aliases[names.get(name, name)] = names.get(target, target)
        entry = model.tensors[target]
        self.tensors[names.get(target, target)] = structs.replace(
            entry, name=names.get(target, target)
        )
        self.types[entry.type] = model.manifest.type_table()[entry.type]

    def keep_places(self, model: StoredModel) -> None:
        """Remember where the tensors of a stored model lie."""
        for print_, at in known_tensors([model.packs.placement]).items():
            self.places.setdefault(print_, at)

    def placement(self, more: Placement) -> Placement:
        """Where all tensors lie; `more` has those that were stored just now."""
        every = self.places | known_tensors([more])
        pieces = (piece for one in self.tensors.values() for piece in one.pieces)
        prints = {Fingerprint(one.fingerprint) for one in pieces if one.fingerprint is not None}
        return build_placement({print_: every[print_] for print_ in prints}, more.chosen)

    def _differs(self, model: StoredModel, name: str) -> bool:
        """Whether another tensor has this name."""
        if name not in self.tensors and name not in self.aliases:
            return False
        own = self.tensors[self.aliases.get(name, name)]
        other = model.tensors[model.aliases.get(name, name)]
        return (own.type, own.shape, own.pieces) != (other.type, other.shape, other.pieces)


def edit_files(
    objects: ObjectSink,
    model: StoredModel | None,
    edit: FileEdit,
    *,
    known: Iterable[Entry] = (),
) -> WrittenModel:
    """Store a model with other files.

    Args:
        objects: where to.
        model: the model as it is; None: there is none yet.
        edit: what changes.
        known: models that new tensors may be stored against, the likeliest first.

    Returns:
        The entry to stage. Metadata and lineage are those of `model`; its metrics and its graph
        as well, unless its tensors changed.

    Raises:
        InvalidInputError: tensors or names that do not fit together.
    """
    joining = _kept(model, edit)
    weights = _named_apart(edit.weights, {*joining.tensors, *joining.aliases})
    tensors = {name: one for part in weights for name, one in part.tensors.items()}
    aliases = {name: to for part in weights for name, to in part.aliases.items()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        entries, placement, report, plain = store_tensors(objects, tensors, pool, known)
        links = {digest: objects.describe(digest) for digest in placement.links()}
        packs = PackReader(objects, placement, links)

        def chunks(name: str) -> Iterator[memoryview]:
            name = aliases.get(name, name)
            (piece,) = entries[name].pieces
            return tensor_chunks(packs.piece(name, tensors[name].type, piece), pool)

        def lies_at(name: str, path: Path, start: int) -> int:
            name = aliases.get(name, name)
            reader = tensors[name]
            if name not in plain or not isinstance(reader, LiesInFile):
                return 0
            return 0 if reader.place != (path, start) else reader.type.bytes_of(reader.shape)

        for original in (one for part in weights for one in part.originals):
            joining.originals[original.name] = store_original(
                objects, original, chunks, pool, lies_at
            )
    joining.tensors |= entries
    joining.aliases |= aliases
    joining.types |= {one.type.name: one.type for one in tensors.values()}
    files = {**{name: at for part in weights for name, at in part.files.items()}, **edit.files}
    joining.files |= {one.name: one for one in store_files(objects, files)}
    metadata = {name: value for part in weights for name, value in part.metadata.items()}
    manifest = _manifest(model, joining, metadata)
    return WrittenModel(store_documents(objects, manifest, joining.placement(placement)), report)


def _kept(model: StoredModel | None, edit: FileEdit) -> _Joining:
    """What stays of a model, and what is copied."""
    joining = _Joining()
    gone = edit.removed | edit.names
    if model is not None:
        joining.keep_places(model)
        for name in () if edit.drops_loose else model.loose:
            joining.keep_tensor(model, name, {})
        for name in sorted({*model.files, *model.originals} - gone):
            joining.keep(KeptFile(model, name), name)
    for name, source in sorted(edit.copies.items()):
        joining.keep_places(source.model)
        joining.keep(source, name)
    return joining


def _named_apart(weights: Mapping[str, ModelSource], taken: set[str]) -> list[ModelSource]:
    """Parsed files of weights, named as the files are; of two tensors of one name the second
    begins with the name of its file.
    """
    apart = []
    for name, source in weights.items():
        part = replace(source, originals=tuple(replace(one, name=name) for one in source.originals))
        if taken & {*part.tensors, *part.aliases}:
            part = with_longer_names(part, name)
        taken |= {*part.tensors, *part.aliases}
        apart.append(part)
    return apart


def _manifest(
    model: StoredModel | None, joining: _Joining, metadata: Mapping[str, Any]
) -> Manifest:
    before = Manifest() if model is None else model.manifest
    tensors = tuple(joining.tensors[name] for name in sorted(joining.tensors))
    made = structs.replace(
        before,
        tensors=tensors,
        types=type_entries(joining.types[one.type] for one in tensors),
        aliases=tuple(Alias(name, to) for name, to in sorted(joining.aliases.items())),
        files=tuple(joining.files[name] for name in sorted(joining.files)),
        originals=tuple(joining.originals[name] for name in sorted(joining.originals)),
        metadata={**before.metadata, **metadata},
    )
    if (made.tensors, made.aliases) == (before.tensors, before.aliases):
        return made
    return structs.replace(made, graph=None, metrics={})
