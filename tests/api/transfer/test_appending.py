"""The append of a service: judged by it alone, once for each transaction, in the caller's name."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.repositories.opening import ServedRepository, open_served
from tensorrepo.api.transfer.appending import Appender, appender_of
from tensorrepo.api.transfer.judging import Appending
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.service import ServiceBackend, open_http
from tensorrepo.repo.backends.service_format import MEDIA_TYPE, MessageHead, encode_message
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.fsck import ObjectTotals
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.leases import open_lease
from tensorrepo.repo.changes.purge import Twins, append_purge
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.rules import set_rule
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import (
    ConflictError,
    InvalidInputError,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.history.commits import Commit, encode_commit
from tensorrepo.repo.history.composing import WantedCommit, WantedEntry, encode_wanted
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.branch_rules import BranchRule
from tensorrepo.repo.log.records import LogEntry, Update, canonical_json
from tensorrepo.repo.objects.envelope import EncodedObject, Kind, ObjectLink, encode_object
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.verbs.fsck import fsck
from tensorrepo.workspace.doctor import judge_store
from tests.support.builders.repositories import (
    ADA,
    commit_files,
    files_at,
    stage_files,
    tip_of,
)
from tests.support.servers.service import RunningService

APPEND = "/api/v1/repositories/team/photos/-/append"
FILE = encode_object(Kind.BLOB, b"words")


def remote(service: RunningService, token: str | None = None) -> RepositoryCore:
    """The served repository, as a client without a home opens it."""
    options = {"token": service.token if token is None else token}
    return open_repository(
        open_http(f"{service.url}/team/photos", options, environment={}), drivers={}
    )


def commit_object(tree: bytes, links: Sequence[ObjectLink]) -> EncodedObject:
    """A commit without parents, that links to whatever is said."""
    commit = Commit(tree, (), 1, ADA, "made by hand", 1)
    return encode_object(Kind.COMMIT, encode_commit(commit), links)


def tree_with(digest: Digest) -> bytes:
    """A tree of one file."""
    objects = ObjectWriter(ObjectStore(MemoryBackend()), ())
    return update(objects, EMPTY_TREE, {"notes.txt": Entry(Kind.BLOB, digest)})


def send(
    service: RunningService,
    entries: Sequence[LogEntry],
    objects: Sequence[EncodedObject] = (),
    *,
    token: str | None = None,
    generation: int = 0,
    merges: bool = False,
) -> httpx.Response:
    """An append as bytes, of whatever is said."""
    data = [b"".join(each.parts) for each in objects]
    head = MessageHead(
        tuple((each.link.digest, len(one)) for each, one in zip(objects, data, strict=True)),
        msgspec.Raw(canonical_json(msgspec.to_builtins(tuple(entries)))),
        generation,
        merges,
    )
    with service.client(token) as client:
        return client.post(
            APPEND, content=encode_message(head, data), headers={"Content-Type": MEDIA_TYPE}
        )


def moving(ref: str, new: Digest | None, *, kind: str = "commit", txn: str = "t1") -> LogEntry:
    return LogEntry(txn, kind, "Eve <eve@example.org>", 1, "note", (Update(ref, None, new),))


def good_commit() -> EncodedObject:
    return commit_object(tree_with(FILE.link.digest), [FILE.link])


@pytest.mark.parametrize("composed", [True, False], ids=["composed", "sent"])
def test_eight_writers_of_one_branch_lose_nothing(fresh: RunningService, composed: bool) -> None:
    def write(number: int) -> None:
        mine = remote(fresh)
        assert isinstance(mine.backend, ServiceBackend)
        mine.backend.most_paths *= composed
        for step in range(2):
            commit_files(mine, {f"{number}/{step}": b"%d" % step})
        mine.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there = fresh.service.directory.open("team/photos").core
    found = files_at(there, tip_of(there))
    assert found == {f"{number}/{step}": b"%d" % step for number in range(8) for step in range(2)}


def test_runs_and_checkpoints_are_written_again_through_the_service(fresh: RunningService) -> None:
    url, options = f"{fresh.url}/team/photos", {"token": fresh.token}
    repository = tr.open(url, storage_options=options, author=ADA)
    with repository.run("exp1", system_seconds=None) as run:
        run.log_metric("loss", 1.0)
        run.flush()
        run.log_metric("loss", 0.5)
    stored = repository.runs()["exp1"]
    assert (stored.status, stored.points("loss").values.tolist()) == ("finished", [1.0, 0.5])
    with repository.checkpointer("exp1") as checkpointer:
        for weight in (1.0, 2.0):
            checkpointer.save(7, {"w": np.full(3, weight)})
        assert checkpointer.load(7, output="numpy")["w"].tolist() == [2.0] * 3


def test_what_a_service_has_is_checked_by_its_clients_and_collected_where_it_lies(
    fresh: RunningService,
) -> None:
    url, options = f"{fresh.url}/team/photos", {"token": fresh.token}
    repository = tr.open(url, storage_options=options, author=ADA)
    with repository.transaction() as tx:
        tx.save_file("a.txt", b"a")
    totals = ObjectTotals()
    assert list(fsck(repository.context.core, totals, deep=True)) == []
    assert (totals.objects, totals.commits) == (2, 1)
    told = ("ok", "behind a service, which alone writes to it", "")
    assert judge_store(repository.context.core.backend) == told
    with pytest.raises(UnsupportedError, match="where its store lies"):
        repository.gc()


def test_who_a_service_writes_for_undoes_their_own_records_alone(fresh: RunningService) -> None:
    def opened(token: str) -> tr.Repository:
        url, options = f"{fresh.url}/team/photos", {"token": token}
        return pickle.loads(pickle.dumps(tr.open(url, storage_options=options, author=ADA)))

    mine = opened(fresh.token)
    other = opened(fresh.user("bob", Grant("team/photos", Action.WRITE)))
    for content in (b"one", b"two"):
        with mine.transaction() as tx:
            tx.save_file("a.txt", content)
    with pytest.raises(ConflictError, match="is not yours but admin <admin@"):
        other.undo()
    mine.undo()
    assert mine.file("a.txt") == b"one"
    mine.redo()
    assert mine.file("a.txt") == b"two"


def test_a_ref_that_begins_anew_says_what_it_named(fresh: RunningService) -> None:
    ref, made = "runs/exp1/record", good_commit()
    assert send(fresh, [moving(ref, made.link.digest)], [made, FILE]).status_code == 200
    anew = moving(ref, made.link.digest, txn="t2")
    wrong = replace(anew, kind="ref-delete", updates=(Update(ref, Digest("1" * 64), None),))
    right = replace(anew, kind="ref-delete", updates=(Update(ref, made.link.digest, None),))
    told = [send(fresh, entries, generation=1) for entries in ([anew], [wrong, anew])]
    assert [one.status_code for one in told] == [409, 409]
    assert send(fresh, [right, anew], generation=1).status_code == 200


def test_a_client_that_left_takes_nobody_of_its_group_along(tmp_path: Path) -> None:
    core = open_served(str(tmp_path / "repo"), data=tmp_path, environment={}, create=True)
    appender, may_go_on = Appender(ServedRepository("team/x", core)), threading.Event()

    def refuse() -> Appending:
        assert may_go_on.wait(30)
        raise InvalidInputError("refused")

    async def leave() -> list[object]:
        waiting = [asyncio.create_task(appender.append(refuse)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        async with asyncio.timeout(30):
            return [*await asyncio.gather(*waiting, return_exceptions=True)]

    told = [type(one) for one in asyncio.run(leave())]
    assert told == [InvalidInputError, asyncio.CancelledError, InvalidInputError]


@pytest.mark.parametrize("begun", [0, 1])
def test_who_writes_while_there_are_no_threads_is_told_and_writes_later(
    begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = open_served(str(tmp_path / "repo"), data=tmp_path, environment={}, create=True)
    served, start, left = ServedRepository("team/x", core), threading.Thread.start, [begun]

    def start_some(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    def refuse() -> Appending:
        raise InvalidInputError("refused")

    async def append() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start_some)
            with pytest.raises(StorageError, match="no more threads"):
                await asyncio.wait_for(appender_of(served).append(refuse), 20)
        with pytest.raises(InvalidInputError, match="refused"):
            await asyncio.wait_for(appender_of(served).append(refuse), 20)

    asyncio.run(append())
    core.close()


@pytest.mark.parametrize("step", ["_begin", "_launch"])
def test_an_unforeseen_error_is_told_to_whom_it_concerns_and_to_nobody_later(
    fresh: RunningService, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    work, errors = getattr(Appender, step), [RuntimeError("unforeseen")]

    def fails_once(appender: Appender, group: Any) -> Any:
        if errors:
            raise errors.pop()
        return work(appender, group)

    monkeypatch.setattr(Appender, step, fails_once)
    first = compose(fresh, wanted(txn="t1"))
    second = compose(fresh, wanted("heads/other", txn="t2"))
    assert (first.status_code, second.status_code, errors) == (500, 200, [])


def test_no_refusal_is_of_what_was_seen_long_ago(fresh: RunningService) -> None:
    first, second = remote(fresh), remote(fresh)
    commit_files(first, {"notes.txt": b"one"})
    tip = tip_of(first)  # looks at the log, which nothing below does
    refs.create_branch(first, "dev", tip, actor=ADA)
    refs.delete_ref(second, "heads/dev", actor=ADA)
    refs.create_branch(first, "dev", tip, actor=ADA)
    with pytest.raises(ConflictError, match="exists already"):
        refs.create_branch(second, "dev", tip, actor=ADA)


def test_two_changes_of_one_file_are_a_conflict(fresh: RunningService) -> None:
    first, second = remote(fresh), remote(fresh)
    commit_files(first, {"notes.txt": b"one"})
    second.log.refresh()
    commit_files(first, {"notes.txt": b"two"})
    with pytest.raises(ConflictError, match=r"notes\.txt"):
        commit_files_at(second, {"notes.txt": b"three"})
    assert files_at(first, tip_of(first)) == {"notes.txt": b"two"}


def commit_files_at(repository: RepositoryCore, files: Mapping[str, bytes]) -> Any:
    """A commit on what the repository has seen last."""
    transaction = begin(repository, "main", pin=repository.log.latest)
    stage_files(transaction, files)
    return transaction.commit("change", author=ADA)


def compose(
    service: RunningService,
    wanted: WantedCommit,
    objects: Sequence[EncodedObject] = (FILE,),
    *,
    token: str | None = None,
    generation: int = 0,
) -> httpx.Response:
    """An append of a commit that is to be composed."""
    data = [b"".join(each.parts) for each in objects]
    listed = tuple((each.link.digest, len(one)) for each, one in zip(objects, data, strict=True))
    asked = msgspec.Raw(encode_wanted(wanted))
    body = encode_message(MessageHead(listed, generation=generation, commit=asked), data)
    with service.client(token) as client:
        return client.post(APPEND, content=body, headers={"Content-Type": MEDIA_TYPE})


def wanted(ref: str = "heads/main", *, base: Digest | None = None, txn: str = "t1") -> WantedCommit:
    """A commit of one file."""
    named = WantedEntry(int(Kind.BLOB), FILE.link.digest)
    return WantedCommit(txn, ref, {"notes.txt": named}, ADA, "words", 7, base)


def test_a_composed_commit_is_named_by_who_asks_and_given_with_the_answer(
    fresh: RunningService,
) -> None:
    answer = compose(fresh, wanted()).json()
    entry = answer["entries"][0]
    core = fresh.service.directory.open("team/photos").core
    assert (entry["kind"], entry["actor"]) == ("commit", "admin <admin@users.invalid>")
    assert files_at(core, entry["updates"][0]["new"]) == {"notes.txt": b"words"}
    assert [key.replace("/", "") for key in answer["objects"]] == [f"objects{tip_of(core)}"]


def test_a_composed_commit_that_is_sent_again_lands_once(fresh: RunningService) -> None:
    answers = [compose(fresh, wanted()).json() for _ in range(2)]
    assert [answer["generation"] for answer in answers] == [1, 1]
    assert answers[0]["entries"] == answers[1]["entries"]


def test_a_composed_commit_whose_answer_was_lost_is_made_once(
    fresh: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, lost = remote(fresh), [StorageError("cut off", transient=True)]
    assert isinstance(mine.backend, ServiceBackend)
    call = mine.backend.call

    def cut_off(method: str, path: str, **more: Any) -> httpx.Response:
        answer = call(method, path, **more)
        if path == "/append" and lost:
            raise lost.pop()
        return answer

    monkeypatch.setattr(mine.backend, "call", cut_off)
    landed = commit_files(mine, {"notes.txt": b"one"})
    core = fresh.service.directory.open("team/photos").core
    assert (lost, landed.generation, landed.digest) == ([], 1, tip_of(core))
    assert core.log.refresh().generation == 1


def test_a_composed_commit_that_changes_nothing_is_not_made(fresh: RunningService) -> None:
    first = compose(fresh, wanted()).json()
    tip = first["entries"][0]["updates"][0]["new"]
    again = compose(fresh, wanted(base=tip, txn="t2"), generation=1).json()
    assert (again["generation"], again["entries"]) == (1, [])


def test_a_composed_commit_needs_its_objects(fresh: RunningService) -> None:
    answer = compose(fresh, wanted(), ())
    assert (answer.status_code, answer.json()["kind"]) == (410, "missing-objects")
    assert answer.json()["missing"] == [FILE.link.digest]


def test_a_commit_is_composed_on_branches_alone(fresh: RunningService) -> None:
    answer = compose(fresh, wanted("runs/1/2"))
    assert (answer.status_code, answer.json()["kind"]) == (400, "invalid-input")


def test_a_commit_is_composed_for_who_may_write_the_branch_and_read_all(
    fresh: RunningService,
) -> None:
    writer = Grant("team/photos", Action.WRITE, "heads/a")
    bob = fresh.user("bob", Grant("team/photos", Action.READ), writer)
    rita = fresh.user("rita", writer)
    assert compose(fresh, wanted("heads/a"), token=bob).status_code == 200
    assert compose(fresh, wanted(txn="t2"), token=bob).status_code == 403
    assert compose(fresh, wanted("heads/a", txn="t3"), token=rita).status_code == 400


def test_rules_hold_for_composed_commits(fresh: RunningService) -> None:
    core = fresh.service.directory.open("team/photos").core
    set_rule(core, BranchRule("main", pushers=("ann@example.org",)), actor=ADA)
    assert compose(fresh, wanted()).status_code == 403
    assert tip_of(core) is None


def test_a_lease_ends_with_the_record_of_a_composed_commit(fresh: RunningService) -> None:
    core, mine = fresh.service.directory.open("team/photos").core, remote(fresh)
    open_lease(mine, "stage", [], since=0, holder=ADA, note="staged", seconds=60)
    transaction = begin(mine, "main")
    stage_files(transaction, {"notes.txt": b"one"})
    landed = transaction.commit("change", author=ADA, closes_lease="stage")
    assert landed is not None
    view = core.log.refresh()
    assert (view.state.leases, view.generation) == ({}, landed.generation)


def test_a_signed_commit_on_a_branch_that_moved_is_told_the_new_head(
    fresh: RunningService,
) -> None:
    first = good_commit()
    send(fresh, [moving("heads/main", first.link.digest)], [FILE, first]).raise_for_status()
    commit = Commit(tree_with(FILE.link.digest), (), 1, ADA, "signed", 2, signature=b"signed")
    signed = encode_object(Kind.COMMIT, encode_commit(commit), [FILE.link])
    entry = moving("heads/main", signed.link.digest, txn="t2")
    answer = send(fresh, [entry], [FILE, signed], generation=1, merges=True)
    assert (answer.status_code, answer.json()["kind"]) == (409, "conflict")
    assert first.link.digest[:12] in answer.json()["detail"]
    core = fresh.service.directory.open("team/photos").core
    assert tip_of(core) == first.link.digest


def test_an_append_that_is_sent_again_lands_once(fresh: RunningService) -> None:
    commit = good_commit()
    entry = moving("heads/main", commit.link.digest)
    first = send(fresh, [entry], [FILE, commit])
    again = send(fresh, [entry], [FILE, commit])
    assert first.json()["generation"] == again.json()["generation"] == 1


def test_the_log_names_the_caller_whatever_he_says(fresh: RunningService) -> None:
    commit = good_commit()
    answer = send(fresh, [moving("heads/main", commit.link.digest)], [FILE, commit])
    assert answer.json()["entries"][0]["actor"] == "admin <admin@users.invalid>"


def test_what_is_missing_is_named(fresh: RunningService) -> None:
    commit = good_commit()
    answer = send(fresh, [moving("heads/main", commit.link.digest)], [commit])
    assert (answer.status_code, answer.json()["kind"]) == (410, "missing-objects")
    assert answer.json()["missing"] == [FILE.link.digest]


@pytest.mark.parametrize(
    "link",
    [
        ObjectLink(FILE.link.digest, FILE.link.bytes + 1, Kind.BLOB, leaf=True),
        ObjectLink(FILE.link.digest, FILE.link.bytes, Kind.CHUNK, leaf=True),
        ObjectLink(FILE.link.digest, FILE.link.bytes, Kind.BLOB, leaf=False),
    ],
    ids=["bytes", "kind", "leaf"],
)
def test_a_link_that_lies_is_refused(fresh: RunningService, link: ObjectLink) -> None:
    commit = commit_object(tree_with(FILE.link.digest), [link])
    answer = send(fresh, [moving("heads/main", commit.link.digest)], [FILE, commit])
    assert answer.status_code == 400, answer.text


def test_a_commit_names_nothing_that_it_does_not_link_to(fresh: RunningService) -> None:
    commit = commit_object(tree_with(FILE.link.digest), [])
    answer = send(fresh, [moving("heads/main", commit.link.digest)], [FILE, commit])
    assert (answer.status_code, answer.json()["kind"]) == (400, "invalid-input")


def test_a_commit_cannot_say_that_it_is_older_or_newer(fresh: RunningService) -> None:
    first = good_commit()
    newer = Commit(EMPTY_TREE, (first.link.digest,), 9, ADA, "made by hand", 1)
    second = encode_object(Kind.COMMIT, encode_commit(newer), [first.link])
    answer = send(fresh, [moving("heads/main", second.link.digest)], [FILE, first, second])
    assert (answer.status_code, answer.json()["kind"]) == (400, "invalid-input")


def test_bytes_that_are_another_object_are_refused(fresh: RunningService) -> None:
    commit = good_commit()
    forged = EncodedObject(FILE.link, (encode_object(Kind.BLOB, b"swords").parts))
    answer = send(fresh, [moving("heads/main", commit.link.digest)], [forged, commit])
    assert answer.status_code == 400


@pytest.mark.parametrize("ref", ["registry/models/a/1", "meta/requests", "requests/1/head"])
def test_no_push_sets_what_the_service_writes(fresh: RunningService, ref: str) -> None:
    commit = good_commit()
    answer = send(fresh, [moving(ref, commit.link.digest, kind="ref-create")], [FILE, commit])
    assert answer.status_code == 403


@pytest.mark.parametrize("ref", ["registry/models/a/1", "meta/requests", "requests/1/head"])
def test_a_mirror_token_copies_what_the_service_writes(fresh: RunningService, ref: str) -> None:
    scope = [{"repository": "team/photos", "action": "mirror"}]
    with fresh.client() as client:
        made = client.post("/api/v1/tokens", json={"label": "copy", "scope": scope})
        me = client.get("/api/v1/tokens").json()["items"][-1]["scope"]
    commit = good_commit()
    entry = moving(ref, commit.link.digest, kind="ref-create")
    answer = send(fresh, [entry], [FILE, commit], token=made.json()["token"])
    assert answer.status_code == 200
    assert me == [{"repository": "team/photos", "action": "mirror", "refs": "*"}]


def test_a_mirror_token_is_for_the_refs_that_it_names(fresh: RunningService) -> None:
    scope = (Grant("team/photos", Action.MIRROR, "meta/*"), Grant("team/photos", Action.ADMIN))
    token = fresh.service.accounts.add_token("admin", "copy", scope=scope)
    commit = good_commit()
    entry = moving("requests/1/head", commit.link.digest, kind="ref-create")
    assert send(fresh, [entry], [FILE, commit], token=token).status_code == 403


def test_only_who_runs_the_service_makes_mirror_tokens(fresh: RunningService) -> None:
    token = fresh.user("adele", Grant("team/photos", Action.ADMIN))
    scope = [{"repository": "team/photos", "action": "mirror"}]
    grant = {"holder": "adele", "repository": "team/photos", "action": "mirror"}
    with fresh.client(token) as client, fresh.client() as operator:
        statuses = [
            client.post("/api/v1/tokens", json={"label": "x", "scope": scope}).status_code,
            client.put("/api/v1/grants", json=grant).status_code,
            operator.put("/api/v1/grants", json=grant).status_code,
        ]
    assert statuses == [403, 400, 400]


@pytest.mark.parametrize("kind", ["gc-condemn", "gc-end", "gc-merge", "purge"])
def test_no_client_collects_or_purges(fresh: RunningService, kind: str) -> None:
    answer = send(fresh, [LogEntry("t1", kind, "Eve <eve@example.org>", 1)])
    assert answer.status_code == 403


@pytest.mark.parametrize("kept", [True, False])
def test_a_commit_that_leads_to_what_was_purged_needs_its_twin(
    fresh: RunningService, kept: bool
) -> None:
    backend = fresh.service.directory.open("team/photos").core.backend
    beside = open_repository(backend, drivers={})
    commit_files(beside, {"notes.txt": b"words"}, branch="old")
    append_purge(
        beside,
        lambda _, writer: Twins(
            {FILE.link.digest: writer.put(Kind.BLOB, b"erased").digest}, {}, frozenset()
        ),
        actor=ADA,
        reason="asked",
    )
    if not kept:
        refs.delete_ref(beside, "heads/old", actor=ADA)
    collect_garbage(beside, actor=ADA, rules=CollectionRules(0.0, 0.0))
    commit = good_commit()
    answer = send(fresh, [moving("heads/new", commit.link.digest)], [commit])
    state = open_repository(backend, drivers={}).log.refresh().state
    if kept:
        assert answer.status_code == 200
        again = open_repository(backend, drivers={})
        assert files_at(again, state.refs["heads/new"]) == {"notes.txt": b"erased"}
    else:
        assert answer.json()["kind"] == "purged", answer.text
        assert "heads/new" not in state.refs


def test_a_writer_of_one_branch_writes_no_other(fresh: RunningService) -> None:
    grants = (
        Grant("team/photos", Action.READ),
        Grant("team/photos", Action.WRITE, "heads/dev/*"),
    )
    token = fresh.user("bob", *grants)
    commit = good_commit()
    there = send(fresh, [moving("heads/dev/a", commit.link.digest)], [FILE, commit], token=token)
    other = [moving("heads/main", commit.link.digest, txn="t2")]
    assert there.status_code == 200
    assert send(fresh, other, [FILE, commit], token=token).status_code == 403


def test_who_only_reads_appends_nothing(fresh: RunningService) -> None:
    token = fresh.user("rita", Grant("team/photos", Action.READ))
    answer = send(fresh, [LogEntry("t1", "noop", ADA, 1)], token=token)
    assert answer.status_code == 403


def test_settings_take_an_admin(fresh: RunningService) -> None:
    token = fresh.user("will", Grant("team/photos", Action.WRITE))
    entry = LogEntry("t1", "config", ADA, time.time_ns(), data={"set": {"retention_seconds": 1}})
    assert send(fresh, [entry], token=token).status_code == 403
    assert send(fresh, [entry]).status_code == 200


def test_a_branch_leaves_nothing_behind_by_a_commit(fresh: RunningService) -> None:
    first, second = good_commit(), commit_object(EMPTY_TREE, [])
    send(fresh, [moving("heads/main", first.link.digest)], [FILE, first])
    move = Update("heads/main", first.link.digest, second.link.digest)
    answer = send(fresh, [LogEntry("t2", "commit", ADA, 1, "", (move,))], [second], generation=1)
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (BranchRule("main", fast_forward=True), "forward"),
        (BranchRule("m*", pushers=("ann@example.org",)), "ann@example.org"),
        (BranchRule("main", signed=True), "sign"),
        (BranchRule("main", checks=("quality",)), "quality"),
    ],
    ids=["fast-forward", "pushers", "signed", "checks"],
)
def test_rules_of_branches_hold_for_every_client(
    fresh: RunningService, rule: BranchRule, words: str
) -> None:
    first = good_commit()
    send(fresh, [moving("heads/main", first.link.digest)], [FILE, first]).raise_for_status()
    core = fresh.service.directory.open("team/photos").core
    set_rule(core, rule, actor=ADA)
    commit = Commit(tree_with(FILE.link.digest), (), 1, ADA, "another history", 3)
    other = encode_object(Kind.COMMIT, encode_commit(commit), [FILE.link])
    update_ = Update("heads/main", first.link.digest, other.link.digest)
    entry = LogEntry("t2", "ref-reset", "Eve <eve@example.org>", 1, "", (update_,))
    answer = send(fresh, [entry], [FILE, other])
    assert answer.status_code == 403
    assert words in answer.json()["detail"]
    assert tip_of(core) == first.link.digest
