"""Large files in parts, by git-lfs's transfer `multipart`: by the client, and by plain requests."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.api.huggingface.conftest import NEWEST, OLDER, variables
from tests.support.clients.environments import client_python
from tests.support.clients.process import ClientProcess, client_process
from tests.support.servers.serving import ServeProcess, serving

PART = 1 << 20
DATA = secrets.token_bytes(8 * PART + 5)
COUNT = 9


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


@pytest.fixture(scope="module")
def served(spool: Path) -> Iterator[ServeProcess]:
    """A server whose parts are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORREPO_SERVER_UPLOAD_PART_BYTES", str(PART))
        with serving(spool) as running:
            yield running


@pytest.fixture(scope="module")
def client(served: ServeProcess) -> Iterator[httpx.Client]:
    with served.client() as client:
        made = client.post("/api/repos/create", json={"name": "net", "organization": "ns"})
        made.raise_for_status()
        yield client


@pytest.fixture
def data() -> bytes:
    """A file of nine parts that nobody sent before."""
    return secrets.token_bytes(16) + DATA[16:]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def addresses(client: httpx.Client, data: bytes) -> dict[str, Any]:
    """The upload action of a file; nothing where it is there."""
    asked = {
        "operation": "upload",
        "transfers": ["basic", "multipart"],
        "objects": [{"oid": digest(data), "size": len(data)}],
    }
    told = client.post("/ns/net.git/info/lfs/objects/batch", json=asked).raise_for_status().json()
    assert told["transfer"] in {"basic", "multipart"}
    upload: dict[str, Any] = told["objects"][0].get("actions", {}).get("upload", {})
    return upload


def piece(data: bytes, number: int) -> bytes:
    return data[(number - 1) * PART : number * PART]


def send(upload: dict[str, Any], number: int, content: bytes) -> str:
    """Send a part, without any token; gives its ETag as it was answered."""
    answer = httpx.put(upload["header"][str(number)], content=content)
    return str(answer.raise_for_status().headers["etag"])


def complete(upload: dict[str, Any], oid: str, etags: dict[int, str]) -> httpx.Response:
    parts = [{"partNumber": number, "etag": etag} for number, etag in sorted(etags.items())]
    return httpx.post(upload["href"], json={"oid": oid, "parts": parts})


def verify(client: httpx.Client, data: bytes) -> int:
    asked = {"oid": digest(data), "size": len(data)}
    return client.post("/ns/net.git/info/lfs/verify", json=asked).status_code


@pytest.mark.parametrize(
    "version", [NEWEST, *(pytest.param(one, marks=pytest.mark.soak) for one in OLDER)]
)
def test_a_model_that_came_in_parts_comes_back_byte_for_byte(
    served: ServeProcess, tmp_path: Path, version: str
) -> None:
    weights = np.random.default_rng(0).standard_normal((3, PART)).astype("f4")
    save_file({"w": weights}, tmp_path / "model.safetensors")
    code = """
        import huggingface_hub
        from huggingface_hub import lfs
        sent, send = [], lfs._upload_multi_part
        def counted(operation, header, chunk_size, upload_url):
            sent.append(chunk_size)
            send(operation=operation, header=header, chunk_size=chunk_size, upload_url=upload_url)
        lfs._upload_multi_part = counted
        api = huggingface_hub.HfApi()
        api.create_repo(name)
        api.upload_folder(repo_id=name, folder_path=folder)
        return [sent, huggingface_hub.hf_hub_download(name, "model.safetensors")]
    """
    name = f"ns/parts-{version.partition('==')[2]}"
    home = variables(served, tmp_path / "home")
    with client_process(client_python(version), home) as process:
        sent, found = run(process, code, name, tmp_path)
    assert sent == [PART]
    assert Path(found).read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def run(process: ClientProcess, code: str, name: str, folder: Path) -> Any:
    return process.run(code, name=name, folder=str(folder))


