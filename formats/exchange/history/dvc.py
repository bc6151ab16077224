"""DVC projects: git's history, and the data that ``.dvc`` files and ``dvc.lock`` name by their md5.

    photos.dvc      {"outs": [{"md5": "....dir", "path": "photos", "hash": "md5"}]}
    dvc.lock        {"stages": {NAME: {"outs": [{"path": ..., "md5": ..., "size": ...}]}}}
    files/md5/aa/bb...      the bytes; of a ``.dir`` a JSON list of {"md5", "relpath"}

In the cache of DVC 2 these lie at ``aa/bb...``, and the md5 of a text is that of its lines with LF.

Source:
    DVC's documentation, ".dvc Files", "dvc.lock file", "Internal Directories and Files".
"""

from __future__ import annotations

import configparser
import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from tensorrepo.formats.exchange.history.base import HistoryFile
from tensorrepo.formats.exchange.history.git import GitHistory, check_digest, name_fault
from tensorrepo.repo.errors import CorruptError, InvalidInputError

_MD5: Final = re.compile(r"([0-9a-f]{32})(\.dir)?")
_MOST_TEXT_BYTES: Final = 16 << 20  # of a .dvc file or lock
_MOST_LISTED_BYTES: Final = 1 << 30  # of a folder's list
_TEXT_BYTES: Final = 512  # by which DVC 2 tells texts
_CACHED: Final = 256
_LOCK, _SUFFIX = "dvc.lock", ".dvc"


