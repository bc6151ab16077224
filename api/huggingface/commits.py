"""Commits of Hugging Face's clients: files that come and go, stored as tensors and as files.

Of a model, files of weights are parsed and become tensors, stored against the most similar models;
what cannot be parsed is kept as a file. Of a dataset, files lie beside its rows as they came.

Who calls what: `commit_files` opens a transaction on the branch, lets the kind of repository stage
what changes, and commits it; a branch that moved meanwhile is merged onto, unless somebody changed
the same entry, or the client named the commit that it began from.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from tensorrepo.api.access.grants import Action
from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.content.files import sha256_key
from tensorrepo.api.foreign_names import ForeignName, proposal_number, short_commit
from tensorrepo.api.huggingface.commit_request import CommitRequest, LargeFile
from tensorrepo.api.huggingface.errors import (
    file_missing,
    repository_exists,
    revision_missing,
    stale_parent,
)
from tensorrepo.api.huggingface.hub_files import HubCommit
from tensorrepo.api.huggingface.proved_files import checksum_of, is_unchanged
from tensorrepo.api.huggingface.repositories import HubRepository
from tensorrepo.api.huggingface.row_uploads import rows_of, write_rows
from tensorrepo.api.proposals import proposals
from tensorrepo.api.transfer.quotas import require_room
from tensorrepo.formats.exchange.checkpoints.snapshot import READERS, SUFFIXES, WEIGHT_ORDER
from tensorrepo.formats.files.models import MADE, keep_made_file
from tensorrepo.formats.model.layout.manifest import FileEntry, Original
from tensorrepo.formats.model.write.file_edit import FileEdit, KeptFile, edit_files
from tensorrepo.formats.model.write.model_source import FileContent, ModelSource, content_of
from tensorrepo.formats.model.write.near_models import near_models
from tensorrepo.repo.changes.refs import BRANCHES, create_branch, delete_ref
from tensorrepo.repo.changes.revisions import Revision
from tensorrepo.repo.changes.transaction import CommitTransaction, begin, tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tensorrepo.repo.escaped_paths import escape_path, unescape_path
from tensorrepo.repo.history.commits import read_commit, walk
from tensorrepo.repo.history.trees import Entry, file_entry
from tensorrepo.repo.ids import Digest, digest_bytes
from tensorrepo.repo.objects.envelope import Kind

_LOOKED_AT: Final = 1000  # commits in which the source of a copy is looked for
_TRIES: Final = 20  # of a commit that names no parent, while others commit to the same repository
_ALL: Final = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit that a branch is at; `proposal` is the merge request that it was made for."""

    commit: Digest
    proposal: int | None = None


def commit_files(hub: HubRepository, revision: str, request: CommitRequest) -> Committed:
    """Make a commit on a branch, or one more of a merge request (``refs/pr/3``).

    Raises:
        PermissionDenied: the caller may not write to that branch.
        NotFoundError: there is no such branch.
        ConflictError: it moved since the commit that the client named as parent.
        InvalidInputError: a file that was not uploaded, or that cannot be stored.
    """
    number = proposal_number(revision)
    if number is not None:
        source = proposals.find(hub.access, number).request.source.removeprefix(BRANCHES)
        commit = _commit(hub, source, request)
        proposals.update(hub.access, number)
        return Committed(commit, number)
    return Committed(_commit(hub, branch_name(revision), request))


def propose_files(hub: HubRepository, revision: str, request: CommitRequest) -> Committed:
    """Make a commit on a branch of its own, and a merge request that proposes it.

    Raises: as `commit_files`.
    """
    target = branch_name(revision)
    at = hub.access.refs().get(BRANCHES + target)
    if at is None:
        raise revision_missing(hub.id, target)
    source = f"proposals/{hub.name.name}-{secrets.token_hex(4)}"
    hub.access.require(Action.WRITE, BRANCHES + source)
    core, author = hub.access.core, hub.access.caller.author
    create_branch(core, source, at, actor=author)
    try:
        commit = _commit(hub, source, request)
        made = proposals.propose(
            hub.access,
            source=source,
            target=target,
            title=request.summary.strip() or "Upload",
            text=request.description,
        )
    except BaseException:
        delete_ref(core, BRANCHES + source, actor=author)
        raise
    return Committed(commit, made.request.number)


def branch_name(revision: str) -> str:
    """The branch that a revision names, where only a branch will do."""
    return revision.removeprefix("refs/heads/")


