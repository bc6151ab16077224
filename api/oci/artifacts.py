"""OCI artifacts in the layout of ModelPack: manifest and config of a model, made of its files.

An artifact is a function of the files alone: their paths, sizes, hashes and kinds. So the same
model has the same digests in every commit, on every server and after every restart, and nothing of
it need be stored.

Source:
    docs/spec/oci.md; the model format specification of CNCF ModelPack; the OCI image specification.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import TooLargeError

MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
MAX_MANIFEST_BYTES: Final = 4 << 20  # which clients read of one
MAX_LAYERS: Final = 20_000  # more never fit into that
_ARTIFACT_TYPE: Final = "application/vnd.cncf.model.manifest.v1+json"
_CONFIG_TYPE: Final = "application/vnd.cncf.model.config.v1+json"
_WEIGHT: Final = "application/vnd.cncf.model.weight.v1.raw"
_WEIGHT_CONFIG: Final = "application/vnd.cncf.model.weight.config.v1.raw"
_DOC: Final = "application/vnd.cncf.model.doc.v1.raw"
_CODE: Final = "application/vnd.cncf.model.code.v1.raw"
_PATH: Final = "org.cncf.model.filepath"
_UNTESTED: Final = "org.cncf.model.file.mediatype.untested"
_TITLE: Final = "org.opencontainers.image.title"  # by which `oras pull` names a file
# Kinds of files that are told by their names; whatever is none of these configures the weights.
_KINDS: Final = (
    (r"(?:readme|licen[cs]e|notice|changelog|use_policy)(?:[._-].*)?", _DOC),
    (r".*\.(?:md|rst|pdf|png|jpe?g|gif|svg)", _DOC),
    (r".*\.(?:safetensors|bin|gguf|pth?|ckpt|onnx|np[yz]|h5|msgpack|tflite)", _WEIGHT),
    (r".*\.(?:py|ipynb|sh|c|h|cc|cpp|cuh?|rs|go|js)", _CODE),
)


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A file of a model.

    Attributes:
        path: name within the model.
        size_bytes: its size.
        sha256: hex digits of the hash of its content.
        is_weight: whether it was parsed as tensors, so that its kind is known.
    """

    path: str
    size_bytes: int
    sha256: str
    is_weight: bool


@dataclass(frozen=True, slots=True)
class ModelArtifact:
    """An artifact: what is sent for its digests.

    Attributes:
        manifest: bytes of the manifest.
        digest: ``sha256:`` and the hash of the manifest.
        config: bytes of the config.
        config_digest: the same of the config.
        paths: a file for each digest of a layer.
    """

    manifest: bytes
    digest: str
    config: bytes
    config_digest: str
    paths: dict[str, str]


def make_artifact(name: str, files: Iterable[ArtifactFile]) -> ModelArtifact:
    """The artifact of some files.

    Raises:
        TooLargeError: they are so many that clients would not read the manifest.
    """
    ordered = sorted(files, key=lambda file: file.path)
    config = msgspec.json.encode(
        {
            "descriptor": {"name": name},
            "config": {},
            "modelfs": {"type": "layers", "diffIds": [digest_of(file) for file in ordered]},
        }
    )
    manifest = msgspec.json.encode(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": _ARTIFACT_TYPE,
            "config": _descriptor(_CONFIG_TYPE, content_digest(config), len(config)),
            "layers": [_layer(file) for file in ordered],
        }
    )
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise TooLargeError(
            f"{name} has {len(ordered):,} files, whose manifest would take {len(manifest):,} "
            f"bytes, and clients read {MAX_MANIFEST_BYTES:,}: download it by git-lfs, by Hugging "
            "Face's client or by `tensorrepo clone`"
        )
    paths = {digest_of(file): file.path for file in ordered}
    return ModelArtifact(manifest, content_digest(manifest), config, content_digest(config), paths)


def content_digest(content: bytes) -> str:
    """``sha256:`` and hex digits."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def digest_of(file: ArtifactFile) -> str:
    return f"sha256:{file.sha256}"


def _layer(file: ArtifactFile) -> dict[str, Any]:
    kind = _WEIGHT if file.is_weight else _kind_of(file.path)
    annotations = {
        _PATH: file.path,
        _UNTESTED: "false" if file.is_weight else "true",
        _TITLE: file.path,
    }
    return {
        **_descriptor(kind, digest_of(file), file.size_bytes),
        "annotations": annotations,
    }


def _descriptor(media_type: str, digest: str, size_bytes: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": size_bytes}


def _kind_of(path: str) -> str:
    """Media type of a file, as its name suggests."""
    name = path.rpartition("/")[2].lower()
    kinds = (kind for pattern, kind in _KINDS if re.fullmatch(pattern, name, re.DOTALL))
    return next(kinds, _WEIGHT_CONFIG)
