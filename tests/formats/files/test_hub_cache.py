"""The cache of Hugging Face's libraries, as they read it without a network."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import tensorrepo as tr
from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.formats.files.hub_cache import write_hub_cache
from tensorrepo.verbs.models import save
from tests.support.clients.environments import client_python
from tests.support.clients.process import run_client

CLIENT = "huggingface_hub==2.4.0"
OFFLINE = {"HF_HUB_OFFLINE": "1"}
SCRIPT = """
import json, sys
from huggingface_hub import hf_hub_download, snapshot_download, scan_cache_dir
path = hf_hub_download("ada/net", "config.json")
folder = snapshot_download("ada/net")
(repository,) = scan_cache_dir().repos
print(json.dumps([open(path).read(), folder, repository.repo_id, repository.nb_files]))
"""


@pytest.fixture
def model(tmp_path: Path) -> tr.Model:
    """A model that came as a folder."""
    came = tmp_path / "came"
    came.mkdir()
    save_file({"w": np.arange(6, dtype=np.float32)}, came / "model.safetensors")
    (came / "config.json").write_text('{"layers": 2}')
    repository = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with repository.transaction(message="one") as tx:
        save(tx.core, "models/net", read_model(came), base=None, known=(), lineage=())
    return repository.model("net")


@pytest.mark.soak
def test_its_libraries_find_the_model_offline(model: tr.Model, tmp_path: Path) -> None:
    home = tmp_path / "home"
    hub = home / ".cache/huggingface/hub"
    commit = model.commit
    written = write_hub_cache(model.stored, hub, "ada/net", commit=commit)
    told = run_client(client_python(CLIENT), SCRIPT, environment=OFFLINE, cwd=home)
    config, folder, name, files = json.loads(told)
    assert (config, name, files) == ('{"layers": 2}', "ada/net", written.files)
    assert Path(folder) == written.path
    weights = Path(folder, "model.safetensors").read_bytes()
    assert weights == (tmp_path / "came/model.safetensors").read_bytes()


def test_files_that_are_there_are_kept_and_those_of_two_commits_share_bytes(
    model: tr.Model, tmp_path: Path
) -> None:
    first = write_hub_cache(model.stored, tmp_path / "hub", "ada/net", commit="a" * 64)
    second = write_hub_cache(model.stored, tmp_path / "hub", "ada/net", commit="b" * 64)
    folder = tmp_path / "hub/models--ada--net"
    assert (folder / "refs/main").read_text() == "b" * 40
    assert first.path.name == "a" * 40
    blobs = list((folder / "blobs").iterdir())
    assert len(blobs) == first.files
    for snapshot in (first, second):
        assert (snapshot.path / "config.json").read_text() == '{"layers": 2}'


@pytest.mark.together
@pytest.mark.parametrize("name", ["net", "a/b/c", "../net/x", "a/..", "a--b/c", "", "a/b\0"])
def test_a_name_that_no_model_has_there_is_refused(
    model: tr.Model, tmp_path: Path, name: str
) -> None:
    with pytest.raises(tr.InvalidInputError, match="NAMESPACE/NAME"):
        write_hub_cache(model.stored, tmp_path / "hub", name, commit="a" * 64)
    assert not (tmp_path / "hub").exists()