def remove_repository(hub: HubRepository) -> None:
    """Remove the entry and the files beside it from every branch that has them.

    What the branches were before keeps them: history is not changed.

    Raises:
        PermissionDenied: the caller may not write to one of these branches. Nothing changed.
    """
    hub.require_there()
    branches = [
        ref.removeprefix(BRANCHES)
        for ref in hub.access.refs()
        if ref.startswith(BRANCHES) and _has(hub, ref.removeprefix(BRANCHES))
    ]
    for branch in branches:
        hub.access.require(Action.WRITE, BRANCHES + branch)
    request = CommitRequest(f"Remove {hub.name.entry}", removed_folders={_ALL})
    for branch in branches:
        with _begin(hub, branch) as tx:
            before = _at_base(hub, tx)
            for path, _ in before.blobs():
                tx.remove(path)
            if before.entry is not None:
                tx.remove(hub.name.entry)
            _land(hub, tx, request)


def rename_repository(hub: HubRepository, target: ForeignName) -> None:
    """Let main have the entry and the files beside it under another name.

    Raises:
        PermissionDenied: the caller may not write to main.
        ConflictError: there is one of that name.
    """
    hub.require_there()
    hub.access.require(Action.WRITE, f"{BRANCHES}main")
    there = HubRepository(hub.service, hub.access, target)
    with _begin(hub, "main") as tx:
        if _at_base(there, tx).exists:
            raise repository_exists(f"there is a repository {target.id} already", target.id)
        before = _at_base(hub, tx)
        for path, entry in before.blobs():
            tx.remove(path)
            tx.stage(target.files + path.removeprefix(hub.name.files), entry)
        if before.entry is not None:
            tx.remove(hub.name.entry)
            tx.stage(target.entry, before.entry)
        _land(hub, tx, CommitRequest(f"Rename {hub.name.entry} to {target.entry}"))


def make_empty(hub: HubRepository) -> None:
    """Let main have the repository, without files. Raises PermissionDenied."""
    hub.name.require_possible()
    hub.access.require(Action.WRITE, f"{BRANCHES}main")
    with _begin(hub, "main") as tx:
        if hub.name.space == "models":
            entry = edit_files(tx.objects, None, FileEdit()).entry
            tx.stage(hub.name.entry, entry)
        else:  # rows have columns: until there are some, a file says that it is there
            link = tx.objects.put(Kind.BLOB, _CARD.format(hub.name.name).encode())
            tx.stage(hub.name.files + "README.md", file_entry(link))
        _land(hub, tx, CommitRequest(f"Make {hub.name.entry}"))


_CARD: Final = "# {}\n"


def _has(hub: HubRepository, branch: str) -> bool:
    found = hub.look_at(f"refs/heads/{branch}")
    return found is not None and found.exists


def _commit(hub: HubRepository, branch: str, request: CommitRequest) -> Digest:
    hub.require_there()
    hub.access.require(Action.WRITE, BRANCHES + branch)
    for _ in range(0 if request.parent is not None else _TRIES - 1):
        try:
            return _commit_once(hub, branch, request)
        except ConflictError:
            continue  # somebody was first: what this one changes is changed on theirs
    return _commit_once(hub, branch, request)


def _commit_once(hub: HubRepository, branch: str, request: CommitRequest) -> Digest:
    with _begin(hub, branch) as tx:
        if tx.base is None:
            raise revision_missing(hub.id, branch)
        before = _at_base(hub, tx)
        if request.parent is not None:
            _refuse_stale(hub, before, request.parent)
        _refuse_missing(before, request)
        files = _Files(hub, before, request)
        stage = _stage_model if hub.name.space == "models" else _stage_files
        try:
            if size := files.uploaded_bytes():  # else it may be what makes room
                require_room(hub.access, size, hub.service.settings.repository_bytes)
            with hub.service.spool.encoding:
                stage(tx, before, files)
        except InvalidInputError:
            hub.service.spool.forget_damaged(hub.access, files.spooled)
            raise
        commit = _land(hub, tx, request)
    for large in files.spooled:
        hub.service.spool.forget(hub.access, large)
    return commit or before.content.commit


def _begin(hub: HubRepository, branch: str) -> CommitTransaction:
    return begin(hub.access.core, branch, unchanged=(hub.name.entry,))


def _at_base(hub: HubRepository, tx: CommitTransaction) -> HubCommit:
    """The repository as the transaction found it."""
    assert tx.base is not None, "the branch has a commit"
    revision = Revision(tx.base, read_commit(tx.objects, tx.base), tx.ref)
    content = CommitContent(hub.access, revision, hub.service.memory)
    return HubCommit(content, hub.name, hub.service.rendered)


def _land(hub: HubRepository, tx: CommitTransaction, request: CommitRequest) -> Digest | None:
    try:
        landed = tx.commit(request.message, author=hub.access.caller.author)
    except ConflictError as error:
        raise stale_parent(f"somebody changed {hub.id} meanwhile: {error}") from error
    return None if landed is None else landed.digest


