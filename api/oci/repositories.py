"""Repositories of OCI registries: one model each, found by tag and by digest.

``ns/name`` is the model `name` of the repository `ns`, and ``team/nets/name`` that of `team/nets`;
see `foreign_names`. Its files are those that Hugging Face's clients see.

A tag is an alias or the number of a version that the model has in the registry, else a branch, a
tag or digits of a commit; ``latest`` is the branch main unless something is called so. A digest is
no right: what has it is looked for in commits to which refs lead that the caller may read.

Source:
    docs/design/140-a-model-is-an-artifact-made-of-its-files.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import field, replace
from itertools import islice
from typing import Any, Final

from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.foreign_names import foreign_refs, resolve_foreign
from tensorrepo.api.huggingface.hub_files import HubCommit, HubFile
from tensorrepo.api.huggingface.repositories import MAIN, HubRepository
from tensorrepo.api.oci.artifacts import MAX_LAYERS, ArtifactFile, ModelArtifact, make_artifact
from tensorrepo.api.oci.digests import ToldDigests
from tensorrepo.api.oci.errors import (
    blob_missing,
    digest_invalid,
    manifest_missing,
    name_missing,
)
from tensorrepo.api.repositories.opening import ServedRepository
from tensorrepo.repo.changes.refs import BRANCHES, TAGS
from tensorrepo.repo.changes.revisions import Revision
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CommitExpired,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PurgedError,
    TooLargeError,
)
from tensorrepo.repo.history.commits import read_commit, walk
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.registry.versions import SPACE

LATEST: Final = "latest"
MOST_TAGS: Final = 1000  # of one answer
LOOKED_AT: Final = 2000  # commits behind refs, where none at a ref has what is asked for
_TAG: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}", re.ASCII)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_KEPT_BYTES: Final = 32 << 20  # of artifacts of one repository
_KEPT_PLACES: Final = 4096


@dataclass(frozen=True, slots=True)
class OciMemory:
    """What is kept of one repository; all of it may be lost. Thread-safe.

    Attributes:
        artifacts: artifacts by the content that they are made of.
        places: commits by the name and the digest that they had last.
        proved: files that were compared with their hash.
        told: artifacts whose digests are in the service's database.
    """

    artifacts: LimitedCache[ModelArtifact] = field(
        default_factory=lambda: LimitedCache(_KEPT_BYTES)
    )
    places: LimitedCache[Digest] = field(default_factory=lambda: LimitedCache(_KEPT_PLACES))
    proved: LimitedCache[bool] = field(default_factory=lambda: LimitedCache(_KEPT_PLACES))
    told: LimitedCache[bool] = field(default_factory=lambda: LimitedCache(_KEPT_PLACES))


@dataclass(frozen=True, slots=True)
class FoundArtifact:
    """An artifact, and a commit that has its files."""

    commit: HubCommit
    artifact: ModelArtifact


@dataclass(frozen=True, slots=True)
class OciRepository:
    """One model, as far as its caller may see it."""

    hub: HubRepository

    @property
    def id(self) -> str:
        return self.hub.id

    def find(self, reference: str) -> FoundArtifact:
        """The artifact of a tag or a digest.

        Raises:
            NotFoundError: there is none, or no such model.
            InvalidInputError: it looks like a digest, but is none.
            TooLargeError: the model has too many files.
        """
        if ":" in reference:
            wanted = check_digest(reference)
            found = next((one for one in self._all(wanted) if one.artifact.digest == wanted), None)
        else:
            found = self._tagged(reference)
        if found is None:
            self.require_there()
            raise manifest_missing(
                f"{self.id} has no {reference!r:.160} that you may read and that has files"
            )
        self._remember(reference if ":" in reference else found.artifact.digest, found)
        self._remember("", found)
        self._write_down(found)
        return found

    def blob(self, digest: str) -> HubFile:
        """The file, or the config, that has a digest. Raises NotFoundError."""
        wanted = check_digest(digest)
        for found in self._all(wanted):
            if wanted == found.artifact.config_digest:
                self._remember(wanted, found)
                return _in_memory(found.artifact.config)
            path = found.artifact.paths.get(wanted)
            if path is not None:
                self._remember(wanted, found)
                return self._proving(found.commit, path)
        self.require_there()
        raise blob_missing(f"{self.id} has no file {digest} that you may read")

    def tags(self, after: str, limit: int) -> list[str]:
        """Names that `find` takes, in the order of their bytes, behind `after`."""
        found: list[str] = []
        for tag in sorted(self._tags()):
            if len(found) == limit:
                break
            if tag > after and self._tagged(tag) is not None:
                found.append(tag)
        return found

    def require_there(self) -> None:
        """Raises NotFoundError unless some ref has the model."""
        if not any(commit.exists for commit in self._at_refs()):
            raise name_missing(self.id)

    # ------------------------------------------------------------------------ by tag

    def _tagged(self, tag: str) -> FoundArtifact | None:
        if _TAG.fullmatch(tag) is None:
            return None
        refs = self.hub.access.refs()
        for ref in (f"{self._registered}alias/{tag}", f"{self._registered}v/{tag}"):
            if ref in refs:
                return self._made(self._at(refs[ref], ref))
        if tag == LATEST and BRANCHES + tag not in refs and TAGS + tag not in refs:
            tag = MAIN
        commit = self.hub.look_at(tag)
        return None if commit is None else self._made(commit)

    def _tags(self) -> set[str]:
        known = foreign_refs(self.hub.access)
        start = self._registered
        registered = {
            ref.rpartition("/")[2]
            for ref in self.hub.access.refs()
            if ref.startswith((f"{start}alias/", f"{start}v/"))
        }
        named = {LATEST, *known.branches, *known.tags, *registered}
        return {tag for tag in named if _TAG.fullmatch(tag)}

    @property
    def _registered(self) -> str:
        return f"{SPACE}{self.hub.name.name}/"

    def _at(self, commit: Digest, ref: str | None = None) -> HubCommit:
        """The model at a commit that the caller may read."""
        access, service = self.hub.access, self.hub.service
        revision = Revision(commit, read_commit(access.core.objects, commit), ref)
        content = CommitContent(access, revision, service.memory)
        return HubCommit(content, self.hub.name, service.rendered)

    # ------------------------------------------------------------------------ by digest

    def _all(self, digest: str) -> Iterator[FoundArtifact]:
        """Artifacts that the caller may read, each content once, the likeliest first."""
        seen = set()
        for commit in self._commits(digest):
            key = _content_key(commit)
            if key is None or key in seen:
                continue
            seen.add(key)
            try:
                found = self._made(commit)
            except (TooLargeError, NotFoundError, CommitExpired, PurgedError):
                continue  # nothing that could be pulled, any more
            if found is not None:
                yield found

    def _commits(self, digest: str) -> Iterator[HubCommit]:
        for known in self._places(digest):
            try:
                yield self._at(resolve_foreign(self.hub.access, known).digest)
            except (NotFoundError, InvalidInputError):  # gone, or nothing for this caller
                continue
        yield from self._at_refs()
        yield from self._in_history()

    def _places(self, digest: str) -> Iterator[Digest]:
        """Commits that had it, or what was asked for last, as far as that is remembered."""
        for key in (digest, ""):
            known = self._memory.places.get((self.id, key))
            if known is not None:
                yield known
        told = self._told.place(digest)
        if told is not None:
            yield told

    def _at_refs(self) -> Iterator[HubCommit]:
        refs = self.hub.access.refs()
        known = foreign_refs(self.hub.access)
        registered = [at for ref, at in refs.items() if ref.startswith(self._registered)]
        main = [known.branches[MAIN]] if MAIN in known.branches else []
        proposed = known.proposals.values()
        others = (*known.branches.values(), *known.tags.values(), *proposed)
        for commit in dict.fromkeys((*main, *registered, *others)):
            yield self._at(commit)

    def _in_history(self) -> Iterator[HubCommit]:
        """Commits behind the branches that changed the model, the newest first."""
        core, name = self.hub.access.core, self.hub.name
        tips = set(foreign_refs(self.hub.access).branches.values())
        for digest, commit in islice(walk(core.objects, tips), LOOKED_AT):
            if any(core.touches(digest, commit, path) for path in (name.entry, name.files)):
                yield self._at(digest)

    # ------------------------------------------------------------------------ content

    @property
    def _memory(self) -> OciMemory:
        return self.hub.access.served.kept(_memory)

    def _remember(self, key: str, found: FoundArtifact) -> None:
        """Let the next one who asks for it look here first."""
        places, place = self._memory.places, (self.id, key)
        places.drop(place)
        places.put(place, found.commit.content.commit, 1)

    @property
    def _told(self) -> ToldDigests:
        hub = self.hub
        return ToldDigests(hub.service.database, hub.access.name, hub.name.name)

    def _write_down(self, found: FoundArtifact) -> None:
        """Keep where the digests of an artifact are found, once in a process."""
        artifact, told = found.artifact, (self.id, found.artifact.digest)
        if self._memory.told.get(told) is None:
            digests = dict.fromkeys((artifact.digest, artifact.config_digest, *artifact.paths))
            self._told.remember(digests, found.commit.content.commit)
            self._memory.told.put(told, True, 1)

    def _made(self, commit: HubCommit) -> FoundArtifact | None:
        """What a commit has of the model; None: no files."""
        key = _content_key(commit)
        if key is None:
            return None
        name = self.hub.name.name

        def make() -> tuple[ModelArtifact, int]:
            made = make_artifact(name, _files(commit))
            return made, 3 * len(made.manifest)

        artifact = self._memory.artifacts.get_or_load((name, *key), make)
        return FoundArtifact(commit, artifact) if artifact.paths else None

    def _proving(self, commit: HubCommit, path: str) -> HubFile:
        """A file, whose first whole reading is compared with its hash."""
        file, entry = commit.find(path), commit.entry
        # Another model may tell the same of other bytes, so what was proved is this one's.
        key = (None if entry is None else entry.digest, path, file.sha256)
        proved = self._memory.proved

        def read(start: int, stop: int) -> Iterator[Buffer]:
            if (start, stop) != (0, file.size_bytes) or proved.get(key):
                return file.read(start, stop)
            return _hashed(file, proved, key)

        headers = (("Docker-Content-Digest", f"sha256:{file.sha256}"),)
        return replace(file, read=read, headers=headers)


def check_digest(text: str) -> str:
    """`text`, when it is a digest of SHA-256. Raises InvalidInputError."""
    if _DIGEST.fullmatch(text) is None:
        raise digest_invalid(text)
    return text


def _memory(_: ServedRepository) -> OciMemory:
    return OciMemory()


def _content_key(commit: HubCommit) -> tuple[Any, ...] | None:
    """What the artifact of a commit is made of; None: nothing.

    Raises:
        TooLargeError: there are more files than any manifest can name.
    """
    beside = list(islice(commit.blobs(), MAX_LAYERS + 1))
    if len(beside) > MAX_LAYERS:
        raise TooLargeError(f"{commit.name.id} has more than {MAX_LAYERS:,} files: too many")
    if commit.entry is None and not beside:
        return None
    entry = None if commit.entry is None else commit.entry.digest
    return entry, *((path, blob.digest) for path, blob in beside)


def _files(commit: HubCommit) -> Iterator[ArtifactFile]:
    weights = commit.weights
    for file in commit.files():
        yield ArtifactFile(file.path, file.size_bytes, file.sha256, file.path in weights)


def _hashed(file: HubFile, proved: LimitedCache[bool], key: object) -> Iterator[Buffer]:
    """A whole file; its last piece is given when the hash of all is right.

    A model that was pushed says itself what its files hash to.
    """
    hasher, held = hashlib.sha256(), None
    for piece in file.read(0, file.size_bytes):
        hasher.update(piece)
        if held is not None:
            yield held
        held = piece
    if hasher.hexdigest() != file.sha256:
        raise CorruptError(
            f"{file.path} has SHA-256 {hasher.hexdigest():.12}, expected {file.sha256:.12} as its "
            "model says: whoever committed it was wrong. Commit the file again."
        )
    proved.put(key, True, 1)
    if held is not None:
        yield held


def _in_memory(content: bytes) -> HubFile:
    sha256 = hashlib.sha256(content).hexdigest()
    headers = (("Docker-Content-Digest", f"sha256:{sha256}"),)
    view = memoryview(content)
    return HubFile(
        "config.json",
        len(content),
        lambda: sha256,
        lambda start, stop: iter((view[start:stop],)),
        headers,
    )
