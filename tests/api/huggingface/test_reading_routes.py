"""Hugging Face's client, unchanged, reads what lies in our repositories."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
import pytest

from tests.api.huggingface.conftest import PETS, contents
from tests.support.clients.process import ClientError, ClientProcess
from tests.support.servers.serving import ServeProcess


def test_a_snapshot_is_the_folder_that_was_uploaded(
    hub: ClientProcess, uploaded: str, folder: Path
) -> None:
    found = hub.run("return kept['hub'].snapshot_download(name)", name=uploaded)
    assert contents(Path(found)) == contents(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "sub/Vocab (1).txt"])
def test_one_file_comes_as_it_went(
    hub: ClientProcess, uploaded: str, folder: Path, name: str
) -> None:
    code = "return kept['hub'].hf_hub_download(repo, name)"
    found = hub.run(code, repo=uploaded, name=name)
    assert Path(found).read_bytes() == (folder / name).read_bytes()


def test_all_files_are_listed(hub: ClientProcess, uploaded: str, folder: Path) -> None:
    listed = hub.run("return kept['api'].list_repo_files(name)", name=uploaded)
    assert sorted(listed) == sorted(contents(folder))


def test_a_listing_says_sizes_and_hashes(hub: ClientProcess, uploaded: str, folder: Path) -> None:
    code = """
        info = kept["api"].model_info(name, files_metadata=True)
        return {one.rfilename: (one.size, one.lfs.sha256) for one in info.siblings}
    """
    assert hub.run(code, name=uploaded) == {
        name: [len(data), hashlib.sha256(data).hexdigest()]
        for name, data in contents(folder).items()
    }


def test_a_model_is_described_by_its_card_and_its_config(hub: ClientProcess, uploaded: str) -> None:
    code = """
        info = kept["api"].model_info(name)
        return [info.id, info.private, info.card_data["license"], info.config["model_type"],
                info.safetensors.total, "small" in info.tags]
    """
    assert hub.run(code, name=uploaded) == [uploaded, True, "mit", "tiny", 256 * 129, True]


def test_a_model_without_tags_of_a_card_has_those_of_its_files_alone(hub: ClientProcess) -> None:
    code = """
        api = kept["api"]
        api.create_repo("untagged/net", exist_ok=True)
        return list(api.model_info("untagged/net").tags)
    """
    assert hub.run(code) == []


def test_a_file_system_of_the_hub_reads_and_lists(
    hub: ClientProcess, uploaded: str, folder: Path
) -> None:
    code = """
        files = kept["hub"].HfFileSystem()
        return [sorted(files.ls(name, detail=False)), files.read_text(f"{name}/config.json"),
                files.glob(f"{name}/**/*.txt"), files.info(f"{name}/sub")["type"]]
    """
    listed, config, texts, kind = hub.run(code, name=uploaded)
    assert f"{uploaded}/model.safetensors" in listed
    assert config == (folder / "config.json").read_text()
    assert texts == [f"{uploaded}/sub/Vocab (1).txt"]
    assert kind == "directory"


def test_headers_of_safetensors_are_read_without_the_tensors(
    hub: ClientProcess, uploaded: str
) -> None:
    code = """
        found = kept["api"].get_safetensors_metadata(name)
        return [found.sharded, found.parameter_count, sorted(found.weight_map)]
    """
    told = [False, {"F32": 256 * 129}, ["layer.bias", "layer.weight"]]
    assert hub.run(code, name=uploaded) == told


def test_refs_commits_and_repositories_are_listed(hub: ClientProcess, uploaded: str) -> None:
    code = """
        api = kept["api"]
        return [[one.name for one in api.list_repo_refs(name).branches],
                api.list_repo_commits(name)[0].commit_id == api.model_info(name).sha,
                name in [one.id for one in api.list_models(author="ns")],
                name in [one.id for one in api.list_models(search="nothing-like-it")]]
    """
    branches, is_newest, listed, found = hub.run(code, name=uploaded)
    assert "main" in branches
    assert (is_newest, listed, found) == (True, True, False)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("kept['hub'].hf_hub_download(name, 'nope.json')", "EntryNotFoundError"),
        ("kept['hub'].hf_hub_download(name, 'a', revision='nope')", "RevisionNotFoundError"),
        ("kept['api'].model_info(name, revision='nope')", "RevisionNotFoundError"),
        ("kept['api'].model_info('ns/nope')", "RepositoryNotFoundError"),
        ("kept['api'].model_info('nobody/nope')", "RepositoryNotFoundError"),
        ("kept['hub'].HfApi(token=False).model_info(name)", "RepositoryNotFoundError"),
        ("kept['hub'].hf_hub_download('gpt2', 'config.json')", "RepositoryNotFoundError"),
        ("kept['api'].model_info('gpt2')", "RepositoryNotFoundError"),
        ("kept['hub'].hf_hub_download(name, 'a', repo_type='space')", "RepositoryNotFoundError"),
        ("kept['api'].delete_file('nope', name)", "EntryNotFoundError"),
        ("kept['api'].delete_folder('config.json', name)", "EntryNotFoundError"),
        ("list(kept['api'].list_models(filter='text'))", "BadRequestError"),
    ],
)
def test_what_is_missing_raises_the_error_of_the_client(
    hub: ClientProcess, uploaded: str, code: str, kind: str
) -> None:
    with pytest.raises(ClientError) as raised:
        hub.run(f"return {code}", name=uploaded)
    assert kind in raised.value.kinds


def test_what_no_route_answers_says_so(hub: ClientProcess, uploaded: str) -> None:
    with pytest.raises(ClientError, match="this service does not answer GET /api/models/ns/"):
        hub.run("return list(kept['api'].get_repo_discussions(name))", name=uploaded)


def test_words_that_no_header_holds_are_told_once_and_whole(
    hub: ClientProcess, uploaded: str
) -> None:
    with pytest.raises(ClientError) as raised:
        hub.run("kept['api'].create_branch(name, branch='größer')", name=uploaded)
    assert (str(raised.value).count("cannot be used"), "größer" in str(raised.value)) == (1, True)


def test_whether_files_revisions_and_repositories_exist(hub: ClientProcess, uploaded: str) -> None:
    code = """
        api = kept["api"]
        return [api.file_exists(name, "config.json"), api.file_exists(name, "nope"),
                api.revision_exists(name, "main"), api.revision_exists(name, "nope"),
                api.repo_exists(name), api.repo_exists("ns/nope")]
    """
    assert hub.run(code, name=uploaded) == [True, False] * 3


def test_who_asks_is_told_their_name(hub: ClientProcess) -> None:
    assert hub.run("return kept['api'].whoami()['name']") == "admin"


def ranged(served: ServeProcess, name: str, **headers: str) -> httpx.Response:
    with served.client() as client:
        return client.get(f"/{name}/resolve/main/model.safetensors", headers=headers)


def test_a_download_goes_on_where_it_was_broken_off(
    served: ServeProcess, uploaded: str, folder: Path
) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    answer = ranged(served, uploaded, Range="bytes=1000-")
    assert (answer.status_code, answer.content) == (206, whole[1000:])
    assert answer.headers["content-range"] == f"bytes 1000-{len(whole) - 1}/{len(whole)}"


def test_a_range_behind_the_end_is_416(served: ServeProcess, uploaded: str) -> None:
    assert ranged(served, uploaded, Range="bytes=999999999-").status_code == 416


def test_bytes_of_another_file_are_never_added_to_those_of_before(
    served: ServeProcess, uploaded: str
) -> None:
    headers = {"Range": "bytes=10-", "If-Match": '"another"'}
    assert ranged(served, uploaded, **headers).status_code == 412


def test_rows_are_parquet_whose_bytes_stay(hub: ClientProcess) -> None:
    code = """
        import hashlib
        api, name = kept["api"], "data/train-00000-of-00001.parquet"
        found = kept["hub"].hf_hub_download(pets, name, repo_type="dataset", force_download=True)
        told = api.get_paths_info(pets, [name], repo_type="dataset")[0]
        with open(found, "rb") as file:
            data = file.read()
        return [api.list_repo_files(pets, repo_type="dataset"), data[:4].decode(),
                hashlib.sha256(data).hexdigest() == told.lfs.sha256]
    """
    told = [["data/train-00000-of-00001.parquet"], "PAR1", True]
    assert hub.run(code, pets=PETS) == told
