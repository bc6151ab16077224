"""Import of a history of another tool: its commits become ours, its refs our branches and tags.

    walk commits, parents first -> what differs from the first parent -> store it -> write a commit
    every so many commits       -> one record of the log names the newest by refs ``imports/...``
    at the end                  -> one record sets branches and tags, and those refs go

Each commit says in its metadata what it is of. So an import that was cut off goes on behind the
last record, and one that is repeated imports what is new: whatever has such commits knows them.

Weights become models where `tensorrepo add` would make them so: a folder of safetensors with their
config or index is one model, another file of weights a model by itself. The rest are files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from tensorrepo.context import Context
from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.provenance import imported_from
from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.formats.exchange.checkpoints.snapshot import INDEX_SUFFIX, SUFFIXES
from tensorrepo.formats.exchange.history.base import (
    HEADS,
    TAGS,
    ForeignHistory,
    HistoryCommit,
    HistoryFile,
)
from tensorrepo.formats.exchange.history.dvc import DvcHistory, is_dvc
from tensorrepo.formats.exchange.history.git import GitHistory, without_content
from tensorrepo.formats.exchange.history.hub import HubHistory, is_hub
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.formats.model.write.model_writer import store_model
from tensorrepo.formats.model.write.near_models import near_models
from tensorrepo.formats.runs.file_names import tree_path, tree_paths
from tensorrepo.formats.runs.run_models import read_folder
from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.changes.refs import refuse_taken
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import generation_of, tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tensorrepo.repo.history.commits import (
    MAX_AUTHOR_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PARENTS,
    Commit,
    MetadataValue,
    changed_paths,
    clean_message,
    read_commit,
    walk,
    write_commit,
)
from tensorrepo.repo.history.trees import Entry, diff, iterate, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.names import check_ref
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.transfer.ref_rules import MovedRef, entries_of, is_descendant
from tensorrepo.verbs.files import put_file

Missing = Literal["refuse", "skip"]
IMPORTS: Final = "imports/"  # refs of an import that goes on, or was cut off
TOOLS: Final[Mapping[str, Callable[[Path, str | None, Mapping[str, str]], ForeignHistory]]] = {
    "git": GitHistory,
    "dvc": DvcHistory,
    "huggingface": HubHistory,
}
_KEY: Final = "imported"  # in the metadata of a commit
_BATCH_COMMITS, _BATCH_BYTES, _BATCH_SECONDS = 256, 1 << 30, 60.0
_REMEMBERED: Final = 1 << 16  # entries by their content
_SHOWN: Final = 5
_WHOLE: Final = frozenset({"config.json", "model_index.json"})  # beside weights: one model
_WEIGHTS: Final = frozenset(SUFFIXES) - {".npy", ".npz"}  # of arrays, `add` makes datasets


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file whose content could not be had, in the first commit that has it."""

    path: str
    commit: str
    why: str


@dataclass(frozen=True, slots=True)
class ImportedHistory:
    """What was imported.

    Attributes:
        tool: "git", "dvc" or "huggingface".
        commits: how many commits are new here.
        known: how many were here already.
        branches: where the branches are now, by name.
        tags: where the tags are, by name.
        models: how many versions of models were stored.
        files: how many versions of files were stored.
        size_bytes: bytes of what was read for that.
        left_out: files that are not here, where that was allowed.
        notes: what else is not as it was there.
    """

    tool: str
    commits: int
    known: int
    branches: Mapping[str, Digest]
    tags: Mapping[str, Digest]
    models: int
    files: int
    size_bytes: int
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]