class DvcHistory(GitHistory):
    """A git repository whose data DVC keeps."""

    tool = "dvc"

    def __init__(self, path: Path, name: str | None, environment: Mapping[str, str]) -> None:
        """Open it. Raises InvalidInputError: it is no git repository."""
        super().__init__(path, name, environment)
        self._cache = _cache_folder(path)
        self._outs = lru_cache(maxsize=_CACHED)(self._read_outs)
        self._listed = lru_cache(maxsize=_CACHED)(self._read_list)

    def files(self, commit: str) -> dict[str, HistoryFile]:
        """Files of a commit; data that ``.dvc`` files name take the place of these."""
        found = super().files(commit)
        for name in [*found]:
            if posixpath.basename(name) != _LOCK and not name.endswith(_SUFFIX):
                continue
            pointer = found[name]
            if not pointer.key.startswith("git:") or pointer.fault:
                continue
            named = dict(self._named(name, pointer))
            # What cannot be had is still named by the file, which stays then.
            if named and name.endswith(_SUFFIX) and not any(one.fault for one in named.values()):
                del found[name]
            found |= named
        return found

    def content(self, file: HistoryFile, scratch: Path) -> Path:
        """Where the bytes of a file lie, verified."""
        kind, _, md5 = file.key.partition(":")
        if kind not in {"md5", "md5-text"}:
            return super().content(file, scratch)
        place = self._place(md5)
        if place is None:
            raise CorruptError(f"md5 {md5} went from the cache while it was imported")
        if file.key not in self._verified:
            # The md5 of DVC 2, of texts with LF alone.
            others = [_text_md5(place)] if kind == "md5-text" else []
            try:
                check_digest(place, md5, hashlib.md5)
            except CorruptError:
                if md5 not in others:
                    raise
            self._verified.add(file.key)
        return place

    def _named(self, name: str, pointer: HistoryFile) -> Iterator[tuple[str, HistoryFile]]:
        """Data that a ``.dvc`` file or a lock names, by its path in the project."""
        above = posixpath.dirname(name)
        for folder, out in self._outs(pointer.key.partition(":")[2], name):
            path = posixpath.normpath(posixpath.join(above, folder, str(out.get("path"))))
            if path.startswith("../") or path in {"..", "."} or posixpath.isabs(path):
                raise InvalidInputError(
                    f"{name} names {out.get('path')!r:.200}, which lies outside of the project"
                )
            yield from self._data(path, out)

    def _data(self, path: str, out: Mapping[str, Any]) -> Iterator[tuple[str, HistoryFile]]:
        kind = "md5" if out.get("hash") == "md5" else "md5-text"
        match = _MD5.fullmatch(str(out.get("md5", "")))
        fault = name_fault(path)
        if match is None:
            if out.get("cache", True):
                yield path, HistoryFile(f"{kind}:", "DVC names it by no md5: it lies elsewhere")
            return
        md5, is_folder = match[1], bool(match[2])
        fault = fault or self._fault(match[0], None if is_folder else out.get("size"))
        if fault or not is_folder:
            yield path, HistoryFile(f"{kind}:{match[0]}", fault)
            return
        for relative, each in self._listed(md5):
            inside = posixpath.normpath(posixpath.join(path, relative))
            if not inside.startswith(f"{path}/"):
                raise InvalidInputError(
                    f"the list of {path} names {relative!r:.200}, which lies outside of it"
                )
            wrong = name_fault(inside) or self._fault(each, None)
            yield inside, HistoryFile(f"{kind}:{each}", wrong)

    def _fault(self, md5: str, size: object) -> str | None:
        place = self._place(md5)
        if place is None:
            return "its data are not in DVC's cache: `dvc fetch --all-commits` brings them"
        found = place.stat().st_size
        if isinstance(size, int) and size != found:
            return f"DVC says {size:,} bytes, there are {found:,}"
        return None

    def _place(self, md5: str) -> Path | None:
        for folder in (self._cache / "files" / "md5", self._cache):
            place = folder / md5[:2] / md5[2:]
            if place.is_file() and not place.is_symlink():
                return place
        return None

    def _read_outs(self, blob: str, name: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """Each output that a file names, with the folder that its path is relative to."""
        told = _yaml(self.objects.read(blob, "blob"), name)
        if posixpath.basename(name) == _LOCK:
            stages = told.get("stages", told)
            stages = stages.values() if isinstance(stages, Mapping) else ()
        else:
            stages = (told,)
        return tuple(
            (str(stage.get("wdir", "")), out)
            for stage in stages
            if isinstance(stage, Mapping)
            for out in stage.get("outs") or ()
            if isinstance(out, Mapping)
        )

    def _read_list(self, md5: str) -> tuple[tuple[str, str], ...]:
        place = self._place(f"{md5}.dir")
        assert place is not None, "asked before"
        if place.stat().st_size > _MOST_LISTED_BYTES:
            raise InvalidInputError(f"{place}: a list of more than {_MOST_LISTED_BYTES:,} bytes")
        check_digest(place, md5, hashlib.md5)
        try:
            told = json.loads(place.read_bytes())
            pairs = tuple((str(one["relpath"]), str(one["md5"])) for one in told)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptError(f"{place} is no list of files: {error!r:.200}") from error
        wrong = next((each for _, each in pairs if not _MD5.fullmatch(each)), None)
        if wrong is not None:
            raise CorruptError(f"{place} names {wrong!r:.80}, which is no md5")
        return pairs


def is_dvc(path: Path) -> bool:
    """Whether a folder is a DVC project."""
    return (path / ".dvc").is_dir()


def _cache_folder(project: Path) -> Path:
    """Where the data lie: as ``.dvc/config.local`` or ``.dvc/config`` say, else beside them."""
    config = configparser.ConfigParser(interpolation=None, strict=False)
    own = project / ".dvc"
    try:
        config.read([own / "config", own / "config.local"])
        told = config.get("cache", "dir", fallback="")
    except configparser.Error as error:
        raise InvalidInputError(f"{own / 'config'} cannot be read: {error}") from error
    return own / told if told else own / "cache"


def _yaml(text: bytes, name: str) -> Mapping[str, Any]:
    if len(text) > _MOST_TEXT_BYTES:
        raise InvalidInputError(f"{name}: more than {_MOST_TEXT_BYTES:,} bytes")
    try:
        told = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{name} is no YAML: {str(error)[:300]}") from error
    return told if isinstance(told, Mapping) else {}


def _text_md5(place: Path) -> str:
    """The md5 of a text with LF at the end of its lines, in pieces; of others nothing."""
    digest = hashlib.md5(usedforsecurity=False)
    with place.open("rb") as file:
        if b"\0" in file.read(_TEXT_BYTES):
            return ""
        file.seek(0)
        held = b""
        while piece := file.read(1 << 20):
            piece, held = held + piece, b""
            if piece.endswith(b"\r"):
                piece, held = piece[:-1], b"\r"
            digest.update(piece.replace(b"\r\n", b"\n"))
        digest.update(held)
    return digest.hexdigest()
