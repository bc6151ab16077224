"""Files brought into a model as clients of git-lfs bring them, by plain requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import httpx


def upload_files(
    client: httpx.Client, name: str, files: Mapping[str, bytes], *, branch: str = "main"
) -> str:
    """Commit files to the model ``ns/name``, which is made where it is missing.

    Returns:
        The commit's 40 digits.
    """
    namespace, _, last = name.partition("/")
    client.post("/api/repos/create", json={"name": last, "organization": namespace})
    objects = [
        {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for content in files.values()
    ]
    asked = {"operation": "upload", "transfers": ["basic"], "objects": objects}
    told = client.post(f"/{name}.git/info/lfs/objects/batch", json=asked).raise_for_status().json()
    for content, one in zip(files.values(), told["objects"], strict=True):
        if "actions" in one:
            client.put(one["actions"]["upload"]["href"], content=content).raise_for_status()
    lines = [{"key": "header", "value": {"summary": "files"}}]
    for path, one in zip(files, objects, strict=True):
        lines.append({"key": "lfsFile", "value": {"path": path, "algo": "sha256", **one}})
    body = "\n".join(map(json.dumps, lines))
    made = client.post(f"/api/models/{name}/commit/{branch}", content=body).raise_for_status()
    return str(made.json()["commitOid"])