def import_history(
    context: Context,
    path: Path,
    *,
    tool: str | None = None,
    name: str | None = None,
    prefix: str = "",
    missing: Missing = "refuse",
    progress: Callable[[int, int, int], None] = lambda _done, _total, _bytes: None,
) -> ImportedHistory:
    """Import all commits, branches and tags of a repository of another tool.

    Args:
        context: repository to import to.
        path: its folder: a git repository, with git-lfs or DVC or without, or what Hugging Face's
            libraries downloaded.
        tool: "git", "dvc" or "huggingface"; None: what the folder is.
        name: what a model is called that all of a commit is; None: as the repository.
        prefix: what branches and tags begin with here, such as "upstream/".
        missing: whether a file whose content cannot be had is refused, or left out and told.
        progress: receives commits done, commits in all, and bytes read.

    Raises:
        NotFoundError: contents are missing; nothing was imported.
        ConflictError: a branch has commits that are not imported. Nothing changed.
        CorruptError: a content is not what names it. What came before stays, and is gone on with.
        InvalidInputError: a file or ref has a name that cannot be kept, or leads out.
    """
    at = context.machine.cwd / path
    if not at.is_dir():
        raise NotFoundError(f"there is no folder {path} to import")
    if missing not in {"refuse", "skip"}:
        raise InvalidInputError(f"missing={missing!r}: expected 'refuse' or 'skip'")
    if prefix:
        check_ref(f"{HEADS}{prefix}x")
    with closing(_opened(at, tool, name, context.machine.environment)) as source:
        scratch = context.machine.cache_folder / "imports"
        scratch.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=scratch) as temporary:
            return _Import(context, source, prefix, missing, Path(temporary), progress).run()


def tool_of(path: Path) -> str:
    """Which tool a folder is of."""
    if is_hub(path):
        return "huggingface"
    return "dvc" if is_dvc(path) else "git"


def _opened(
    path: Path, tool: str | None, name: str | None, environment: Mapping[str, str]
) -> ForeignHistory:
    chosen = tool or tool_of(path)
    if chosen not in TOOLS:
        raise InvalidInputError(f"tool {chosen!r:.80}: expected one of {', '.join(TOOLS)}")
    return TOOLS[chosen](path, name, environment)


@dataclass(frozen=True, slots=True)
class _Unit:
    """What becomes one entry: a file, a file of weights, or a folder that is a model.

    Attributes:
        kind: which of these.
        name: what it is called there; "": all that there is.
        path: how it is spelled here.
    """

    kind: Literal["file", "weights", "folder"]
    name: str
    path: str


@dataclass(slots=True)
class _Batch:
    """What no record names yet."""

    writer: ObjectWriter
    pin: LogView
    began: float
    commits: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _Counts:
    models: int = 0
    files: int = 0
    size_bytes: int = 0
    left_out: dict[str, LeftOut] = field(default_factory=dict)