def _refuse_stale(hub: HubRepository, before: HubCommit, parent: str) -> None:
    """Raise ConflictError where the repository is not as it was at `parent`.

    Commits that changed other entries alone do not count: those are other repositories there.
    """
    now = before.content.commit
    if now.startswith(parent):
        return
    past = hub.look_at(parent)
    if past is None or past.differs(before):
        raise stale_parent(
            f"a commit has happened since: {hub.id} is at {short_commit(now)}, and not as it was "
            f"at {parent:.40}. Look at it, and commit again."
        )


def _refuse_missing(before: HubCommit, request: CommitRequest) -> None:
    """Raise NotFoundError for what is to be deleted and is not there.

    By these words clients tell people to look whether they mean a file or a folder.
    """
    comes = request.contents.keys() | request.large.keys()
    for path in sorted(request.removed - comes):
        try:
            before.find(path)
        except NotFoundError as error:
            raise _not_deleted(before, "file", path) from error
    for folder in sorted(request.removed_folders - {"", "."}):
        if not before.has_folder(folder):
            raise _not_deleted(before, "folder", folder)


def _not_deleted(before: HubCommit, what: str, path: str) -> NotFoundError:
    commit = short_commit(before.content.commit)
    message = f"A {what} with this name doesn't exist, to be deleted: {path!r:.200}"
    return file_missing(message, commit)


class _Files:
    """Where the files of a commit are taken from."""

    def __init__(self, hub: HubRepository, before: HubCommit, request: CommitRequest) -> None:
        self.hub, self.before, self.request = hub, before, request
        self.spooled: set[str] = set()

    def uploaded(self) -> Iterator[tuple[str, FileContent]]:
        """Files that the caller brought, by path."""
        yield from self.request.contents.items()
        for path, large in self.request.large.items():
            found = self._spooled(large)
            if found is not None:
                self.spooled.add(large.sha256)
                yield path, found

    def uploaded_bytes(self) -> int:
        """What the caller brought takes."""
        return sum(
            content.stat().st_size if isinstance(content, Path) else len(content)
            for _, content in self.uploaded()
        )

    def copied(self) -> Iterator[tuple[str, LargeFile]]:
        """Files that the repository has already, by the path that they get."""
        for path, large in self.request.large.items():
            if self._spooled(large) is None:
                yield path, large

    def commits(self) -> Iterator[HubCommit]:
        """Commits that the caller may read in which a copy may be found, the nearest first."""
        yield self.before
        access = self.hub.access
        objects = access.core.objects
        tips = dict.fromkeys([self.before.content.commit, *access.refs().values()])
        for count, (digest, commit) in enumerate(walk(objects, list(tips))):
            if count == _LOOKED_AT:
                return
            content = CommitContent(access, Revision(digest, commit, None), self.hub.service.memory)
            yield HubCommit(content, self.hub.name, self.hub.service.rendered)

    def _spooled(self, large: LargeFile) -> Path | None:
        found = self.hub.service.spool.find(self.hub.access, large.sha256)
        if found is not None and large.size_bytes not in {None, found.stat().st_size}:
            raise InvalidInputError(
                f"file {large.sha256:.12} has {found.stat().st_size:,} bytes, the commit says "
                f"{large.size_bytes:,}"
            )
        return found


def _missing(path: str, large: LargeFile) -> InvalidInputError:
    return InvalidInputError(
        f"{path!r:.200}: a file of SHA-256 {large.sha256:.12} was not uploaded, and is none of "
        "this repository: upload it first"
    )


# ------------------------------------------------------------------------------ models


def _stage_model(tx: CommitTransaction, before: HubCommit, files: _Files) -> None:
    model = before.model
    had = [] if model is None else [*model.files, *model.originals]
    weights: dict[str, ModelSource] = {}
    plain: dict[str, FileContent] = {}
    for path, content in files.uploaded():
        parsed = parse_weights(path, content) if isinstance(content, Path) else None
        large = files.request.large.get(path)
        if parsed is not None and large is not None and isinstance(content, Path):
            proof, checksum = bytes.fromhex(large.sha256), checksum_of(content)
            originals = tuple(
                replace(one, sha256=proof, checksum=checksum) for one in parsed.originals
            )
            parsed = replace(parsed, originals=originals)
        if parsed is None:
            plain[path] = _unchanged(path, content)
        else:
            weights[path] = parsed
    copies = {path: _kept(tx, path, large, files) for path, large in files.copied()}
    stays = before.made is not None and not files.request.goes(MADE)
    if stays and any(one.of_tensors is not None for one in copies.values()):
        # A copy has tensors of that file: it would be made of those alone that are left.
        copies[MADE] = _kept_made(tx, before)
    edit = FileEdit(
        frozenset(name for name in had if files.request.goes(name)),
        copies,
        dict(sorted(weights.items(), key=lambda one: WEIGHT_ORDER[SUFFIXES[_suffix(one[0])]])),
        plain,
        drops_loose=before.has_made_file and files.request.goes(MADE),
    )
    known = near_models(tx.objects, tree_of(tx.objects, tx.base), (), before.name.entry)
    core = before.content.core
    written = edit_files(tx.objects, model, edit, known=[core.current(one) for one in known])
    # What is copied may be of a commit whose objects were condemned before this began.
    tx.stage(before.name.entry, written.entry, since=0 if copies else None)
    for path, _ in before.blobs():
        if files.request.goes(unescape_path(path.removeprefix(before.name.files))):
            tx.remove(path)


