"""Signatures of tags travel: with fetches, pushes, clones and bundles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import refs, rules
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.tag_signatures import MAX_TRAVELLING_BYTES
from tensorrepo.repo.history.signatures import SshSigner
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.records import LogEntry, Update
from tensorrepo.repo.transfer.bundle import Bundle, write_bundle
from tensorrepo.repo.transfer.exchange import clone, fetch, push
from tensorrepo.repo.transfer.mirror import begin_mirror, follow
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.repositories import ADA, BOB, commit_files, new_repository

SIGNER = SshSigner(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


@pytest.fixture
def options(tmp_path: Path) -> TransferOptions:
    return TransferOptions(BOB, tmp_path / "parts")


def signing(repository: RepositoryCore) -> RepositoryCore:
    policy = replace(repository.policy, signer=lambda: SIGNER)
    return replace(repository, policy=policy)


@pytest.fixture
def origin() -> RepositoryCore:
    """A commit with a signed tag and a plain one."""
    made = new_repository()
    tip = commit_files(made, {"files/a": b"one"}).digest
    refs.create_tag(signing(made), "v1", tip, actor=ADA, note="first")
    refs.create_tag(made, "plain", tip, actor=ADA)
    return made


def told(repository: RepositoryCore, tag: str) -> tuple[str, str, str]:
    policy = replace(repository.policy, allowed={"ada": SIGNER.public_key})
    trusting = replace(repository, policy=policy)
    found = refs.tag_signatory(trusting, tag)
    return found.state, found.name, found.repository


def by_fetch(origin: RepositoryCore, here: RepositoryCore, options: TransferOptions) -> None:
    fetch(HistorySource.of(origin), here, "origin", options)


def by_push(origin: RepositoryCore, here: RepositoryCore, options: TransferOptions) -> None:
    specs = [ref for ref in origin.log.refresh().state.refs if ref.startswith("heads/")]
    push(origin, here, specs, options, tags=True)


def by_clone(origin: RepositoryCore, here: RepositoryCore, options: TransferOptions) -> None:
    clone(HistorySource.of(origin), here, "origin", options)


def by_bundle(origin: RepositoryCore, here: RepositoryCore, options: TransferOptions) -> None:
    path, source = options.parts.with_name("all.bundle"), HistorySource.of(origin)
    write_bundle(source, path, source.refs, overwrite=True)
    bundle = Bundle(path)
    clone(bundle.source(), here, "origin", options)
    bundle.close()


Move = Callable[[RepositoryCore, RepositoryCore, TransferOptions], None]
MOVES = (by_fetch, by_push, by_clone, by_bundle)


@pytest.mark.together
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("onward", MOVES)
def test_a_signature_travels_and_travels_on(
    move: Move, onward: Move, origin: RepositoryCore, options: TransferOptions
) -> None:
    here, there = new_repository(), new_repository()
    move(origin, here, options)
    tip = here.log.refresh().state.refs["tags/v1"]
    refs.create_branch(here, f"of-{BOB[:3]}", tip, actor=BOB)
    onward(here, there, options)
    for repository in (here, there):
        assert told(repository, "v1") == ("good", "ada", origin.id)
        assert told(repository, "plain") == ("none", "", "")
    assert told(origin, "v1") == ("good", "ada", "")


def test_a_mirror_has_the_very_entry(origin: RepositoryCore, options: TransferOptions) -> None:
    backend = MemoryBackend()
    begin_mirror(origin, backend)
    mirror = open_repository(backend, drivers={})
    follow(origin, mirror, options)
    assert told(mirror, "v1") == ("good", "ada", "")


def test_the_reflog_tells_who_brought_a_tag(
    origin: RepositoryCore, options: TransferOptions
) -> None:
    here = new_repository()
    by_fetch(origin, here, options)
    (move,) = refs.reflog(here, "tags/v1")
    assert (move.entry.actor, move.entry.note) == (BOB, "fetch origin")


def test_a_tag_under_another_name_has_no_signature(
    origin: RepositoryCore, options: TransferOptions
) -> None:
    here = new_repository()
    fetch(HistorySource.of(origin), here, "origin", options, specs=["v1:v9"], tags=False)
    assert told(here, "v9") == ("none", "", "")


@pytest.mark.soak
def test_more_signatures_than_a_record_has_room_for_come_in_several(
    origin: RepositoryCore, options: TransferOptions
) -> None:
    tip = origin.log.refresh().state.refs["tags/v1"]
    names = [f"release-{at}" for at in range(70)]
    for name in names:
        refs.create_tag(signing(origin), name, tip, actor=ADA)
    here = new_repository()
    _, report = clone(HistorySource.of(origin), here, "origin", options)
    assert {move.ref for move in report.moves} >= {f"tags/{name}" for name in names}
    assert {told(here, name)[0] for name in names} == {"good"}
    there = new_repository()
    pushed = push(here, there, ["main", *names], options, leased=True, remote="there")
    assert len(pushed.moves) == 71
    assert {told(there, name)[0] for name in names} == {"good"}


def test_a_note_that_is_too_long_leaves_the_signature_behind(
    origin: RepositoryCore, options: TransferOptions
) -> None:
    tip = origin.log.refresh().state.refs["tags/v1"]
    note = "x" * MAX_TRAVELLING_BYTES
    refs.create_tag(signing(origin), "long", tip, actor=ADA, note=note)
    here = new_repository()
    by_fetch(origin, here, options)
    assert told(here, "long") == ("none", "", "")
    assert told(here, "v1")[0] == "good"


def moved_tag(entry: LogEntry, commit: Digest) -> LogEntry:
    return LogEntry("x", "tag", BOB, 1, "", (Update("tags/v2", None, commit),),
                    signature=entry.signature)  # fmt: skip


def test_words_of_another_tag_or_another_commit_are_no_signature(
    origin: RepositoryCore, options: TransferOptions
) -> None:
    here = new_repository()
    by_fetch(origin, here, options)
    (move,) = refs.reflog(here, "tags/v1")
    entry = moved_tag(move.entry, here.log.refresh().state.refs["tags/v1"])
    here.append(lambda _: (entry,))
    assert told(here, "v2")[0] == "bad"


def test_a_source_that_lies_about_a_tag_brings_no_signature(
    origin: RepositoryCore, options: TransferOptions
) -> None:
    other = commit_files(origin, {"files/a": b"two"}).digest
    source = HistorySource.of(origin)
    lying = replace(source, refs={**source.refs, "tags/v1": other})
    here = new_repository()
    fetch(lying, here, "origin", options)
    assert told(here, "v1") == ("none", "", "")


@pytest.mark.parametrize("text", ["", ".", "AAAA.", "AAAA.e30=", "é.é", "AAAA.AAAA.AAAA"])
def test_what_is_no_signature_is_bad(text: str, origin: RepositoryCore) -> None:
    tip = origin.log.refresh().state.refs["tags/v1"]
    update = Update("tags/odd", None, tip)
    entry = LogEntry("odd", "tag", BOB, 1, "", (update,), signature=text)
    origin.append(lambda _: (entry,))
    assert told(origin, "odd")[0] == "bad"


def test_the_list_of_signers_travels_not(origin: RepositoryCore, options: TransferOptions) -> None:
    rules.add_signer(origin, "ada", SIGNER.public_key, actor=ADA)
    here = new_repository()
    by_clone(origin, here, options)
    assert refs.tag_signatory(here, "v1").state == "unknown-key"
    assert refs.tag_signatory(origin, "v1").name == "ada"
