"""Hugging Face's client, unchanged, writes to our repositories."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.api.huggingface.conftest import contents
from tests.support.clients.process import ClientError, ClientProcess
from tests.support.servers.serving import ServeProcess


# Datasets lie below another prefix of the same routes: folders and commits of them in each run.
@pytest.fixture(params=["model", pytest.param("dataset", marks=pytest.mark.soak)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


both_kinds = pytest.mark.parametrize("kind", ["model", "dataset"], indirect=True)


@pytest.fixture
def fresh(hub: ClientProcess, kind: str) -> str:
    """Name of a new repository of either kind, with one file."""
    name = f"ns/new-{secrets.token_hex(4)}"
    hub.run(
        """
        kept["api"].create_repo(name, repo_type=kind)
        kept["api"].upload_file(repo_id=name, repo_type=kind, path_or_fileobj=b"one",
                                path_in_repo="one.txt")
        """,
        name=name,
        kind=kind,
    )
    return name


def files(hub: ClientProcess, name: str, kind: str, revision: str = "main") -> set[str]:
    code = "return kept['api'].list_repo_files(name, repo_type=kind, revision=revision)"
    return set(hub.run(code, name=name, kind=kind, revision=revision)) - {"README.md"}


@both_kinds
def test_a_folder_comes_back_byte_for_byte(
    hub: ClientProcess, fresh: str, kind: str, folder: Path
) -> None:
    code = """
        kept["api"].upload_folder(repo_id=name, repo_type=kind, folder_path=folder)
        return kept["hub"].snapshot_download(name, repo_type=kind)
    """
    found = hub.run(code, name=fresh, kind=kind, folder=str(folder))
    assert contents(Path(found)) == contents(folder) | {"one.txt": b"one"}


@both_kinds
def test_a_commit_adds_copies_and_deletes(hub: ClientProcess, fresh: str, kind: str) -> None:
    code = """
        hub = kept["hub"]
        hub.HfApi().create_commit(name, repo_type=kind, commit_message="all at once", operations=[
            hub.CommitOperationAdd("two.txt", b"two"),
            hub.CommitOperationAdd("a/three.bin", bytes(2000)),
            hub.CommitOperationCopy("one.txt", "copy.txt"),
            hub.CommitOperationDelete("one.txt"),
        ])
        found = hub.hf_hub_download(name, "copy.txt", repo_type=kind)
        return open(found).read()
    """
    assert hub.run(code, name=fresh, kind=kind) == "one"
    assert files(hub, fresh, kind) == {"two.txt", "a/three.bin", "copy.txt"}


def test_a_card_is_pushed_by_itself(hub: ClientProcess, fresh: str, kind: str) -> None:
    code = """
        card = (kept["hub"].ModelCard if kind == "model" else kept["hub"].DatasetCard)
        card("---\\nlicense: mit\\ntags: small\\n---\\n# A card").push_to_hub(name, repo_type=kind)
        return kept["api"].repo_info(name, repo_type=kind).tags
    """
    assert hub.run(code, name=fresh, kind=kind)[0] == "small"


def test_a_folder_is_deleted(hub: ClientProcess, fresh: str, kind: str) -> None:
    code = """
        api = kept["api"]
        for path in ("a/b.txt", "a/c/d.txt", "ab.txt"):
            api.upload_file(repo_id=name, repo_type=kind, path_or_fileobj=b"x", path_in_repo=path)
        api.delete_folder("a", name, repo_type=kind)
    """
    hub.run(code, name=fresh, kind=kind)
    assert files(hub, fresh, kind) == {"one.txt", "ab.txt"}


def test_uploading_the_same_again_makes_no_commit(
    hub: ClientProcess, fresh: str, kind: str
) -> None:
    code = """
        api = kept["api"]
        before = api.repo_info(name, repo_type=kind).sha
        api.upload_file(repo_id=name, repo_type=kind, path_or_fileobj=b"one",
                        path_in_repo="one.txt")
        return before == api.repo_info(name, repo_type=kind).sha
    """
    assert hub.run(code, name=fresh, kind=kind) is True


def test_a_commit_on_a_stale_parent_is_412(hub: ClientProcess, fresh: str, kind: str) -> None:
    code = """
        hub, api = kept["hub"], kept["api"]
        parent = api.repo_info(name, repo_type=kind).sha
        api.upload_file(repo_id=name, repo_type=kind, path_or_fileobj=b"x", path_in_repo="x")
        try:
            api.create_commit(name, [hub.CommitOperationAdd("y", b"y")], commit_message="y",
                              repo_type=kind, parent_commit=parent)
        except hub.errors.HfHubHTTPError as error:
            return error.response.status_code
    """
    assert hub.run(code, name=fresh, kind=kind) == 412
    assert "y" not in files(hub, fresh, kind)


def test_a_commit_to_another_repository_of_the_namespace_makes_no_parent_stale(
    hub: ClientProcess, fresh: str, kind: str, uploaded: str
) -> None:
    code = """
        hub, api = kept["hub"], kept["api"]
        parent = api.repo_info(name, repo_type=kind).sha
        api.upload_file(repo_id=other, path_or_fileobj=parent.encode(), path_in_repo="x")
        api.create_commit(name, [hub.CommitOperationAdd("y", b"y")], commit_message="y",
                          repo_type=kind, parent_commit=parent)
        api.delete_file("x", other)
    """
    hub.run(code, name=fresh, kind=kind, other=uploaded)
    assert "y" in files(hub, fresh, kind)


def test_branches_are_made_written_to_and_deleted(
    hub: ClientProcess, fresh: str, kind: str
) -> None:
    branch = f"try/{secrets.token_hex(4)}"
    code = """
        api = kept["api"]
        api.create_branch(name, branch=branch, repo_type=kind)
        api.create_branch(name, branch=branch, repo_type=kind, exist_ok=True)
        api.upload_file(repo_id=name, repo_type=kind, path_or_fileobj=b"b", path_in_repo="b.txt",
                        revision=branch)
        there = api.list_repo_files(name, repo_type=kind, revision=branch)
        api.delete_branch(name, branch=branch, repo_type=kind)
        return ["b.txt" in there, api.revision_exists(name, branch, repo_type=kind)]
    """
    assert hub.run(code, name=fresh, kind=kind, branch=branch) == [True, False]
    assert "b.txt" not in files(hub, fresh, kind)


def test_a_tag_stays_where_it_was_set(hub: ClientProcess, fresh: str, kind: str) -> None:
    tag = f"v-{secrets.token_hex(4)}"
    code = """
        api = kept["api"]
        api.create_tag(name, tag=tag, tag_message="first", repo_type=kind)
        api.upload_file(repo_id=name, repo_type=kind, path_or_fileobj=b"x", path_in_repo="x")
        return tag in [one.name for one in api.list_repo_refs(name, repo_type=kind).tags]
    """
    assert hub.run(code, name=fresh, kind=kind, tag=tag)
    assert files(hub, fresh, kind, tag) == {"one.txt"}


def test_a_pull_request_is_a_merge_request(
    hub: ClientProcess, served: ServeProcess, fresh: str, kind: str
) -> None:
    code = """
        api = kept["api"]
        made = api.upload_file(repo_id=name, repo_type=kind, path_or_fileobj=b"p",
                               path_in_repo="p.txt", create_pr=True, commit_message="Propose p")
        number = int(made.pr_num)
        api.upload_file(repo_id=name, repo_type=kind, path_or_fileobj=b"q", path_in_repo="q.txt",
                        revision=f"refs/pr/{number}")
        return number, made.commit_url, made.pr_url
    """
    number, *links = hub.run(code, name=fresh, kind=kind)
    assert files(hub, fresh, kind, f"refs/pr/{number}") == {"one.txt", "p.txt", "q.txt"}
    assert files(hub, fresh, kind) == {"one.txt"}
    with served.client() as client:
        told = client.get(f"/api/v1/repositories/ns/-/requests/{number}").json()
        pages = [client.get(link, follow_redirects=True) for link in links]
    assert (told["title"], told["state"]) == ("Propose p", "open")
    assert [(page.status_code, "Propose p" in page.text) for page in pages] == 2 * [(200, True)]
    found = [page.url.path for page in pages]
    assert [path.rpartition("/")[0] for path in found] == ["/ns/-/commit", "/ns/-/requests"]


def test_a_repository_gets_another_name_and_goes(hub: ClientProcess, fresh: str, kind: str) -> None:
    code = """
        api, other = kept["api"], name + "-b"
        api.move_repo(name, other, repo_type=kind)
        told = [api.repo_exists(name, repo_type=kind), api.repo_exists(other, repo_type=kind)]
        api.delete_repo(other, repo_type=kind)
        return [*told, api.repo_exists(other, repo_type=kind)]
    """
    assert hub.run(code, name=fresh, kind=kind) == [False, True, False]


def test_making_a_repository_that_is_there_is_409_unless_that_is_fine(
    hub: ClientProcess, fresh: str, kind: str
) -> None:
    hub.run("kept['api'].create_repo(n, repo_type=k, exist_ok=True)", n=fresh, k=kind)
    with pytest.raises(ClientError, match="already created"):
        hub.run("kept['api'].create_repo(n, repo_type=k)", n=fresh, k=kind)


def test_nothing_becomes_public(hub: ClientProcess) -> None:
    with pytest.raises(ClientError, match="said by grants"):
        hub.run("kept['api'].create_repo('ns/open', private=False)")


@pytest.mark.parametrize("asked", ["private=False", "gated='auto'"])
def test_settings_are_what_all_repositories_are(
    hub: ClientProcess, uploaded: str, asked: str
) -> None:
    settle = "kept['api'].update_repo_settings(name, {})"
    hub.run(settle.format("private=True, gated=False"), name=uploaded)
    with pytest.raises(ClientError, match="said by grants"):
        hub.run(settle.format(asked), name=uploaded)


def test_history_of_a_branch_becomes_one_commit(hub: ClientProcess) -> None:
    code = """
        api = kept["api"]
        api.create_repo(name)
        api.upload_file(repo_id=name, path_or_fileobj=b"x", path_in_repo="x", )
        api.super_squash_history(name)
        return [len(api.list_repo_commits(name)), api.list_repo_files(name)]
    """
    assert hub.run(code, name=f"alone-{secrets.token_hex(4)}/net") == [1, ["x"]]


def test_parquet_becomes_rows_where_the_card_asks(hub: ClientProcess, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split, values in (("test", [3]), ("train", [1, 2])):
        pq.write_table(pa.table({"x": values}), tmp_path / f"data/{split}-00000-of-00001.parquet")
    (tmp_path / "README.md").write_text("---\ntensorrepo: rows\n---\n# Numbers\n")
    name = f"ns/numbers-{secrets.token_hex(4)}"
    code = """
        api = kept["api"]
        api.create_repo(name, repo_type="dataset")
        api.upload_folder(repo_id=name, repo_type="dataset", folder_path=folder)
        listed = api.list_repo_files(name, repo_type="dataset")
        rows = "data/train-00000-of-00001.parquet"
        return [sorted(listed), kept["hub"].hf_hub_download(name, rows, repo_type="dataset")]
    """
    listed, path = hub.run(code, name=name, folder=str(tmp_path))
    assert listed == ["README.md", "data/train-00000-of-00001.parquet"]
    assert pq.read_table(path).to_pydict() == {"x": [3, 1, 2], "split": [0, 1, 1]}


# ------------------------------------------------------------------------------ bad input


def batch(served: ServeProcess, name: str, data: bytes, **changes: object) -> httpx.Response:
    """Ask where to send a file."""
    one = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)} | changes
    body = {"operation": "upload", "transfers": ["basic", "multipart"], "objects": [one]}
    with served.client() as client:
        return client.post(f"/{name}.git/info/lfs/objects/batch", json=body)


def address(answer: httpx.Response) -> str:
    return str(answer.json()["objects"][0]["actions"]["upload"]["href"])


def commit(served: ServeProcess, name: str, *lines: str) -> httpx.Response:
    head = '{"key":"header","value":{"summary":"s"}}'
    with served.client() as client:
        return client.post(
            f"/api/models/{name}/commit/main",
            content="\n".join((head, *lines)),
            headers={"Content-Type": "application/x-ndjson"},
        )


@pytest.mark.parametrize("sent", [b"other bytes", b"", b"some bytes and more"])
def test_bytes_that_are_not_what_they_were_to_be_are_forgotten(
    served: ServeProcess, uploaded: str, sent: bytes
) -> None:
    data = b"some bytes!"
    href = address(batch(served, uploaded, data))
    assert httpx.put(href, content=sent).status_code in {400, 413}
    assert "actions" in batch(served, uploaded, data).json()["objects"][0]
    line = f'{{"key":"lfsFile","value":{{"path":"a","oid":"{hashlib.sha256(data).hexdigest()}"}}}}'
    answer = commit(served, uploaded, line)
    assert (answer.status_code, "upload it first" in answer.json()["error"]) == (400, True)


def test_an_address_is_good_for_its_file_alone(served: ServeProcess, uploaded: str) -> None:
    data = secrets.token_bytes(3)
    href = address(batch(served, uploaded, data))
    place, _, ticket = href.partition("?ticket=")
    spoilt = ticket[:-1] + ("0" if ticket[-1] != "0" else "1")
    elsewhere = place.replace("/ns/", "/zoo/")
    assert httpx.put(f"{place}?ticket={spoilt}", content=data).status_code == 401
    assert httpx.put(f"{elsewhere}?ticket={ticket}", content=data).status_code == 401
    assert httpx.post(href).status_code == 401
    assert httpx.put(href, content=data).status_code == 200


def test_a_file_in_parts_needs_all_of_them(served: ServeProcess, uploaded: str) -> None:
    answer = batch(served, uploaded, b"", oid="0" * 64, size=600 << 20).json()
    upload = answer["objects"][0]["actions"]["upload"]
    assert answer["transfer"] == "multipart"
    assert int(upload["header"]["chunk_size"]) * 10 >= 600 << 20
    assert httpx.put(upload["header"]["1"], content=b"short").status_code == 400
    done = httpx.post(upload["href"], json={"oid": "0" * 64, "parts": []})
    assert done.status_code == 409


@pytest.mark.parametrize(
    "path", ["../a", "/a", "a/../b", "a//b", "a\\\\b", "a:b", "", "a\\u0000b", "a/" * 40 + "b"]
)
def test_a_path_that_no_file_can_have_is_refused(
    served: ServeProcess, uploaded: str, path: str
) -> None:
    line = f'{{"key":"file","value":{{"content":"aaaa","path":"{path}","encoding":"base64"}}}}'
    answer = commit(served, uploaded, line)
    deep = path.startswith("a/a/")  # a file in a manifest may lie deep
    assert answer.status_code == (200 if deep else 400)


def test_nothing_is_a_file_and_a_folder(served: ServeProcess, uploaded: str) -> None:
    line = '{"key":"file","value":{"content":"aaaa","path":"config.json/a","encoding":"base64"}}'
    answer = commit(served, uploaded, line)
    assert (answer.status_code, "a file and a folder" in answer.json()["error"]) == (400, True)
    gone = '{"key":"deletedFile","value":{"path":"config.json"}}'
    back = '{"key":"deletedFile","value":{"path":"config.json/a"}}'
    kept = '{"key":"file","value":{"content":"e30=","path":"config.json","encoding":"base64"}}'
    assert commit(served, uploaded, line, gone).status_code == 200
    assert commit(served, uploaded, kept, back).status_code == 200


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        '{"key":"unknown","value":{}}',
        '{"key":"file","value":{"path":"a","content":"***","encoding":"base64"}}',
        '{"key":"lfsFile","value":{"path":"a","oid":"12"}}',
        '{"key":"lfsFile","value":{"path":"a","oid":"' + "0" * 64 + '","algo":"md5"}}',
        "[" * 100_000,
    ],
)
def test_a_line_that_is_none_of_a_commit_is_refused(
    served: ServeProcess, uploaded: str, line: str
) -> None:
    assert commit(served, uploaded, line).status_code == 400


def test_files_that_go_are_counted_as_those_that_come(served: ServeProcess, uploaded: str) -> None:
    line = '{"key":"deletedFile","value":{"path":"a"}}'
    gone = "\n".join([line] * 100_001)
    assert commit(served, uploaded, gone).status_code == 413


def test_a_size_that_differs_from_what_came_is_refused(served: ServeProcess, uploaded: str) -> None:
    data = secrets.token_bytes(20)
    assert httpx.put(address(batch(served, uploaded, data)), content=data).status_code == 200
    named = f'"path":"a","oid":"{hashlib.sha256(data).hexdigest()}","size":21'
    assert commit(served, uploaded, f'{{"key":"lfsFile","value":{{{named}}}}}').status_code == 400
