"""Desk of a simulated client: a workspace in which it stages and stashes, and parts that it wrote.

All of these are kept by leases alone until they are committed, which may run out.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tensorrepo.connect import Machine
from tensorrepo.formats.dataset.parts import RowsPart, secure_chunks
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.changes.leases import close_leases, open_lease
from tensorrepo.repo.changes.repository import LocalState, RepositoryCore, open_repository
from tensorrepo.repo.changes.revisions import Head
from tensorrepo.repo.changes.transaction import LandedCommit, begin, tree_of
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.trees import Entry, lookup
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.workspace import stash as stashes
from tensorrepo.workspace.committing import commit_staged
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.staging import begin_stage, unstage
from tensorrepo.workspace.state import StagingArea, create_workspace
from tests.support.simulation.store import FaultyStore

CONTENTS = 8  # that everybody writes again and again
DRAFTS = 3  # that one client alone stages, gives up, and stages again
PAUSES_SECONDS = (0.0, 1.0, 10.0)  # between what is put and its lease


@dataclass(frozen=True)
class WrittenPart:
    """A part as its writer tells of it: a lease keeps its root `digest`, which leads to `chunk`."""

    lease: str
    digest: Digest
    chunk: Digest
    content: bytes


class Desk:
    """What a client works on between its commits. It outlives the client, as a folder does."""

    def __init__(self, folder: Path, store: FaultyStore, author: str) -> None:
        self.store = store
        self.author = author
        self.machine = Machine({"TENSORREPO_AUTHOR": author}, folder, folder)
        self.workspace = create_workspace(folder, store.url, Head(branch="main"))
        self.parts: list[WrittenPart] = []
        self.done_with: list[str] = []  # leases of parts that were committed
        self.repository: RepositoryCore | None = None
        self.chance = store.world.chance

    @property
    def session(self) -> WorkspaceSession:
        if self.repository is None:
            local = LocalState(pending=self.workspace.folder / "pending")
            self.repository = open_repository(self.store, drivers={}, local=local)
        return WorkspaceSession(self.machine, self.repository, self.workspace)

    def content(self) -> bytes:
        return b"%d" % self.chance.randrange(CONTENTS) * 50

    def draft(self) -> bytes:
        """Content that mostly lies about as garbage."""
        return b"%s %d" % (self.store.name.encode(), self.chance.randrange(DRAFTS))

    def stage(self) -> None:
        with begin_stage(self.session) as made:
            for name, content in zip("ab", (self.draft(), self.content()), strict=True):
                link = made.objects.put(Kind.BLOB, content)
                made.stage(f"files/{self.store.name}/{name}", Entry(Kind.BLOB, link.digest))
            made.objects.flush()
            self.store.world.sleep(self.chance.choice(PAUSES_SECONDS))

    def commit_staged(self) -> tuple[LandedCommit | None, dict[str, bytes]]:
        """The commit, and what it changed."""
        session, staging = self.session, self.workspace.staging()
        objects = session.repository.objects
        before = tree_of(objects, staging.base)
        changed = {
            path: bytes(objects.get(staged.entry.digest).payload)
            for path, staged in staging.entries.items()
            if staged.entry is not None and staged.entry != lookup(objects, before, path)
        }
        return commit_staged(session, "staged").made, changed

    def unstage(self) -> None:
        if self.workspace.staging().entries:
            unstage(self.session, None)

    def stash(self) -> None:
        stashes.push(self.session, "aside")

    def unstash(self) -> None:
        if self.workspace.stashes():
            _, chosen = stashes.find_stash(self.session, None)
            stashes.bring_back(self.session, chosen, keep=self.chance.random() < 0.3)

    def drop_stash(self) -> None:
        if self.workspace.stashes():
            stashes.drop(self.session, self.chance.choice(self.workspace.stashes()))

    def write_part(self) -> None:
        repository = self.session.repository
        pin, content = repository.log.refresh(), self.draft()
        writer = ObjectWriter(repository.objects, pin.state.graves)
        try:
            chunk = writer.put(Kind.BLOB, content).digest
            root = writer.put(Kind.MODEL, b"part", [chunk]).digest
            writer.flush()
        finally:
            writer.abort()
        self.store.world.sleep(self.chance.choice(PAUSES_SECONDS))
        lease, seconds = f"part-{secrets.token_hex(8)}", self.chance.choice([1.0, 60.0])
        since = pin.generation
        open_lease(
            repository, lease, [root], since=since, holder=self.author, note="part", seconds=seconds
        )
        self.parts.append(WrittenPart(lease, root, chunk, content))

    def commit_part(self, branch: str) -> tuple[LandedCommit | None, dict[str, bytes]]:
        """The commit of a part, whatever became of its lease."""
        if not self.parts:
            return None, {}
        part = self.chance.choice(self.parts)
        path = f"files/{self.store.name}/part"
        with begin(self.session.repository, branch) as transaction:
            # Of a dataset no more is asked than where it begins.
            stored = cast(StoredDataset, part)
            secure_chunks(transaction.objects, [(RowsPart(part.lease, part.digest, 1), stored)])
            entry = Entry(Kind.BLOB, part.chunk)
            changed = {path: part.content} if transaction.entry(path) != entry else {}
            transaction.stage(path, entry)
            made = transaction.commit("part", author=self.author)
        self.parts.remove(part)
        self.done_with.append(part.lease)
        return made, changed

    def release_parts(self) -> None:
        """Those that are committed, and one that nobody will commit."""
        given_up = self.parts[-1:] if self.chance.random() < 0.2 else []
        leases = [*self.done_with, *(part.lease for part in given_up)]
        close_leases(self.session.repository, leases, holder=self.author)
        self.done_with = []
        self.parts = [part for part in self.parts if part not in given_up]

    def check(self, fresh: RepositoryCore) -> None:
        """What was said to be kept is there, as long as its lease is open."""
        state, leases = fresh.log.refresh().state, fresh.log.refresh().state.leases
        kept = {part.lease: {part.digest, part.chunk} for part in self.parts}
        for stash in self.workspace.stashes():
            if stash.lease is not None:
                kept[stash.lease] = _staged(stash.staging)
        if (lease := self.workspace.state().lease) is not None:
            kept[lease] = kept.get(lease, set()) | _staged(self.workspace.staging())
        for lease in kept.keys() & leases.keys():
            try:
                there = {*gc_fence.closure(fresh.objects, leases[lease].keep, state.supersedes)}
                for digest in kept[lease]:
                    fresh.objects.get(digest)
            except NotFoundError as error:
                raise AssertionError(f"{lease} keeps what is gone: {error}") from error
            assert kept[lease] <= there, f"{lease} keeps too little"


def _staged(staging: StagingArea) -> set[Digest]:
    entries = [staged.entry for staged in staging.entries.values()]
    return {entry.digest for entry in entries if entry is not None}
