"""Bundles are written and read as they always were."""

from __future__ import annotations

import base64

import pytest

from tensorrepo.repo.history.signatures import signatory
from tensorrepo.repo.transfer.bundle import Bundle
from tests.support.golden.bundle import GOLDEN, SIGNER, golden_bundles
from tests.support.second_readers.bundle import read_bundle, signed_words

NAMES = ("two-commits", "purged")


@pytest.mark.parametrize("name", NAMES)
def test_it_is_written_as_it_always_was(name: str) -> None:
    assert golden_bundles()[name] == (GOLDEN / f"{name}.bundle").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_read_as_the_page_says(name: str) -> None:
    stored = GOLDEN / f"{name}.bundle"
    contents, objects = read_bundle(stored.read_bytes())
    bundle = Bundle(stored)
    assert contents["refs"] == bundle.contents.refs
    assert contents["needs"] == bundle.contents.needs
    assert list(objects) == list(bundle.digests())
    assert {name: bytes(bundle.get(name).payload) for name in bundle.digests()} == {
        name: stored[len(stored) - len(bundle.get(name).payload) :]  # type: ignore[index]
        for name, stored in objects.items()
    }
    bundle.verify()
    bundle.close()


def test_it_tells_what_was_purged_and_who_signed() -> None:
    contents, objects = read_bundle((GOLDEN / "purged.bundle").read_bytes())
    bundle = Bundle(GOLDEN / "purged.bundle")
    told = bundle.source()
    purges = contents["purges"]
    assert purges["objects"] == told.purging.purges
    assert set(purges["objects"].values()) == {7}, "of what it has, and no other record"
    assert purges["rows"] == told.purging.purged_rows
    assert set(purges["rows"]) <= set(objects)
    assert purges["columns"] == told.purging.purged_columns
    ((old, twin),) = contents["placements"].items()
    assert old in purges["objects"]
    assert old not in objects
    assert twin in objects
    assert contents["signatures"] == told.signatures(["tags/v1"])
    text = contents["signatures"]["tags/v1"]
    signature, words, data = signed_words(text)
    assert words["commit"] == contents["refs"]["tags/v1"]
    assert words["repository"] == contents["repository"]
    assert signatory(base64.b64decode(signature), data, {"ada": SIGNER.public_key}).name == "ada"
    bundle.close()
