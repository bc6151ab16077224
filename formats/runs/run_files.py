"""Files of a run: what it left beside its metrics, and models that were made of such files.

They lie in a commit of their own, which the ref ``runs/<name>/files`` names, so that a file is
stored without writing the run anew:

    files/<path>     a file, see `file_names`
    models/<path>    a folder, or a file of weights, as a model: tensors, and the files around them
    about.json       what the clients of others say of it

Each change makes the commit anew, without parents: what was replaced can be freed.

Source:
    docs/spec/run.md, section "Files".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tensorrepo.formats.model.write.model_source import FileContent, content_of
from tensorrepo.formats.runs.file_names import file_name, tree_path
from tensorrepo.formats.runs.run_record import RUNS, check_run_name
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import begin_beside, commit_beside
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import (
    EMPTY_TREE,
    Entry,
    file_entry,
    iterate,
    lookup,
)
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.repo.objects.writer import ObjectWriter

FILES: Final = "files/"
MODELS: Final = "models/"
ABOUT: Final = "about.json"
_RECORD: Final = "/files"
_TRIES: Final = 50


@dataclass(frozen=True, slots=True)
class FileTree:
    """Files of one run as they are now. `commit` is None where there are none.

    Attributes:
        objects: where they lie.
        owner: name of the run.
        commit: commit that holds them.
        root: root page of its tree.
    """

    objects: ObjectSource
    owner: str
    commit: Digest | None
    root: bytes

    def file(self, name: str) -> Entry | None:
        """The file of that name."""
        return lookup(self.objects, self.root, FILES + tree_path(name))

    def files(self, folder: str = "") -> Iterator[tuple[str, Entry]]:
        """Files in a folder, at any depth, by name."""
        prefix = FILES + (f"{tree_path(folder)}/" if folder else "")
        for path, entry in iterate(self.objects, self.root, prefix):
            yield file_name(path.removeprefix(FILES)), entry

    def models(self) -> Iterator[tuple[str, Entry]]:
        """Models by their paths in the tree."""
        for path, entry in iterate(self.objects, self.root, MODELS):
            if entry.kind is Kind.MODEL:
                yield path, entry

    def about(self) -> Buffer | None:
        """What is said about them as JSON."""
        entry = lookup(self.objects, self.root, ABOUT)
        return None if entry is None else self.objects.get(entry.digest).payload


Changes = Mapping[str, Entry | None]


def ref_of_files(owner: str) -> str:
    """Where the files of a run are to be found."""
    return f"{RUNS}{check_run_name(owner)}{_RECORD}"


def owner_of_ref(ref: str) -> str | None:
    """The run whose files are at `ref`; None where that is none."""
    if not (ref.startswith(RUNS) and ref.endswith(_RECORD)):
        return None
    owner = ref.removeprefix(RUNS).removesuffix(_RECORD)
    return owner if "/" not in owner else None


def file_tree(core: RepositoryCore, view: LogView, owner: str) -> FileTree:
    """Files of a run at `view`."""
    commit = view.state.refs.get(ref_of_files(owner))
    root = EMPTY_TREE if commit is None else read_commit(core.objects, commit).tree
    return FileTree(core.objects, owner, commit, root)


def edit_files(
    core: RepositoryCore,
    owner: str,
    change: Callable[[ObjectWriter, FileTree], Changes],
    *,
    author: str,
    message: str,
) -> FileTree:
    """Change the files of a run: read, changed and committed anew when others were first.

    Args:
        core: repository of the run.
        owner: name of the run.
        change: stores objects, and gives entries by path, None for those that go; asked again
            where others were first.
        author: author of the commit.
        message: message of the commit.

    Raises:
        ConflictError: others were first too often. Nothing changed.
    """
    ref = ref_of_files(owner)
    for last in reversed(range(_TRIES)):
        with begin_beside(core, ref) as transaction:
            before = file_tree(core, transaction.pin, owner)
            for path, entry in change(transaction.objects, before).items():
                if entry is None:
                    transaction.remove(path)
                else:
                    transaction.stage(path, entry)
            if not transaction.staged:
                return before
            try:
                made = commit_beside(
                    transaction,
                    None,
                    message,
                    author=author,
                    metadata={"run": owner},
                    drops=_unchanged(ref, before.commit),
                    tree=before.root,
                )
            except ConflictError:
                if not last:
                    raise
            else:
                return FileTree(core.objects, owner, made.digest, made.commit.tree)
    raise AssertionError("the last try returns or raises")


def put_file(
    core: RepositoryCore, owner: str, name: str, content: FileContent, *, author: str
) -> Entry:
    """Store a file of a run; one of that name is replaced.

    Args:
        core: repository of the run.
        owner: name of the run.
        name: its path among the files of the run.
        content: bytes, or where they lie; they must not change until this returns.
        author: author of the commit.
    """
    path = FILES + tree_path(name)
    data = content_of(content)
    stored: list[Entry] = []

    def change(objects: ObjectWriter, _: FileTree) -> Changes:
        stored[:] = [file_entry(objects.put(Kind.BLOB, data))]
        return {path: stored[0], MODELS + tree_path(name): None}

    edit_files(core, owner, change, author=author, message=f"Store {name} of run {owner}")
    return stored[0]


def remove_files(core: RepositoryCore, owner: str, name: str, *, author: str) -> int:
    """Remove a file, or a folder with all that is in it; gives how many files went.

    Raises:
        NotFoundError: there is neither.
    """
    gone: list[str] = []

    def change(_: ObjectWriter, tree: FileTree) -> Changes:
        own = [name] if name and tree.file(name) is not None else []
        gone[:] = [FILES + tree_path(one) for one in (*own, *(at for at, _ in tree.files(name)))]
        return dict.fromkeys(gone)

    edit_files(core, owner, change, author=author, message=f"Remove {name} of run {owner}")
    if not gone:
        raise NotFoundError(f"run {owner!r} has no file {name!r:.200}")
    return len(gone)


def _unchanged(ref: str, commit: Digest | None) -> Callable[[LogView], tuple[str, ...]]:
    def drops(view: LogView) -> tuple[str, ...]:
        if view.state.refs.get(ref) != commit:
            raise ConflictError(f"{ref} was changed meanwhile: repeat this")
        return ()

    return drops