class _Import:
    """One import. `_made` has the commit here of each commit there."""

    def __init__(
        self,
        context: Context,
        source: ForeignHistory,
        prefix: str,
        missing: Missing,
        scratch: Path,
        progress: Callable[[int, int, int], None],
    ) -> None:
        self._core: RepositoryCore = context.core
        self._actor = context.author
        self._source, self._prefix, self._missing = source, prefix, missing
        self._scratch, self._progress = scratch, progress
        slug = hashlib.sha256(f"{source.tool} {source.name} {prefix}".encode()).hexdigest()[:12]
        self._space = f"{IMPORTS}{slug}/"
        self._counts = _Counts()
        self._entries: OrderedDict[str, dict[str, Entry | None]] = OrderedDict()
        self._units: OrderedDict[str, dict[_Unit, str]] = OrderedDict()
        self._frontier: dict[Digest, None] = {}
        self._notes: list[str] = []
        self._has_twins = False
        self._at = ""  # what is read, for errors
        self._made: dict[str, Digest] = {}
        self._batch = self._begun()

    def run(self) -> ImportedHistory:
        """Import what is new, and set the refs."""
        view = self._core.log.refresh()
        if view.state.read_only_reason:
            raise UnsupportedError(f"{self._core.url}: {view.state.read_only_reason}")
        self._made = imported_commits(self._core, view, self._source)
        held = view.state.refs.items()
        self._frontier = {one: None for ref, one in held if ref.startswith(self._space)}
        self._refuse_own_work(view)
        commits = list(self._source.commits())
        new = [one for one in commits if one.id not in self._made]
        if self._missing == "refuse":
            self._refuse_missing(new)
        for done, commit in enumerate(new):
            self._progress(done, len(new), self._counts.size_bytes)
            self._at = ""
            try:
                self._add(commit)
            except (CorruptError, InvalidInputError, UnsupportedError) as error:
                where = f"{self._at}commit {commit.id:.12} of {self._source.name}"
                raise type(error)(f"{where}: {error}") from error
            if self._is_full():
                self._land()
        if self._batch.commits:
            self._land()
        branches, tags = self._set_refs()
        self._progress(len(new), len(new), self._counts.size_bytes)
        counts = self._counts
        return ImportedHistory(
            self._source.tool,
            len(new),
            len(commits) - len(new),
            branches,
            tags,
            counts.models,
            counts.files,
            counts.size_bytes,
            tuple(counts.left_out.values()),
            (*self._source.notes, *self._notes),
        )

    def _refuse_own_work(self, view: LogView) -> None:
        """See, before anything is read, that no branch would lose commits of others."""
        imported = set(self._made.values())
        for ref in self._source.refs():
            mine = self._ref(ref)
            held = view.state.refs.get(mine)
            if mine.startswith(HEADS) and held is not None and held not in imported:
                raise ConflictError(
                    f"branch {mine.removeprefix(HEADS)!r} is at {held:.12}, which was not imported "
                    f"from here. Nothing changed. --prefix {self._source.name}/ gives others names"
                )

    def _refuse_missing(self, commits: Sequence[HistoryCommit]) -> None:
        """See that all contents are there, before anything is stored."""
        lost: dict[str, LeftOut] = {}
        for commit in commits:
            for path, file in self._source.files(commit.id).items():
                if file.fault is not None:
                    lost.setdefault(f"{path} {file.key}", LeftOut(path, commit.id, file.fault))
        if not lost:
            return
        shown = [f"{one.path} (commit {one.commit:.12}): {one.why}" for one in lost.values()]
        raise NotFoundError(
            f"{counted(len(lost), 'file')} cannot be imported, such as "
            + "; ".join(shown[:_SHOWN])
            + ". Nothing was imported. --missing skip leaves them out, and keeps what names them"
        )

    def _add(self, commit: HistoryCommit) -> None:
        """Make the commit here, and what it changes."""
        parents = tuple(dict.fromkeys(self._made[one] for one in commit.parents))
        if len(parents) > MAX_PARENTS:
            self._note(f"commit {commit.id:.12} has {len(parents)} parents: {MAX_PARENTS} are kept")
            parents = parents[:MAX_PARENTS]
        writer = self._batch.writer
        before = tree_of(writer, parents[0] if parents else None)
        files, lost = self._kept(commit)
        tree = update(writer, before, self._changes(commit, files, parents, before))
        into = "" if all(unit.name for unit in self._units[commit.id]) else self._source.name
        told: dict[str, MetadataValue] = {
            "tool": self._source.tool, "commit": commit.id, "name": into, "missing": lost,
        }  # fmt: skip
        made = write_commit(
            writer,
            Commit(
                tree=tree,
                parents=parents,
                generation=1 + max((generation_of(writer, one) for one in parents), default=0),
                author=_author(commit.author),
                message=_message(commit.message),
                time_ns=commit.time_ns,
                metadata={_KEY: told},
                changed=changed_paths(diff(writer, before, tree)),
            ),
        ).digest
        self._made[commit.id] = made
        for one in parents:
            self._frontier.pop(one, None)
        self._frontier[made] = None
        self._batch.commits += 1

    def _kept(self, commit: HistoryCommit) -> tuple[dict[str, HistoryFile], int]:
        """Files whose content can be had, and how many others there are."""
        kept, lost = {}, 0
        for path, file in self._source.files(commit.id).items():
            if file.fault is None:
                kept[path] = file
                continue
            lost += 1
            left = LeftOut(path, commit.id, file.fault)
            self._counts.left_out.setdefault(f"{path} {file.key}", left)
            if (pointer := without_content(file)) is not None:
                kept[path] = pointer
        return kept, lost

    def _changes(
        self,
        commit: HistoryCommit,
        files: Mapping[str, HistoryFile],
        parents: Sequence[Digest],
        before: bytes,
    ) -> dict[str, Entry | None]:
        """What the commit changes in the tree of its first parent here."""
        wanted = self._units_of(commit.id, files)
        known = self._known_units(commit, parents)
        changes: dict[str, Entry | None] = {}
        for unit in (known or {}).keys() - wanted.keys():
            changes |= dict.fromkeys(self._paths(unit))
        for unit, key in wanted.items():
            if known is None or known.get(unit) != key:
                changes |= self._stored(unit, key, files, before)
        if known is None:
            here = {path for path, _ in iterate(self._batch.writer, before)}
            changes |= dict.fromkeys(here - {path for path, entry in changes.items() if entry})
        return changes

    def _known_units(
        self, commit: HistoryCommit, parents: Sequence[Digest]
    ) -> dict[_Unit, str] | None:
        """What the first parent has; None where that cannot be told from what is there now.

        Contents that were missing when it was imported may have come since.
        """
        if not parents:
            return {}
        told = read_commit(self._batch.writer, parents[0]).metadata.get(_KEY)
        if not isinstance(told, dict) or told.get("missing") != 0:
            return None
        first = commit.parents[0]
        return self._units.get(first) or self._units_of(first, self._source.files(first))

    def _units_of(self, commit: str, files: Mapping[str, HistoryFile]) -> dict[_Unit, str]:
        """What becomes one entry each, and what names its content."""
        found: dict[tuple[Literal["file", "weights", "folder"], str], str] = {}
        folders = {""} if self._source.is_model and files else model_folders(files)
        inner: dict[str, list[str]] = {}
        for path in sorted(files):
            folder = next((one for one in _above(path) if one in folders), None)
            if folder is not None:
                inner.setdefault(folder, []).append(f"{path}\0{files[path].key}")
            else:
                is_weights = PurePosixPath(path).suffix.lower() in _WEIGHTS
                found["weights" if is_weights else "file", path] = files[path].key
        for folder, members in inner.items():
            text = "\n".join(members).encode("utf-8", "surrogateescape")
            found["folder", folder] = hashlib.sha256(text).hexdigest()
        paths = {"": "", **tree_paths(name for _, name in found if name)}
        self._note_twins(paths)
        units = {_Unit(kind, name, paths[name]): key for (kind, name), key in found.items()}
        self._units[commit] = units
        while len(self._units) > _SHOWN:
            self._units.popitem(last=False)
        return units

    def _note_twins(self, paths: Mapping[str, str]) -> None:
        """Tell, once, of names that are spelled otherwise for others that differ only in case."""
        if self._has_twins:
            return
        for name, path in paths.items():
            if name and path != tree_path(name):
                self._has_twins = True
                self._note(f"names that differ only in case are spelled apart: {name!r} as {path}")
                return

    def _paths(self, unit: _Unit) -> tuple[str, ...]:
        """Where a unit may lie here: whether weights can be read is known when they are."""
        if unit.kind == "folder":
            return (f"models/{unit.path or tree_path(self._source.name)}",)
        file = f"{self._source.folder}/{unit.path}"
        return (file,) if unit.kind == "file" else (f"models/{unit.path}", file)

    def _stored(
        self, unit: _Unit, key: str, files: Mapping[str, HistoryFile], before: bytes
    ) -> dict[str, Entry | None]:
        """Entries by path, after their content is stored."""
        paths = self._paths(unit)
        remembered = f"{unit.kind} {PurePosixPath(unit.name).name} {key}"
        known = self._entries.get(remembered)
        if known is not None:
            self._entries.move_to_end(remembered)
            return dict(zip(paths, known.values(), strict=True))
        self._at = f"{unit.name}, " if unit.name else ""
        with TemporaryDirectory(dir=self._scratch) as temporary:
            found = self._store(unit, files, before, paths, Path(temporary))
        self._at = ""
        self._entries[remembered] = found
        while len(self._entries) > _REMEMBERED:
            self._entries.popitem(last=False)
        return found

    def _store(
        self,
        unit: _Unit,
        files: Mapping[str, HistoryFile],
        before: bytes,
        paths: tuple[str, ...],
        scratch: Path,
    ) -> dict[str, Entry | None]:
        if unit.kind == "folder":
            above = f"{unit.name}/" if unit.name else ""
            for path in [path for path in files if path.startswith(above)]:
                self._place(files[path], scratch / path.removeprefix(above))
            return {paths[0]: self._model(read_folder(scratch), paths[0], before)}
        place = scratch / PurePosixPath(unit.name).name
        self._place(files[unit.name], place)
        source = _weights(place) if unit.kind == "weights" else None
        if source is not None:
            return {paths[0]: self._model(source, paths[0], before), paths[1]: None}
        entry = put_file(self._batch.writer, place)
        self._counts.files += 1
        return {**dict.fromkeys(paths[:-1]), paths[-1]: entry}

    def _model(self, source: ModelSource, path: str, before: bytes) -> Entry:
        writer = self._batch.writer
        known = [self._core.current(one) for one in near_models(writer, before, (), path)]
        edge = imported_from(self._source.name, format=self._source.tool)
        written = store_model(writer, source, lineage=(edge,), known=known)
        # Its files are mapped until they are durable, and what links them goes.
        writer.flush()
        self._counts.models += 1
        return written.entry

    def _place(self, file: HistoryFile, target: Path) -> None:
        """Have the bytes of a file at a path, by a link where the disk has them."""
        target.parent.mkdir(parents=True, exist_ok=True)
        place = self._source.content(file, target)
        if place != target:
            try:
                os.link(place, target)
            except OSError:  # on another disk, or somebody else's
                shutil.copyfile(place, target)
        size = target.stat().st_size
        self._counts.size_bytes += size
        self._batch.size_bytes += size

    def _begun(self) -> _Batch:
        pin = self._core.log.refresh()
        writer = ObjectWriter(self._core.objects, pin.state.graves)
        return _Batch(writer, pin, time.monotonic())

    def _is_full(self) -> bool:
        batch = self._batch
        late = time.monotonic() - batch.began > _BATCH_SECONDS
        return batch.commits >= _BATCH_COMMITS or batch.size_bytes >= _BATCH_BYTES or late

    def _land(self) -> None:
        """Name what was made by refs, so that it stays when this is cut off."""

        def moves(view: LogView) -> Iterator[MovedRef]:
            refs = view.state.refs
            wanted = {f"{self._space}{one:.32}": one for one in self._frontier}
            for ref, one in wanted.items():
                if refs.get(ref) != one:
                    yield MovedRef(ref, refs.get(ref), one)
            for ref in refs:
                if ref.startswith(self._space) and ref not in wanted:
                    yield MovedRef(ref, refs[ref], None)

        self._append(moves, [*self._frontier])
        self._batch = self._begun()

    def _set_refs(self) -> tuple[dict[str, Digest], dict[str, Digest]]:
        """Set branches and tags, and drop the refs of the import, in one record."""
        wanted = {self._ref(ref): self._made[one] for ref, one in self._source.refs().items()}

        def moves(view: LogView) -> Iterator[MovedRef]:
            self._refuse_own_work(view)
            refs = view.state.refs
            for ref, one in wanted.items():
                held = refs.get(ref)
                if held is None:
                    refuse_taken(view, ref)
                if held is None or (ref.startswith(HEADS) and held != one):
                    forward = held is None or is_descendant(self._core.objects, one, held)
                    yield MovedRef(ref, held, one, forced=not forward)
            for ref in refs:
                if ref.startswith(self._space):
                    yield MovedRef(ref, refs[ref], None)

        self._append(moves, list(wanted.values()))
        held = self._core.log.refresh().state.refs
        for ref, one in wanted.items():
            if held.get(ref) != one:
                self._note(f"{ref} is {held.get(ref, ''):.12} here, and stays: tags never move")
        found = {ref: held.get(ref, one) for ref, one in wanted.items()}
        return (
            {ref.removeprefix(HEADS): one for ref, one in found.items() if ref.startswith(HEADS)},
            {ref.removeprefix(TAGS): one for ref, one in found.items() if ref.startswith(TAGS)},
        )

    def _append(
        self, moves: Callable[[LogView], Iterator[MovedRef]], commits: Iterable[Digest]
    ) -> None:
        """One record with these moves, when what they lead to is durable, and past the fence."""
        batch, core = self._batch, self._core
        batch.writer.flush()

        def decide(view: LogView) -> tuple[LogEntry, ...]:
            graves = gc_fence.graves_since(view.state, batch.pin.generation)
            if graves:
                hits = gc_fence.condemned(core.objects, batch.writer.own, graves)
                gc_fence.store_again(batch.writer, hits, view.state.graves, core.url)
            named = set(view.state.refs.values())
            for one in commits:
                if one not in named and (graves or one not in batch.writer.own):
                    gc_fence.secure_commit(batch.writer, view.state, one)
            made = list(moves(view))
            note = f"import of {self._source.tool} {self._source.name}"
            return entries_of(made, batch.writer, actor=self._actor, note=note) if made else ()

        core.append(decide)

    def _ref(self, ref: str) -> str:
        space, _, name = ref.partition("/")
        return check_ref(f"{space}/{self._prefix}{name}")

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)


