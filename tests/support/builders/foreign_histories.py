"""Repositories of other tools: made by git itself, and as git-lfs, DVC and the Hub lay them out."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import numpy as np
from safetensors.numpy import save

_ENVIRONMENT = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Grace",
    "GIT_COMMITTER_EMAIL": "grace@example.org",
}


class GitProject:
    """A work tree that commits one after the other, each an hour later."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.hour = 0
        self.git("init", "-q", "-b", "main", *options)

    def git(self, *words: str, given: bytes | None = None) -> str:
        date = f"{1_700_000_000 + 3600 * self.hour} +0200"
        done = subprocess.run(
            ["git", *words],
            cwd=self.folder,
            env={**_ENVIRONMENT, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date},
            input=given,
            capture_output=True,
            check=False,
        )
        assert not done.returncode, done.stderr.decode()
        return done.stdout.decode().strip()

    def write(self, name: str, content: bytes | str) -> None:
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)

    def write_lfs(self, name: str, content: bytes, *, size: int | None = None) -> Path:
        """Write the pointer of a file, and its object; gives where that lies."""
        oid = hashlib.sha256(content).hexdigest()
        said = len(content) if size is None else size
        self.write(
            name, f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {said}\n"
        )
        place = self.folder / ".git" / "lfs" / "objects" / oid[:2] / oid[2:4] / oid
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return place

    def write_dvc(self, name: str, content: bytes) -> Path:
        """Write NAME.dvc, and its data into DVC's cache; gives where they lie."""
        md5 = hashlib.md5(content).hexdigest()
        out = {"md5": md5, "size": len(content), "hash": "md5", "path": Path(name).name}
        self.write(f"{name}.dvc", json.dumps({"outs": [out]}))  # JSON is YAML
        return self.keep_dvc(md5, content)

    def write_dvc_folder(self, name: str, files: dict[str, bytes]) -> Path:
        """Write NAME.dvc of a folder, its list and its data; gives where the list lies."""
        told = []
        for relative, content in sorted(files.items()):
            md5 = hashlib.md5(content).hexdigest()
            self.keep_dvc(md5, content)
            told.append({"md5": md5, "relpath": relative})
        text = json.dumps(told).encode()
        md5 = hashlib.md5(text).hexdigest() + ".dir"
        size, count = sum(map(len, files.values())), len(files)
        out = {"md5": md5, "size": size, "nfiles": count, "hash": "md5", "path": Path(name).name}
        self.write(f"{name}.dvc", json.dumps({"outs": [out]}))
        return self.keep_dvc(md5, text)

    def keep_dvc(self, md5: str, content: bytes) -> Path:
        place = self.folder / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return place

    def commit(self, message: str, *parents: str) -> str:
        """Commit all that is there; gives its id."""
        self.hour += 1
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")


def weights(value: float, rows: int = 64) -> bytes:
    """A file of safetensors."""
    tensor = np.full((rows, 32), value, np.float32)
    tensor[0] = np.arange(32)
    return save({"w": tensor})


def make_hub_cache(hub: Path, name: str = "models--lab--net") -> Path:
    """A cache with two revisions of a model on main, and one of a branch; the folder of it."""
    folder = hub / name
    revisions = {"a" * 40: 1.0, "b" * 40: 2.0, "c" * 40: 3.0}
    for at, (revision, value) in enumerate(revisions.items()):
        add_revision(
            folder,
            revision,
            {"config.json": b'{"n": %d}' % at, "model.safetensors": weights(value)},
            at,
        )
    for ref, revision in {"main": "b" * 40, "refs/pr/1": "c" * 40, "v1.0": "a" * 40}.items():
        place = folder / "refs" / ref
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(revision)
    return folder


def add_revision(folder: Path, revision: str, files: dict[str, bytes], hour: int) -> None:
    """Files of a revision, as the Hub's libraries keep them."""
    snapshot = folder / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir(exist_ok=True)
    for name, content in files.items():
        small = not name.endswith(".safetensors")
        etag = (
            hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            if small
            else hashlib.sha256(content).hexdigest()
        )
        (folder / "blobs" / etag).write_bytes(content)
        place = snapshot / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(folder / "blobs" / etag, place.parent))
    os.utime(snapshot, (1_700_000_000 + 3600 * hour,) * 2)
