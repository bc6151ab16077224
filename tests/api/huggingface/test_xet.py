"""Hugging Face's client uploads by Xet, unchanged and unasked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.api.huggingface.conftest import NEWEST, contents, variables
from tests.support.clients.environments import client_python
from tests.support.clients.process import ClientProcess, client_process
from tests.support.servers.serving import ServeProcess, serving

UPLOAD = """
    import huggingface_hub
    api = huggingface_hub.HfApi()
    api.create_repo(name, exist_ok=True)
    api.upload_folder(repo_id=name, folder_path=folder)
    return huggingface_hub.snapshot_download(name)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("xet")


@pytest.fixture(scope="module")
def served(data: Path) -> Iterator[ServeProcess]:
    with serving(data) as running:
        yield running


@pytest.fixture(scope="module")
def xet(served: ServeProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientProcess]:
    """A client that does what it does by itself, and remembers what it sent."""
    environment = variables(served, tmp_path_factory.mktemp("home"))
    del environment["HF_HUB_DISABLE_XET"]
    with client_process(client_python(NEWEST), environment) as client:
        yield client


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((2_000_000,)).astype("f4")


def xorbs(data: Path) -> list[Path]:
    return [path for path in data.glob("data/huggingface/*/xet-*/*") if len(path.name) == 64]


def test_a_folder_comes_back_byte_for_byte(
    xet: ClientProcess, data: Path, tmp_path: Path, weights: np.ndarray
) -> None:
    """Weights, bytes that nothing makes smaller, and text that something does."""
    save_file({"w": weights, "small": weights[:1000] * 0 + 1}, tmp_path / "model.safetensors")
    (tmp_path / "noise.bin").write_bytes(np.random.default_rng(1).bytes(3_000_001))
    (tmp_path / "log.bin").write_bytes(b"all work and no play\n" * 100_000)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "tiny"}))
    found = xet.run(UPLOAD, name="ns/net", folder=str(tmp_path))
    assert contents(Path(found)) == contents(tmp_path)
    assert xorbs(data)


@pytest.mark.soak
def test_what_the_client_sent_before_need_not_come_again(
    xet: ClientProcess, data: Path, tmp_path: Path, weights: np.ndarray
) -> None:
    """To another repository of the same namespace, in the same epoch: by reference alone."""
    before = sum(path.stat().st_size for path in xorbs(data))
    save_file({"w": weights}, tmp_path / "model.safetensors")
    found = xet.run(UPLOAD, name="ns/again", folder=str(tmp_path))
    assert contents(Path(found)) == contents(tmp_path)
    assert sum(path.stat().st_size for path in xorbs(data)) - before < weights.nbytes / 4


@pytest.mark.soak
def test_what_is_gone_here_comes_again(
    xet: ClientProcess, data: Path, tmp_path: Path, weights: np.ndarray
) -> None:
    """The client remembers for weeks what it sent; a new epoch makes it forget."""
    for epoch in data.glob("data/huggingface/*/xet-*"):
        shutil.rmtree(epoch)
    save_file({"w": weights}, tmp_path / "model.safetensors")
    found = xet.run(UPLOAD, name="ns/later", folder=str(tmp_path))
    assert contents(Path(found)) == contents(tmp_path)