def imported_commits(
    core: RepositoryCore, view: LogView, source: ForeignHistory
) -> dict[str, Digest]:
    """Commits here that were imported of a tool, by what they are called there."""
    tips = {one for ref, one in view.state.refs.items() if ref.startswith((HEADS, TAGS, IMPORTS))}
    found: dict[str, Digest] = {}
    for digest, commit in walk(core.objects, tips):
        told: Any = commit.metadata.get(_KEY)
        if not isinstance(told, dict) or told.get("tool") != source.tool:
            continue
        if told.get("name") in {"", source.name}:
            found.setdefault(str(told.get("commit")), digest)
    return found


def model_folders(files: Mapping[str, HistoryFile]) -> set[str]:
    """Folders that are one model each: weights in safetensors, with their config or index."""
    weights: set[str] = set()
    told: set[str] = set()
    for path in files:
        above, _, name = path.rpartition("/")
        if name.endswith(".safetensors"):
            weights.add(above)
        if name in _WHOLE or name.endswith(f".safetensors{INDEX_SUFFIX}"):
            told.add(above)
        if name == "model_index.json":
            weights.add(above)
    found = weights & told
    return {one for one in found if not any(up in found for up in _above(one))}


def _above(path: str) -> Iterator[str]:
    """Folders that a path lies in, the outermost first; of "" none."""
    if not path:
        return
    yield ""
    parts = path.split("/")[:-1]
    for at in range(1, len(parts) + 1):
        yield "/".join(parts[:at])


def _weights(place: Path) -> ModelSource | None:
    """A file of weights; None where it cannot be read as such."""
    try:
        source = read_model(place)
    except (InvalidInputError, UnsupportedError):
        return None
    return source if source.tensors else None


def _author(text: str) -> str:
    """An author as commits here have them."""
    plain = _printable(text.replace("\n", " "))
    name, _, address = plain.partition("<")
    words = [each.replace("<", "").replace(">", "").strip() for each in (name, address)]
    told = f"{words[0] or 'unknown'} <{words[1]}>"
    if len(told.encode()) > MAX_AUTHOR_BYTES:
        return f"{words[0][:100] or 'unknown'} <>"
    return told


def _message(text: str) -> str:
    plain = clean_message(_printable(text.replace("\r\n", "\n")))
    return plain.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore").rstrip()


def _printable(text: str) -> str:
    """Text as names and messages may have it: what a terminal would obey is replaced."""
    return "".join(
        each if each in "\n\t" or each.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for each in text.encode("utf-8", "replace").decode()
    )