def parse_weights(path: str, content: Path) -> ModelSource | None:
    """The tensors of a file that is called so; None: it is kept as it is."""
    kind = SUFFIXES.get(_suffix(path))
    if kind is None:
        return None
    try:
        found = READERS[kind](content)
    except (InvalidInputError, UnsupportedError, NotFoundError):
        return None  # a pickle of something else, a damaged file: it comes out as it went in
    return found if len(found.originals) == 1 and found.tensors else None


def _unchanged(path: str, content: FileContent) -> FileContent:
    """A file that nothing else compares with what came. Raises InvalidInputError."""
    if isinstance(content, Path) and not is_unchanged(content):
        raise InvalidInputError(
            f"{path!r:.200}: the service's disk damaged it after it came: send it again"
        )
    return content


def _suffix(path: str) -> str:
    return Path(path).suffix.lower()


def _kept(tx: CommitTransaction, path: str, large: LargeFile, files: _Files) -> KeptFile:
    """Where a copy of a file is taken from. Raises InvalidInputError: nowhere."""
    wanted = bytes.fromhex(large.sha256)
    seen: set[Digest] = set()
    for commit in files.commits():
        if commit.entry is None or commit.entry.digest in seen or commit.model is None:
            continue
        seen.add(commit.entry.digest)
        files_of: list[FileEntry | Original] = [*commit.model.files.values()]
        files_of += commit.model.originals.values()
        for one in files_of:
            if one.sha256 == wanted and large.size_bytes in {None, one.size_bytes}:
                return KeptFile(commit.model, one.name)
        # Whoever names it was told its hash before: nothing is read to look for it.
        if commit.made is not None and commit.made.known_sha256() == large.sha256:
            return _kept_made(tx, commit)
    raise _missing(path, large)


def _kept_made(tx: CommitTransaction, commit: HubCommit) -> KeptFile:
    """The file that is made of a model's tensors, to be kept as it is."""
    assert commit.model is not None, "there is such a file"
    assert commit.made is not None, "there is such a file"
    proof = bytes.fromhex(commit.made.sha256())
    original = keep_made_file(tx.objects, commit.made.content, proof)
    return KeptFile(commit.model, MADE, original)


# ------------------------------------------------------------------------------ datasets


def _stage_files(tx: CommitTransaction, before: HubCommit, files: _Files) -> None:
    request, prefix = files.request, before.name.files
    for file in before.files():
        if request.goes(file.path):
            _remove_file(tx, before, file.path)
    uploaded = dict(files.uploaded())
    rows = rows_of(before, uploaded)
    if rows:
        entry = write_rows(tx.objects, rows, files.hub.service.spool.room())
        tx.stage(before.name.entry, entry)
    for path, content in uploaded.items():
        if path in rows:
            continue
        data = content_of(_unchanged(path, content))
        link = tx.objects.put(Kind.BLOB, data)
        tx.stage(prefix + escape_path(path), file_entry(link))
        large = request.large.get(path)
        kept = before.content.memory.profiles
        if large is not None and kept is not None:
            kept.put(sha256_key(link.digest), (bytes.fromhex(large.sha256),))
    for path, large in files.copied():
        tx.stage(prefix + escape_path(path), _kept_blob(path, large, files), since=0)


def _remove_file(tx: CommitTransaction, before: HubCommit, path: str) -> None:
    """Leave a file out. One that is made of rows goes with the rows, and they with it."""
    blob = before.name.files + escape_path(path)
    if tx.entry(blob) is not None:
        tx.remove(blob)
    else:
        tx.remove(before.name.entry)


def _kept_blob(path: str, large: LargeFile, files: _Files) -> Entry:
    seen: set[bytes] = set()
    for commit in files.commits():
        for at, entry in commit.blobs():
            if digest_bytes(entry.digest) in seen:
                continue
            seen.add(digest_bytes(entry.digest))
            if commit.blob(at, entry).sha256 == large.sha256:
                return entry
    raise _missing(path, large)


def uploads_needed(hub: HubRepository, files: Mapping[str, int]) -> dict[str, bool]:
    """Whether each file (SHA-256: bytes) has to be sent.

    Only what this caller brought counts: that a file is known tells that somebody has it.
    """
    return {
        sha256: (found := hub.service.spool.find(hub.access, sha256)) is None
        or found.stat().st_size != size
        for sha256, size in files.items()
    }
