"""transformers and datasets, in the environment of our tests, which has them: unchanged as well."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.huggingface.conftest import OLDER, PETS, variables
from tests.support.clients.environments import client_python
from tests.support.clients.process import ClientProcess, client_process
from tests.support.servers.serving import ServeProcess

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def libraries(
    served: ServeProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClientProcess]:
    environment = variables(served, tmp_path_factory.mktemp("home"))
    with client_process(Path(sys.executable), environment) as client:
        yield client


def test_a_model_is_pushed_and_loaded_again(libraries: ClientProcess) -> None:
    code = """
        import torch
        from transformers import AutoModel, BertConfig, BertModel
        config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1,
                            num_attention_heads=2, intermediate_size=16)
        model = BertModel(config)
        model.push_to_hub("ns/tiny-bert")
        again = AutoModel.from_pretrained("ns/tiny-bert")
        pairs = zip(model.state_dict().values(), again.state_dict().values(), strict=True)
        return all(torch.equal(one, other) for one, other in pairs)
    """
    assert libraries.run(code) is True


@pytest.mark.parametrize("streaming", [False, True])
def test_rows_that_were_committed_here_are_loaded(
    libraries: ClientProcess, streaming: bool
) -> None:
    code = """
        from datasets import load_dataset
        rows = load_dataset(name, split="train", streaming=streaming)
        kind = rows.features["kind"]
        return [[row["name"] for row in rows], kind.names, next(iter(rows))["photo"].size]
    """
    told = libraries.run(code, name=PETS, streaming=streaming)
    assert told == [["Tom", "Rex", "Ed"], ["cat", "dog"], [8, 8]]


def test_a_dataset_is_pushed_and_loaded_again(libraries: ClientProcess) -> None:
    code = """
        from datasets import Dataset, load_dataset
        Dataset.from_dict({"x": list(range(100))}).push_to_hub("ns/pushed")
        Dataset.from_dict({"x": [7, 8]}).push_to_hub("ns/pushed")
        return load_dataset("ns/pushed", split="train")["x"][:]
    """
    assert libraries.run(code) == [7, 8]


@pytest.mark.parametrize("version", OLDER)
def test_a_large_folder_is_uploaded_by_versions_that_do_so(
    served: ServeProcess, tmp_path: Path, version: str
) -> None:
    folder, home = tmp_path / "folder", tmp_path / "home"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.txt").write_text(str(number))
    code = """
        from huggingface_hub import HfApi
        HfApi().upload_large_folder(name, folder, repo_type="dataset", print_report=False)
        return len(HfApi().list_repo_files(name, repo_type="dataset"))
    """
    name = f"ns/large-{version.partition('==')[2]}"
    with client_process(client_python(version), variables(served, home)) as client:
        assert client.run(code, name=name, folder=str(folder)) == 61  # and its first card
