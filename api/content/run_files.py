"""Files of runs and of models that runs left, for one caller: listed, opened, stored, removed.

Who may read or write them is told by the ref ``runs/NAME/files``. A file that went into a model is
found under its old name all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.content import files, model_bytes
from tensorrepo.api.content.commit_content import CommitContent, ContentMemory
from tensorrepo.api.content.models import FoundModel
from tensorrepo.formats.common.summaries import list_entry
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.runs.file_names import tree_path
from tensorrepo.formats.runs.run_files import (
    FILES,
    FileTree,
    file_tree,
    put_file,
    ref_of_files,
    remove_files,
)
from tensorrepo.formats.runs.run_models import FolderModel, folder_models, is_weights, put_weights
from tensorrepo.repo.changes.revisions import Revision
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file, or a folder of some, by its last name."""

    name: str
    is_folder: bool
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class FileDownload:
    """A file of a run to download. Its bytes are proved before the first is given."""

    file: files.FileContent
    name: str

    @property
    def etag(self) -> str:
        return f'"{self.file.digest}"'

    @property
    def size_bytes(self) -> int:
        return self.file.bytes

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return ()

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        return map(memoryview, self.file.pieces(start, stop))


Downloaded = FileDownload | model_bytes.DownloadableBytes


def list_run_files(access: RepositoryAccess, owner: str, folder: str = "") -> list[ListedFile]:
    """What a folder of a run's files holds, by name; nothing where there is no such folder."""
    access.require(Action.READ, ref_of_files(owner))
    tree = file_tree(access.core, access.view, owner)
    found = [(name, list_entry(name, entry).bytes) for name, entry in tree.files(folder)]
    for model, opened in _models(tree):
        prefix = f"{model.folder}/" if model.folder else ""
        names = ((f"{prefix}{name}", size) for name, size in _sizes(opened))
        found += [one for one in names if not folder or one[0].startswith(f"{folder}/")]
    return folded(found, folder)


def open_run_file(
    access: RepositoryAccess, memory: ContentMemory, owner: str, name: str
) -> Downloaded:
    """A file of a run. Raises NotFoundError."""
    access.require(Action.READ, ref_of_files(owner))
    tree = file_tree(access.core, access.view, owner)
    if tree.commit is None:
        raise _no_file(owner, name)
    commit = read_commit(access.core.objects, tree.commit)
    revision = Revision(tree.commit, commit, ref_of_files(owner))
    if tree.file(name) is not None:
        content = CommitContent(access, revision, memory)
        file = files.open_file(content, FILES + tree_path(name))
        return FileDownload(file, name.rpartition("/")[2])
    for model, opened in _models(tree):
        inner = model.name_of(name)
        if inner is not None and (inner in opened.files or inner in opened.originals):
            found = FoundModel(ref_of_files(owner), revision, model.path, opened)
            return model_bytes.open_file(found, inner)
    raise _no_file(owner, name)


def put_run_file(
    access: RepositoryAccess,
    owner: str,
    name: str,
    content: Path,
    *,
    known: Callable[[], list[Entry]],
) -> None:
    """Store a file of a run, durable when this returns; one of that name is replaced.

    Args:
        access: repository of the run.
        owner: name of the run.
        name: path of the file.
        content: where it lies, under the last part of `name`.
        known: gives models that weights may be stored against.
    """
    access.require(Action.WRITE, ref_of_files(owner))
    author = access.caller.author
    if is_weights(name) and put_weights(
        access.core, owner, name, content, known=known(), author=author
    ):
        return
    put_file(access.core, owner, name, content, author=author)


def put_plain_file(access: RepositoryAccess, owner: str, name: str, content: Path) -> None:
    """Store a file as it is, whatever is in it."""
    access.require(Action.WRITE, ref_of_files(owner))
    put_file(access.core, owner, name, content, author=access.caller.author)


def remove_run_files(access: RepositoryAccess, owner: str, name: str) -> None:
    """Remove a file, or a folder.

    Raises:
        NotFoundError: there is neither.
        InvalidInputError: it went into a model, which stays as it is.
    """
    access.require(Action.WRITE, ref_of_files(owner))
    try:
        remove_files(access.core, owner, name, author=access.caller.author)
    except NotFoundError:
        for model, opened in _models(file_tree(access.core, access.view, owner)):
            prefix = f"{model.folder}/" if model.folder else ""
            names = (prefix + inner for inner, _ in _sizes(opened))
            if any(one == name or one.startswith(f"{name}/") for one in names):
                raise InvalidInputError(
                    f"{name!r:.200} went into model {model.path!r} of run {owner!r}, which stays "
                    "as it is"
                ) from None
        raise


def model_of_commit(access: RepositoryAccess, commit: str) -> FoundModel:
    """The one model of a commit that holds a version of a registered name. Raises NotFoundError."""
    revision = access.resolve(commit)
    for path, entry in access.core.entries(revision.commit.tree):
        if entry.kind is Kind.MODEL:
            return FoundModel(commit, revision, path, open_model(access.core.objects, entry))
    raise NotFoundError(f"commit {commit:.12} holds no model")


def list_model_files(model: FoundModel, folder: str = "") -> list[ListedFile]:
    """What a folder of a model's files holds, by name."""
    inside = [one for one in _sizes(model.model) if not folder or one[0].startswith(f"{folder}/")]
    return folded(inside, folder)


def folded(found: Iterable[tuple[str, int]], folder: str) -> list[ListedFile]:
    """Files and folders right inside `folder`, of names that lie in it at any depth."""
    start = len(folder) + 1 if folder else 0
    listed: dict[str, ListedFile] = {}
    for name, size in found:
        head, slash, _ = name[start:].partition("/")
        listed[head] = ListedFile(head, bool(slash), 0 if slash else size)
    return [listed[name] for name in sorted(listed)]


def _models(tree: FileTree) -> Iterator[tuple[FolderModel, StoredModel]]:
    for model in folder_models(tree):
        yield model, open_model(tree.objects, model.entry)


def _sizes(model: StoredModel) -> list[tuple[str, int]]:
    files_of = [(name, file.size_bytes) for name, file in model.files.items()]
    return files_of + [(name, file.size_bytes) for name, file in model.originals.items()]


def _no_file(owner: str, name: str) -> NotFoundError:
    return NotFoundError(f"No such artifact: run {owner!r:.128} has no file {name!r:.300}")
