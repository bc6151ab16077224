"""A server as a user starts it, and Hugging Face's client in an environment of its own."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

import tensorrepo as tr
from tests.support.clients.environments import client_python
from tests.support.clients.process import ClientProcess, client_process
from tests.support.servers.serving import ServeProcess, serving

NEWEST = "huggingface_hub==2.4.0"
OLDER = ("huggingface_hub==1.19.0", "huggingface_hub==0.36.2")
_BEGIN = """
    import huggingface_hub
    kept["hub"], kept["api"] = huggingface_hub, huggingface_hub.HfApi()
    return huggingface_hub.__version__
"""


PETS = "zoo/pets"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A server with one repository, `zoo`, whose dataset our own client committed."""
    data = tmp_path_factory.mktemp("served")
    zoo = data / "zoo"
    with tr.init(zoo, author="Ann <ann@example.org>").transaction(message="pets") as tx:
        tx.create_dataset(
            "pets",
            {
                "name": ["Tom", "Rex", "Ed"],
                "kind": [0, 1, 0],
                "photo": [_png(at) for at in range(3)],
            },
            columns={"kind": tr.ClassLabel(("cat", "dog")), "photo": tr.Image("png")},
        )
    with serving(data, f"zoo={zoo}") as running:
        yield running


def _png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (shade * 40, 80, 120)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(
    scope="session",
    params=[NEWEST, *(pytest.param(one, marks=pytest.mark.soak) for one in OLDER)],
    ids=lambda name: name.partition("==")[2],
)
def hub(
    request: pytest.FixtureRequest,
    served: ServeProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ClientProcess]:
    """The client, with ``kept["api"]``; its namespace is ``ns``."""
    python = client_python(request.param)
    with client_process(python, variables(served, tmp_path_factory.mktemp("home"))) as client:
        assert client.run(_BEGIN) == request.param.partition("==")[2]
        yield client


def variables(served: ServeProcess, home: Path, token: str | None = None) -> dict[str, str]:
    """What a user sets to let the client speak to our server."""
    return {
        "HF_ENDPOINT": served.url,
        "HF_TOKEN": served.token if token is None else token,
        "HF_HOME": str(home),
        "HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_ETAG_TIMEOUT": "300",  # of a busy machine
        "HF_HUB_DOWNLOAD_TIMEOUT": "300",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as people have it, with names of files that no path of ours may have."""
    made = tmp_path_factory.mktemp("model")
    numbers = np.random.default_rng(0)
    tensors = {"layer.weight": numbers.standard_normal((256, 128)).astype("f4")}
    tensors["layer.bias"] = numbers.standard_normal(256).astype("f4")
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    (made / "config.json").write_text(json.dumps({"model_type": "tiny", "hidden": 128}))
    (made / "README.md").write_text("---\nlicense: mit\ntags:\n- small\n---\n# A card\n")
    (made / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (made / "sub").mkdir()
    (made / "sub" / "Vocab (1).txt").write_text("a\nb\n")
    return made


def contents(folder: Path) -> dict[str, bytes]:
    """Files by name; what the client keeps for itself is left out."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".cache" not in path.parts
    }


@pytest.fixture(scope="module")
def uploaded(hub: ClientProcess, folder: Path) -> Any:
    """Name of a model repository that has `folder`, another one for each version of the client."""
    name = f"ns/net-{secrets.token_hex(4)}"
    hub.run(
        """
        kept["api"].create_repo(name)
        kept["api"].upload_folder(repo_id=name, folder_path=folder)
        """,
        name=name,
        folder=str(folder),
    )
    return name
