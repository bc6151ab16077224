"""Repositories of small files, for tests that care about history and not about content."""

from __future__ import annotations

from collections.abc import Mapping

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.repository import (
    LocalState,
    RepositoryCore,
    create_repository,
    open_repository,
)
from tensorrepo.repo.changes.transaction import CommitTransaction, LandedCommit, begin, tree_of
from tensorrepo.repo.history.trees import Entry, iterate
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind

ADA = "Ada <ada@example.org>"
BOB = "Bob <bob@example.org>"


def new_repository(backend: Backend | None = None) -> RepositoryCore:
    """A repository without merge drivers."""
    return create_repository(backend or MemoryBackend(), drivers={}, local=LocalState())


def again(repository: RepositoryCore) -> RepositoryCore:
    """The same repository, opened by somebody who remembers nothing."""
    return open_repository(repository.backend, drivers={})


def stage_files(transaction: CommitTransaction, files: Mapping[str, bytes | None]) -> None:
    """Stage the content of files by path; None removes one."""
    for path, content in files.items():
        if content is None:
            transaction.remove(path)
        else:
            link = transaction.objects.put(Kind.BLOB, content)
            transaction.stage(path, Entry(Kind.BLOB, link.digest))


def commit_files(
    repository: RepositoryCore,
    files: Mapping[str, bytes | None],
    *,
    branch: str = "main",
    author: str = ADA,
    message: str = "change",
) -> LandedCommit:
    """One commit that changes `files`."""
    transaction = begin(repository, branch)
    stage_files(transaction, files)
    made = transaction.commit(message, author=author)
    assert made is not None
    return made


def files_at(repository: RepositoryCore, commit: Digest | None) -> dict[str, bytes]:
    """Content of all files of a commit, read and verified."""
    objects = repository.objects
    return {
        path: bytes(objects.get(entry.digest).payload)
        for path, entry in iterate(objects, tree_of(objects, commit))
    }


def tip_of(repository: RepositoryCore, branch: str = "main") -> Digest | None:
    return repository.log.refresh().state.refs.get(f"heads/{branch}")
