"""What Hugging Face's own client downloaded is imported with its revisions."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorrepo as tr
from tests.api.huggingface.conftest import contents
from tests.support.clients.process import ClientProcess


@pytest.fixture
def repository(tmp_path: Path) -> tr.Repository:
    return tr.init(tmp_path / "repo", author="Eve <eve@example.org>")


def exported(repository: tr.Repository, name: str, ref: str, target: Path) -> dict[str, bytes]:
    tr.export(repository.model(name, ref), target, format="snapshot")
    return contents(target)


def test_a_cache_that_the_client_filled_is_imported(
    hub: ClientProcess,
    uploaded: str,
    folder: Path,
    repository: tr.Repository,
    tmp_path: Path,
) -> None:
    cache = tmp_path / "hub"
    hub.run(
        """
        kept["hub"].snapshot_download(name, cache_dir=cache)
        kept["api"].upload_file(repo_id=name, path_or_fileobj=b"new", path_in_repo="new.txt")
        kept["hub"].snapshot_download(name, cache_dir=cache)
        """,
        name=uploaded,
        cache=str(cache),
    )
    made = repository.import_history(cache)
    assert (made.tool, made.commits, set(made.branches)) == ("huggingface", 2, {"main"})
    name = uploaded.partition("/")[2]
    assert exported(repository, name, "main~1", tmp_path / "a") == contents(folder)
    newer = contents(folder) | {"new.txt": b"new"}
    assert exported(repository, name, "main", tmp_path / "b") == newer


def test_a_folder_that_the_client_filled_is_imported(
    hub: ClientProcess, uploaded: str, repository: tr.Repository, tmp_path: Path
) -> None:
    target = tmp_path / "net"
    hub.run(
        'kept["hub"].snapshot_download(name, local_dir=target)', name=uploaded, target=str(target)
    )
    made = repository.import_history(target)
    assert (made.tool, made.commits) == ("huggingface", 1)
    assert exported(repository, "net", "main", tmp_path / "a") == contents(target)
