"""Clients of a service beside collectors: honest ones, and one that omits, invents and replays.

Run as ``python -m tests.support.faults.remote_writers URL TOKEN STORE SECONDS SEED WRITERS``: so
many processes write through the service at URL, one forges appends, and two collect in the STORE
behind it in a loop without any grace. Prints what each did, as JSON, and errors.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.service import open_http
from tensorrepo.repo.backends.service_format import MEDIA_TYPE, MessageHead, encode_message
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.errors import CommitExpired, NotFoundError
from tensorrepo.repo.history.commits import Commit, encode_commit
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.records import LogEntry, Update, canonical_json
from tensorrepo.repo.objects.envelope import (
    EncodedObject,
    Kind,
    ObjectLink,
    encode_object,
)
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.repositories import ADA
from tests.support.faults.collected_writers import CollectedWriter, collect


def remote(url: str, token: str) -> RepositoryCore:
    return open_repository(open_http(url, {"token": token}, environment={}), drivers={})


class Forger:
    """Sends appends that lack objects, name others than there are, or were sent long ago."""

    def __init__(self, url: str, token: str, chance: random.Random) -> None:
        host, _, name = url.partition("/team/")
        self._at = f"{host}/api/v1/repositories/team/{name}/-/append"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": MEDIA_TYPE}
        self._client = httpx.Client(headers=headers, timeout=60)
        self._chance = chance
        self._sent: list[bytes] = []
        self._commits: list[Digest] = []
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        what = self._chance.choice(["omit", "invent", "replay", "whole", "old"])
        body = self._body(what)
        answer = self._client.post(self._at, content=body)
        assert answer.status_code in {200, 400, 403, 409, 410}, answer.text
        if what == "invent":
            assert answer.status_code != 200, "what nobody has was taken"
        self._sent.append(body)
        self.done[f"{what} {answer.status_code}"] += 1

    def _body(self, what: str) -> bytes:
        if what == "replay" and self._sent:
            return self._chance.choice(self._sent)
        if what == "old" and self._commits:
            return self._message(self._chance.choice(self._commits), [])
        word = b"%d" % self._chance.randrange(12) * 200
        file = encode_object(Kind.BLOB, word)
        link = file.link
        if what == "invent":
            link = ObjectLink(Digest(f"{self._chance.getrandbits(256):064x}"), 264, Kind.BLOB, True)
        commit = _commit(link, self._chance.randrange(1 << 40))
        self._commits.append(commit.link.digest)
        return self._message(commit.link.digest, [commit] if what != "whole" else [file, commit])

    def _message(self, new: Digest, objects: list[EncodedObject]) -> bytes:
        txn = f"forged-{self._chance.getrandbits(64):016x}"
        ref = f"heads/forged-{self._chance.randrange(10**9)}"
        entry = LogEntry(txn, "ref-create", "Eve <eve@x.org>", 1, "", (Update(ref, None, new),))
        data = [b"".join(each.parts) for each in objects]
        listed = tuple((e.link.digest, len(d)) for e, d in zip(objects, data, strict=True))
        entries = msgspec.Raw(canonical_json(msgspec.to_builtins((entry,))))
        return encode_message(MessageHead(listed, entries), data)


def _commit(link: ObjectLink, time_ns: int) -> EncodedObject:
    objects = MemoryObjects()
    tree = update(objects, EMPTY_TREE, {"files/each": Entry(Kind.BLOB, link.digest)})
    return encode_object(
        Kind.COMMIT, encode_commit(Commit(tree, (), 1, ADA, "forged", time_ns)), [link]
    )


def work(role: str, url: str, token: str, store: Path, seconds: float, seed: str) -> Counter[str]:
    """What one process does until the time is over, but what is asked for once, however slowly."""
    until = time.monotonic() + seconds
    chance = random.Random(f"{seed} {role}")
    done: Counter[str] = Counter()
    if role.startswith("writer"):
        writer = CollectedWriter(remote(url, token), int(role[6:]), chance)
        while time.monotonic() < until:
            writer.step()
        return writer.done
    if role == "forger":
        forger = Forger(url, token, chance)
        while time.monotonic() < until or not forger.done["whole 200"]:
            forger.step()
        return forger.done
    while time.monotonic() < until or not done["collected"]:
        with suppress(NotFoundError, CommitExpired):  # another collection was there first
            collect(LocalBackend(store))
            done["collected"] += 1
    return done


def main(url: str, token: str, store: str, seconds: str, seed: str, writers: str) -> None:
    roles = [f"writer{number}" for number in range(int(writers))]
    roles += ["forger", "collector1", "collector2"]
    with TemporaryDirectory() as kept:
        places = {role: Path(kept, role) for role in roles}
        children = []
        for role, place in places.items():
            child = os.fork()
            if not child:
                place.write_text(_told(role, url, token, Path(store), float(seconds), seed))
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        told = {role: json.loads(place.read_text()) for role, place in places.items()}
    sys.stdout.write(json.dumps(told))


def _told(role: str, *about: Any) -> str:
    try:
        return json.dumps(work(role, *about))
    except BaseException:  # noqa: BLE001  whatever it is, the parent tells it
        return json.dumps({"failed": traceback.format_exc()})


if __name__ == "__main__":
    main(*sys.argv[1:])
