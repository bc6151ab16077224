"""The client `oras`, unchanged, pulls models from a server that was started as people start it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.architecture.pages import blocks
from tests.support.architecture.sources import ROOT
from tests.support.clients.environments import client_python
from tests.support.clients.lfs_uploads import upload_files
from tests.support.clients.process import ClientError, ClientProcess, client_process
from tests.support.servers.serving import ServeProcess, serving

VERSION = "oras==0.2.43"
FILES = {
    "model.gguf": bytes(range(256)) * 5000,
    "config.json": b'{"model_type": "tiny"}',
    "sub/vocab.txt": b"a\nb\n",
}
_BEGIN = """
    import oras.client
    host = url.removeprefix("http://")
    client = oras.client.OrasClient(hostname=host, insecure=True, auth_backend="basic")
    client.auth.set_basic_auth("anybody", token)
    bearer = oras.client.OrasClient(hostname=host, insecure=True, auth_backend="token")
    bearer.auth.set_token_auth(token)
    nobody = oras.client.OrasClient(hostname=host, insecure=True, auth_backend="basic")
    nobody.auth.set_basic_auth("anybody", "trp_wrong")
    kept.update(host=host, client=client, bearer=bearer, nobody=nobody)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with serving(tmp_path_factory.mktemp("served")) as running:
        with running.client() as client:
            upload_files(client, "ns/net", {"config.json": b"{}"})
            client.post("/api/models/ns/net/tag/main", json={"tag": "v1"}).raise_for_status()
            upload_files(client, "ns/net", FILES)
        yield running


@pytest.fixture(scope="module")
def oras(served: ServeProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientProcess]:
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    with client_process(client_python(VERSION), home) as client:
        client.run(_BEGIN, url=served.url, token=served.token)
        yield client


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("by", ["client", "bearer"])
def test_a_model_is_pulled_as_the_folder_that_it_was(
    oras: ClientProcess, tmp_path: Path, by: str
) -> None:
    code = "kept[by].pull(f\"{kept['host']}/ns/net:main\", outdir=folder)"
    oras.run(code, folder=str(tmp_path), by=by)
    assert contents(tmp_path) == FILES


def test_a_model_is_pulled_as_the_guide_says(
    oras: ClientProcess, served: ServeProcess, tmp_path: Path
) -> None:
    (code,) = (one.text for one in blocks(ROOT / "docs/guides/oci.md") if one.language == "python")
    host = served.url.removeprefix("http://")
    told = {"127.0.0.1:8420": host, "trp_...": served.token, "lab/bert:v1": "ns/net:main"}
    for written, meant in {**told, 'outdir="bert"': f"outdir={str(tmp_path)!r}"}.items():
        assert written in code
        code = code.replace(written, meant)
    oras.run(code)
    assert contents(tmp_path) == FILES


def test_without_a_tag_it_is_what_main_has(oras: ClientProcess, tmp_path: Path) -> None:
    code = "kept['client'].pull(f\"{kept['host']}/ns/net\", outdir=folder)"
    oras.run(code, folder=str(tmp_path))
    assert contents(tmp_path) == FILES


def test_a_manifest_fits_the_schema_of_the_client_and_is_pinned(
    oras: ClientProcess, tmp_path: Path
) -> None:
    code = """
        import hashlib, oras.schemas
        container = kept["client"].get_container(f"{kept['host']}/ns/net:v1")
        kept["client"].get_manifest(container, validation_schema=oras.schemas.manifest)
        url = f"http://{container.manifest_url()}"
        digest = hashlib.sha256(kept["client"].do_request(url).content).hexdigest()
        kept["client"].pull(f"{kept['host']}/ns/net@sha256:{digest}", outdir=folder)
    """
    oras.run(code, folder=str(tmp_path))
    assert contents(tmp_path) == {"config.json": b"{}"}


def test_tags_are_listed(oras: ClientProcess) -> None:
    code = "return kept['client'].get_tags(f\"{kept['host']}/ns/net\")"
    assert oras.run(code) == ["latest", "main", "v1"]


@pytest.mark.parametrize(
    ("who", "name"), [("client", "ns/net:nope"), ("client", "ns/nope:main"), ("nobody", "ns/net")]
)
def test_what_may_not_be_pulled_is_an_error(
    oras: ClientProcess, tmp_path: Path, who: str, name: str
) -> None:
    code = "kept[who].pull(f\"{kept['host']}/{name}\", outdir=folder)"
    with pytest.raises(ClientError):
        oras.run(code, folder=str(tmp_path), who=who, name=name)
    assert contents(tmp_path) == {}