def test_parts_come_in_any_order_and_again(client: httpx.Client, data: bytes) -> None:
    upload = addresses(client, data)
    assert (upload["header"]["chunk_size"], len(upload["header"])) == (str(PART), COUNT + 1)
    send(upload, 2, piece(data, 1))  # by mistake
    etags = {number: send(upload, number, piece(data, number)) for number in range(COUNT, 0, -1)}
    assert complete(upload, digest(data), etags).status_code == 200
    assert verify(client, data) == 200
    assert addresses(client, data) == {}


def test_an_upload_goes_on_where_it_broke_off(client: httpx.Client, data: bytes) -> None:
    before = addresses(client, data)
    etags = {number: send(before, number, piece(data, number)) for number in (1, 4, 5)}
    with pytest.raises(httpx.HTTPError):
        httpx.put(before["header"]["2"], content=broken(piece(data, 2)))
    after = addresses(client, data)
    missing = complete(after, digest(data), etags)
    assert (missing.status_code, "parts [2, 3, 6" in missing.text) == (409, True)
    etags |= {number: send(after, number, piece(data, number)) for number in (2, 3, 6, 7, 8, 9)}
    assert complete(after, digest(data), etags).status_code == 200
    assert complete(after, digest(data), etags).status_code == 200  # its answer was lost
    assert verify(client, data) == 200


def broken(data: bytes) -> Iterator[bytes]:
    yield data[: PART // 2]
    raise httpx.WriteError("the network went away")


@pytest.mark.parametrize("sent", [b"", b"short", bytes(PART + 1)])
def test_a_part_of_another_size_is_refused(client: httpx.Client, data: bytes, sent: bytes) -> None:
    upload = addresses(client, data)
    assert httpx.put(upload["header"]["3"], content=sent).status_code in {400, 413}
    missing = complete(upload, digest(data), {})
    assert (missing.status_code, "parts [1, 2, 3" in missing.text) == (409, True)


@pytest.mark.soak
def test_parts_of_another_file_are_forgotten(client: httpx.Client, data: bytes) -> None:
    upload = addresses(client, data)
    lies = {number: send(upload, number, bytes(PART)) for number in range(1, COUNT)}
    lies[COUNT] = send(upload, COUNT, piece(data, COUNT))
    refused = complete(upload, digest(data), lies)
    assert (refused.status_code, "Send them again" in refused.text) == (400, True)
    assert complete(upload, digest(data), lies).status_code == 409
    assert verify(client, data) == 404


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"oid":1}', b'{"oid":"x","parts":[{"etag":"y"}]}', b"{" * 10_000]
)
def test_a_completion_that_is_none_is_refused(
    client: httpx.Client, data: bytes, body: bytes
) -> None:
    assert httpx.post(addresses(client, data)["href"], content=body).status_code == 400


def test_an_address_completes_its_own_file_alone(client: httpx.Client, data: bytes) -> None:
    upload = addresses(client, data)
    etags = {number: send(upload, number, piece(data, number)) for number in range(1, COUNT + 1)}
    assert complete(upload, "0" * 64, etags).status_code == 400
    assert complete(upload, "../../x", etags).status_code == 400
    assert httpx.put(upload["href"], content=data).status_code == 401
    assert httpx.post(upload["header"]["1"]).status_code == 401
    swapped = etags | {1: etags[2], 2: etags[1]}
    assert complete(upload, digest(data), swapped).status_code == 400
    assert complete(upload, digest(data), etags).status_code == 200


def test_what_nobody_went_on_with_is_gone_after_a_day(
    client: httpx.Client, spool: Path, data: bytes
) -> None:
    send(addresses(client, data), 1, piece(data, 1))
    (folder,) = spool.glob(f"data/huggingface/*/{digest(data)}.parts")
    os.utime(folder, (time.time() - 86_500,) * 2)
    addresses(client, b"another file")
    assert not folder.exists()


def test_a_client_that_knows_no_parts_sends_the_whole(client: httpx.Client, data: bytes) -> None:
    asked = {"operation": "upload", "objects": [{"oid": digest(data), "size": len(data)}]}
    told = client.post("/ns/net.git/info/lfs/objects/batch", json=asked).json()
    assert told["transfer"] == "basic"
    upload = told["objects"][0]["actions"]["upload"]
    assert httpx.put(upload["href"], content=data).status_code == 200
    assert verify(client, data) == 200
