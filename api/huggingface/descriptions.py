"""What Hugging Face's clients are told of repositories, files and commits: JSON in their words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from math import prod
from typing import Final

import msgspec

from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.content.history import CommitRecord, HistoryFilter, list_history
from tensorrepo.api.foreign_names import ForeignName, foreign_refs, short_commit
from tensorrepo.api.huggingface.card_metadata import CARD, Json, card_metadata
from tensorrepo.api.huggingface.errors import file_missing
from tensorrepo.api.huggingface.hub_files import HubCommit, HubFile
from tensorrepo.api.huggingface.repositories import HubRepository
from tensorrepo.formats.files.models import has_made_file
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import Commit
from tensorrepo.repo.ids import Digest

CONFIG: Final = "config.json"
_MOST_TEXT: Final = 1 << 20  # of a card or a config that is read for a description
_MOST_SIBLINGS: Final = 100_000


def describe(commit: HubCommit, *, blobs: bool = False) -> Json:
    """What a client learns of a repository at a commit; reads the card and the config alone."""
    card = card_of(commit)
    said = card.get("tags") or []
    tags = [str(tag) for tag in (said if isinstance(said, list) else (said,))]
    touched, files = last_change(commit), list(islice(commit.files(), _MOST_SIBLINGS))
    told: Json = {
        **_brief(commit),
        "sha": short_commit(commit.content.commit),
        "lastModified": touched["date"],
        "siblings": [_sibling(one, blobs=blobs) for one in files],
        "cardData": card,
        "usedStorage": sum(one.size_bytes for one in files),
    }
    told["tags"] = [*tags, *told["tags"]]
    if commit.made is not None:
        commit.made.hashing()  # what is asked next is its hash: it is computed meanwhile
    if commit.model is not None:
        config = _config(commit)
        told["config"] = {
            key: config[key] for key in ("architectures", "model_type") if key in config
        }
        told["library_name"] = card.get("library_name") or (
            "transformers" if "model_type" in config else None
        )
        told["pipeline_tag"] = card.get("pipeline_tag")
        counts = _parameters(commit)
        if counts:
            told["safetensors"] = {"parameters": counts, "total": sum(counts.values())}
    return told


def brief(commit: HubCommit) -> Json:
    """What a list of repositories says of each."""
    return {**_brief(commit), "sha": short_commit(commit.content.commit)}


def _brief(commit: HubCommit) -> Json:
    name = commit.name
    moment = moment_text(commit.content.revision.commit.time_ns)
    told: Json = {
        "_id": name.id,
        "id": name.id,
        "author": name.namespace,
        "private": True,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": ["safetensors"] if _is_safetensors(commit) else [],
        "createdAt": moment,
        "lastModified": moment,
    }
    if name.space == "models":
        told["modelId"] = name.id
    return told


def _is_safetensors(commit: HubCommit) -> bool:
    if commit.name.space != "models" or commit.entry is None or commit.model is None:
        return False
    came = any(one.format == "safetensors" for one in commit.model.originals.values())
    return came or has_made_file(commit.model)


def _sibling(file: HubFile, *, blobs: bool) -> Json:
    if not blobs:
        return {"rfilename": file.path}
    return {
        "rfilename": file.path,
        "size": file.size_bytes,
        "blobId": file.blob_id,
        "lfs": {"sha256": file.sha256, "size": file.size_bytes, "pointerSize": len(file.pointer)},
    }


def _parameters(commit: HubCommit) -> dict[str, int]:
    """Numbers of parameters by type, where the weights came as safetensors."""
    model = commit.model
    if model is None or not _is_safetensors(commit):
        return {}
    counts: Counter[str] = Counter()
    for tensor in model.manifest.tensors:
        counts[tensor.type] += prod(tensor.shape)
    return dict(counts)


def _text(commit: HubCommit, name: str) -> str:
    """A small text file; "" where there is none."""
    try:
        file = commit.find(name)
    except NotFoundError:
        return ""
    if file.size_bytes > _MOST_TEXT:
        return ""
    return file.whole().decode(errors="replace")


def card_of(commit: HubCommit) -> Json:
    """The YAML in front of the card; nothing where there is none, or it is no such thing."""
    return card_metadata(_text(commit, CARD))


def _config(commit: HubCommit) -> Json:
    try:
        found = msgspec.json.decode(_text(commit, CONFIG) or "{}")
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# ------------------------------------------------------------------------------ files


def file_json(file: HubFile, last: Json | None = None) -> Json:
    """A file in a listing of a tree."""
    told: Json = {
        "type": "file",
        "path": file.path,
        "size": file.size_bytes,
        "oid": file.blob_id,
        "lfs": {"oid": file.sha256, "size": file.size_bytes, "pointerSize": len(file.pointer)},
    }
    return told if last is None else told | {"lastCommit": last}


def folder_json(path: str, commit: Digest) -> Json:
    """A folder in a listing of a tree."""
    return {"type": "directory", "path": path, "size": 0, "oid": short_commit(commit)}


def list_tree(
    commit: HubCommit, folder: str, *, recursive: bool, after: str | None, limit: int
) -> tuple[list[HubFile | str], str | None]:
    """Files below a folder and the folders in it, and where the next page begins.

    Args:
        commit: which commit.
        folder: "" is all of the repository.
        recursive: whether files of folders are listed, too.
        after: the last file of the page before.
        limit: largest number of files that are looked at.

    Raises:
        NotFoundError: nothing is in that folder.
    """
    found: list[HubFile | str] = []
    seen = set(_folders(after, folder, recursive=recursive)) if after is not None else set()
    last = None
    for count, file in enumerate(commit.files(folder, after), 1):
        last = file.path
        for part in _folders(file.path, folder, recursive=recursive):
            if part not in seen:
                seen.add(part)
                found.append(part)
        if recursive or "/" not in file.path.removeprefix(f"{folder}/" if folder else ""):
            found.append(file)
        if count == limit:
            break
    else:
        last = None
    if folder and not found and after is None:
        message = f"no folder {folder!r:.200} in {commit.name.id}"
        raise file_missing(message, short_commit(commit.content.commit))
    return found, last


def _folders(path: str, folder: str, *, recursive: bool) -> Iterator[str]:
    """Folders between `folder` and a file in it."""
    parts = path.removeprefix(f"{folder}/" if folder else "").split("/")[:-1]
    at = folder
    for part in parts if recursive else parts[:1]:
        at = f"{at}/{part}" if at else part
        yield at


def find_paths(commit: HubCommit, paths: list[str]) -> Iterator[HubFile | str]:
    """Those of some paths that are there: files, and folders as their names."""
    for path in paths:
        wanted = path.strip("/")
        try:
            yield commit.find(wanted)
        except NotFoundError:
            if commit.has_folder(wanted):
                yield wanted


# ------------------------------------------------------------------------------ commits


@dataclass(frozen=True, slots=True)
class _TouchesHub(HistoryFilter):
    """Commits that changed the entry of a repository, or a file beside it."""

    name: ForeignName | None = None

    def takes(self, content: CommitContent, digest: Digest, commit: Commit) -> bool:
        assert self.name is not None, "made with a name"
        return any(
            content.core.touches(digest, commit, path)
            for path in (self.name.entry, self.name.files)
        )


def list_commits(commit: HubCommit, after: str | None, limit: int) -> tuple[list[Json], str | None]:
    """Commits that changed the repository, the newest first."""
    wanted = _TouchesHub(name=commit.name)
    found = list_history(commit.content, wanted, after=after, limit=limit)
    return [commit_json(one) for one in found.commits], found.after


def last_change(commit: HubCommit) -> Json:
    """The newest commit that changed the repository; the newest of all where none is found."""
    found, _ = list_commits(commit, None, 1)
    if found:
        return {key: found[0][key] for key in ("id", "title", "date")}
    own = commit.content.revision
    title = own.commit.message.partition("\n")[0]
    return {
        "id": short_commit(own.digest),
        "title": title,
        "date": moment_text(own.commit.time_ns),
    }


def commit_json(record: CommitRecord) -> Json:
    title, _, rest = record.message.partition("\n")
    return {
        "id": short_commit(Digest(record.digest)),
        "title": title,
        "message": rest.strip(),
        "date": moment_text(record.time_ns),
        "authors": [{"user": record.author.partition(" <")[0]}],
    }


def list_refs(hub: HubRepository, *, proposals: bool) -> Json:
    """Branches and tags of the repository, and what its merge requests propose."""
    hub.require_there()
    refs = foreign_refs(hub.access)
    told: Json = {
        "branches": [_ref(name, f"refs/heads/{name}", at) for name, at in refs.branches.items()],
        "converts": [],
        "tags": [_ref(name, f"refs/tags/{name}", at) for name, at in refs.tags.items()],
    }
    if proposals:
        told["pullRequests"] = [
            _ref(str(number), f"refs/pr/{number}", at) for number, at in refs.proposals.items()
        ]
    return told


def _ref(name: str, ref: str, at: Digest) -> Json:
    return {"name": name, "ref": ref, "targetCommit": short_commit(at)}


def moment_text(time_ns: int) -> str:
    """A moment as the clients read it: ``2026-11-01T12:00:00.000Z``."""
    moment = datetime.fromtimestamp(time_ns // 10**6 / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ns // 10**6 % 1000:03d}Z"
