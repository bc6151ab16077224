"""Rendered files: what their cache holds is made again where it is of no use."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorrepo as tr
from tensorrepo.api.huggingface.rendered_files import RenderedFiles, _list_name
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.repo.objects.cache import DiskCache


@pytest.fixture
def dataset(tmp_path: Path) -> StoredDataset:
    repository = tr.init(tmp_path / "r", author="Ada <ada@example.org>")
    with repository.transaction(message="rows") as tx:
        tx.create_dataset("pets", {"age": [1, 2, 3]})
    return repository.dataset("pets").stored


@pytest.mark.parametrize("kept", [b"", b"[{}]", b'{"path": 1}', b"\xff"])
def test_a_list_that_cannot_be_used_is_made_anew(
    dataset: StoredDataset, kept: bytes, tmp_path: Path
) -> None:
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    whole = RenderedFiles(cache, tmp_path / "rooms").files(dataset)
    cache.put(_list_name(dataset), (kept,))
    assert cache.get(_list_name(dataset)) == kept
    assert RenderedFiles(cache, tmp_path / "rooms").files(dataset) == whole
    assert cache.get(_list_name(dataset)) != kept
