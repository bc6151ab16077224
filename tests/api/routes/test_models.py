"""Models over HTTP: what they are, and their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load
from safetensors.torch import save_file

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.formats.exchange.checkpoints.models import read_model
from tests.support.servers.service import RunningService

BASE = "/api/v1/repositories/team/zoo/-/models"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
CARD = "# Zoo\n\nSee <script>steal()</script>."
FILES = (*SHARDS, "model.safetensors.index.json", "config.json", "README.md")


def _weights(seed: int, tuned: float = 0.0) -> dict[str, torch.Tensor]:
    """Weights of 5 MiB, so that tensors have several frames; `tuned` moves one of them."""
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 256))
    state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    state["0.weight"] += tuned * torch.randn_like(state["0.weight"])
    state["scale"] = torch.tensor(3.0, dtype=torch.bfloat16)
    return state


def _write_shards(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    names = sorted(state)
    parts = {SHARDS[0]: names[:2], SHARDS[1]: names[2:]}
    for file, some in parts.items():
        save_file({name: state[name] for name in some}, folder / file, {"format": "pt"})
    index = {
        "metadata": {"total_size": 0},
        "weight_map": {name: file for file, some in parts.items() for name in some},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text('{"layers": 2}')
    (folder / "README.md").write_text(CARD)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_shards(tmp_path_factory.mktemp("zoo") / "snapshot", _weights(1))


@pytest.fixture(scope="module")
def zoo(service: RunningService, folder: Path) -> RunningService:
    """`base`, a sharded checkpoint; `tuned` from it, stored as a difference; one on `secret`."""
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/zoo"}).raise_for_status()
    repo = tr.open(service.service.directory.find("team/zoo").url, author="Ann <ann@example.org>")
    with repo.transaction(message="base") as tx:
        tx.save_model("vision/base", read_model(folder), metrics={"loss": 2.0})
    with repo.transaction(message="tuned") as tx:
        tx.save_model("vision/tuned", _weights(1, 1e-4), base="main:models/vision/base")
    repo.create_branch("secret")
    with repo.transaction("secret", message="hidden") as tx:
        tx.save_model("hidden", _weights(1, 1e-3))
    return service


@pytest.fixture
def client(zoo: RunningService) -> Iterator[httpx.Client]:
    with zoo.client() as opened:
        yield opened


def test_models_of_a_commit_are_listed(client: httpx.Client) -> None:
    found = client.get(BASE).json()["items"]
    assert [(one["name"], one["tensors"]) for one in found] == [
        ("vision/base", 5),
        ("vision/tuned", 5),
    ]


def test_a_model_tells_what_it_is(client: httpx.Client) -> None:
    found = client.get(f"{BASE}/vision/tuned").json()
    described = found["description"]
    assert described["parameters"] == sum(one.numel() for one in _weights(1).values())
    assert [edge["path"] for edge in described["lineage"]] == ["models/vision/base"]


def test_tensors_tell_how_they_are_stored(client: httpx.Client) -> None:
    found = client.get(f"{BASE}/vision/tuned/-/tensors").json()["items"]
    known = {one["name"]: one for one in found}
    assert (known["0.weight"]["shape"], known["0.weight"]["dtype"]) == ([1024, 1024], "F32")
    assert known["0.weight"]["has_base"]
    assert known["scale"]["codecs"] == ["inline"]


@pytest.mark.parametrize("name", FILES)
def test_files_come_back_byte_for_byte(client: httpx.Client, folder: Path, name: str) -> None:
    answer = client.get(f"{BASE}/vision/base/-/files/{name}")
    data = (folder / name).read_bytes()
    assert answer.content == data
    assert answer.headers["ETag"] == f'"{sha256(data).hexdigest()}"'
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.together
@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-99", 0, 100),
        ("bytes=100000-3000000", 100_000, 3_000_001),
        ("bytes=4000000-", 4_000_000, None),
        ("bytes=-17", -17, None),
        ("bytes=-999999999", 0, None),
        ("bytes=5-99999999999", 5, None),
    ],
)
def test_a_range_of_a_file_is_that_of_its_bytes(
    client: httpx.Client, folder: Path, asked: str, start: int, stop: int | None
) -> None:
    answer = client.get(f"{BASE}/vision/base/-/files/{SHARDS[0]}", headers={"Range": asked})
    data = (folder / SHARDS[0]).read_bytes()
    wanted = data[start:stop]
    first = start if start >= 0 else len(data) + start
    assert answer.status_code == 206
    assert answer.content == wanted
    told = f"bytes {first}-{first + len(wanted) - 1}/{len(data)}"
    assert answer.headers["Content-Range"] == told


@pytest.mark.parametrize("asked", ["bytes=999999999-", "bytes=-0"])
def test_a_range_behind_the_end_is_refused(client: httpx.Client, folder: Path, asked: str) -> None:
    answer = client.get(f"{BASE}/vision/base/-/files/{SHARDS[0]}", headers={"Range": asked})
    size = (folder / SHARDS[0]).stat().st_size
    assert (answer.status_code, answer.content) == (416, b"")
    assert answer.headers["Content-Range"] == f"bytes */{size}"


@pytest.mark.parametrize("asked", ["bytes=0-1,5-9", "bytes=9-5", "bytes=a-b", "rows=1-2", "x"])
def test_what_is_no_single_range_is_answered_by_the_whole(
    client: httpx.Client, folder: Path, asked: str
) -> None:
    answer = client.get(f"{BASE}/vision/base/-/files/config.json", headers={"Range": asked})
    assert answer.status_code == 200
    assert answer.content == (folder / "config.json").read_bytes()


def test_a_range_counts_only_of_the_bytes_that_the_caller_has_begun(client: httpx.Client) -> None:
    path = f"{BASE}/vision/base/-/files/config.json"
    etag = client.get(path).headers["ETag"]
    same = client.get(path, headers={"Range": "bytes=0-1", "If-Range": etag})
    other = client.get(path, headers={"Range": "bytes=0-1", "If-Range": '"other"'})
    late = client.get(path, headers={"Range": "bytes=0-1", "If-Match": '"other"'})
    assert [one.status_code for one in (same, other, late)] == [206, 200, 412]


def test_who_has_a_file_gets_no_body(client: httpx.Client) -> None:
    path = f"{BASE}/vision/base/-/files/{SHARDS[0]}"
    etag = client.head(path).headers["ETag"]
    answer = client.get(path, headers={"If-None-Match": f'"x", {etag}'})
    assert (answer.status_code, answer.content) == (304, b"")


def test_a_head_has_the_length_and_no_body(client: httpx.Client, folder: Path) -> None:
    answer = client.head(f"{BASE}/vision/base/-/files/{SHARDS[1]}")
    assert int(answer.headers["Content-Length"]) == (folder / SHARDS[1]).stat().st_size
    assert answer.content == b""


@pytest.mark.together
@pytest.mark.parametrize("name", ["vision/base", "vision/tuned"])
@pytest.mark.parametrize("rows", [None, "0:1", "3:700", "1000:", ":0"])
def test_rows_of_a_tensor_are_its_raw_elements(
    client: httpx.Client, name: str, rows: str | None
) -> None:
    answer = client.get(
        f"{BASE}/{name}/-/tensors/0.weight", params={} if rows is None else {"rows": rows}
    )
    repo_weights = _weights(1, 1e-4 if name.endswith("tuned") else 0.0)["0.weight"].numpy()
    first, _, last = (rows or ":").partition(":")
    wanted = repo_weights[slice(int(first or 0), int(last) if last else None)]
    shape = json.loads(answer.headers["X-Tensor-Shape"])
    assert answer.headers["X-Tensor-Dtype"] == "F32"
    assert np.array_equal(np.frombuffer(answer.content, "<f4").reshape(shape), wanted)


@pytest.mark.together
@pytest.mark.parametrize("rows", ["5:4", "0:2000", "1", "a:b", "-1:2", "0:1:2", "1e3:"])
def test_rows_that_are_not_there_are_refused(client: httpx.Client, rows: str) -> None:
    answer = client.get(f"{BASE}/vision/base/-/tensors/0.weight", params={"rows": rows})
    assert (answer.status_code, answer.json()["kind"]) == (400, "invalid-input")


def test_chosen_tensors_come_as_a_file_that_safetensors_reads(client: httpx.Client) -> None:
    answer = client.get(
        f"{BASE}/vision/tuned/-/safetensors", params={"tensor": ["1.bias", "0.weight"]}
    )
    found = load(answer.content)
    assert sorted(found) == ["0.weight", "1.bias"]
    assert np.array_equal(found["0.weight"], _weights(1, 1e-4)["0.weight"].numpy())


def test_a_diff_ranks_what_moved(client: httpx.Client) -> None:
    path = f"{BASE}/vision/tuned/-/diff"
    query = {"before": "main", "before_name": "vision/base", "measure": "true"}
    found = client.get(path, params=query).json()
    assert found["summary"] == "1 tensor changed, 4 unchanged"
    assert [layer["layer"] for layer in found["layers"]] == ["0"]


def test_likeness_is_told_only_of_what_the_caller_may_read(zoo: RunningService) -> None:
    token = zoo.user("zoe", Grant("team/zoo", Action.READ, "heads/main"))
    query = {"every_ref": "true"}
    with zoo.client() as client:
        every = client.get(f"{BASE}/vision/base/-/similar", params=query).json()
    with zoo.client(token) as client:
        some = client.get(f"{BASE}/vision/base/-/similar", params=query).json()
    assert len(every["ranking"]) == 2
    assert [one["names"] for one in some["ranking"]] == [["main:models/vision/tuned"]]


def test_models_of_other_branches_are_not_there(zoo: RunningService) -> None:
    token = zoo.user("yves", Grant("team/zoo", Action.READ, "heads/main"))
    query = {"ref": "secret"}
    with zoo.client(token) as client:
        answers = [
            client.get(BASE, params=query),
            client.get(f"{BASE}/hidden", params=query),
            client.get(f"{BASE}/hidden/-/safetensors", params=query),
            client.get(f"{BASE}/vision/base/-/diff", params={"before": "secret"}),
        ]
    assert [one.status_code for one in answers] == [404] * 4


def test_a_card_is_the_readme_that_came_with_the_model(client: httpx.Client) -> None:
    path = f"{BASE}/vision/base/-/card"
    assert client.get(path).text == CARD
    assert "script" not in client.get(path, params={"format": "html"}).text


@pytest.mark.together
@pytest.mark.parametrize(
    "path",
    [
        "vision/base/-/files/../../etc/passwd",
        "vision/base/-/files/..%2F..%2Fetc%2Fpasswd",
        "vision/base/-/tensors/nothing",
        "..%2F..%2Fvision/base",
        "vision/%00",
        "vision/base/-/files/%E2%80%AE",
    ],
)
def test_hostile_names_find_nothing(client: httpx.Client, path: str) -> None:
    answer = client.get(f"{BASE}/{path}")
    assert answer.status_code in {400, 404}
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_donors_and_owners_are_told_only_of_what_the_caller_may_read(zoo: RunningService) -> None:
    token = zoo.user("don", Grant("team/zoo", Action.READ, "heads/main"))
    query = {"tensor": "0.bias"}
    with zoo.client() as client:
        every = client.get(f"{BASE}/vision/base/-/donors").json()
        holding = client.get(f"{BASE}/vision/base/-/owners", params=query).json()
    with zoo.client(token) as client:
        some = client.get(f"{BASE}/vision/base/-/donors").json()
        seen = client.get(f"{BASE}/vision/base/-/owners", params=query).json()
    assert sorted(place["path"] for one in every for place in one["places"]) == [
        "models/hidden", "models/vision/tuned",
    ]  # fmt: skip
    assert [place["path"] for one in some for place in one["places"]] == ["models/vision/tuned"]
    assert (len(holding), len(seen)) == (3, 2)
