"""Bundles are written and read as they always were."""

from __future__ import annotations

from tensorrepo.repo.transfer.bundle import Bundle
from tests.support.golden.bundle import GOLDEN, golden_bundle
from tests.support.second_readers.bundle import read_bundle

STORED = GOLDEN / "two-commits.bundle"


def test_it_is_written_as_it_always_was() -> None:
    assert golden_bundle() == STORED.read_bytes()


def test_it_is_read_as_the_page_says() -> None:
    contents, objects = read_bundle(STORED.read_bytes())
    bundle = Bundle(STORED)
    assert contents["refs"] == bundle.contents.refs
    assert contents["needs"] == bundle.contents.needs
    assert len(contents["needs"]) == 1
    assert list(objects) == list(bundle.digests())
    assert {name: bytes(bundle.get(name).payload) for name in bundle.digests()} == {
        name: stored[len(stored) - len(bundle.get(name).payload) :]  # type: ignore[index]
        for name, stored in objects.items()
    }
    bundle.verify()
    bundle.close()
