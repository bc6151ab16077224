"""Artifacts are a function of the files of a model, byte for byte."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest

from tensorrepo.api.oci.artifacts import ArtifactFile, ModelArtifact, make_artifact
from tensorrepo.repo.errors import TooLargeError
from tests.support.architecture.sources import ROOT

ONE = ArtifactFile("model.safetensors", 8, "ab" * 32, is_weight=True)
OTHER = ArtifactFile("sub/config.json", 2, "cd" * 32, is_weight=False)


def manifest(made: ModelArtifact) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(made.manifest)
    return read


def kind(path: str) -> str:
    made = make_artifact("net", [ArtifactFile(path, 1, "00" * 32, is_weight=False)])
    return str(manifest(made)["layers"][0]["mediaType"])


def test_digests_are_those_of_the_example_in_the_specification() -> None:
    page = (ROOT / "docs/spec/oci.md").read_text()
    made = make_artifact("net", [ONE, OTHER])
    config, manifest = re.findall(r"```json\n(.*?)\n```", page, re.DOTALL)
    assert (made.config.decode(), made.manifest.decode()) == (config, manifest)
    assert (made.config_digest in page, made.digest in page) == (True, True)


def test_the_order_of_files_changes_nothing() -> None:
    assert make_artifact("net", [OTHER, ONE]) == make_artifact("net", [ONE, OTHER])


def test_digests_are_of_the_bytes_that_are_sent() -> None:
    made = make_artifact("net", [ONE, OTHER])
    assert made.digest == f"sha256:{hashlib.sha256(made.manifest).hexdigest()}"
    config = manifest(made)["config"]
    assert config["digest"] == f"sha256:{hashlib.sha256(made.config).hexdigest()}"
    assert config["size"] == len(made.config)


def test_the_config_names_the_content_of_every_layer() -> None:
    made = make_artifact("net", [ONE, OTHER])
    digests = [layer["digest"] for layer in manifest(made)["layers"]]
    assert json.loads(made.config)["modelfs"] == {"type": "layers", "diffIds": digests}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("a/model.gguf", "weight.v1.raw"),
        ("pytorch_model.bin", "weight.v1.raw"),
        ("config.json", "weight.config.v1.raw"),
        ("vocab.txt", "weight.config.v1.raw"),
        (".gitattributes", "weight.config.v1.raw"),
        ("LICENSE", "doc.v1.raw"),
        ("docs/README.md", "doc.v1.raw"),
        ("modeling_net.py", "code.v1.raw"),
    ],
)
def test_the_kind_of_a_file_is_guessed_by_its_name(path: str, told: str) -> None:
    assert kind(path) == f"application/vnd.cncf.model.{told}"


def test_what_was_parsed_is_said_to_be_weights_whatever_its_name() -> None:
    made = make_artifact("net", [ArtifactFile("weights", 1, "00" * 32, is_weight=True)])
    layer = manifest(made)["layers"][0]
    assert layer["mediaType"] == "application/vnd.cncf.model.weight.v1.raw"
    assert layer["annotations"]["org.cncf.model.file.mediatype.untested"] == "false"


def test_a_manifest_that_no_client_would_read_is_refused() -> None:
    files = [ArtifactFile(f"{n:05}.bin", 1, f"{n:064x}", is_weight=True) for n in range(15_000)]
    with pytest.raises(TooLargeError, match="15,000 files"):
        make_artifact("net", files)
