"""Uploads: verified, resumed, of one caller alone, and never an object before they are whole."""

from __future__ import annotations

import os

import httpx
import pytest

from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.repo.backends.service import open_http
from tensorrepo.repo.backends.service_format import PIECE_BYTES
from tensorrepo.repo.objects.envelope import EncodedObject, Kind, encode_object
from tests.support.servers.service import RunningService

API = "/api/v1/repositories/team/photos/-"
NOTHING = {"received": 0, "stored": False, "receipt": None}
CHUNK = encode_object(Kind.CHUNK, os.urandom(3 << 20))


def whole(encoded: EncodedObject) -> bytes:
    return b"".join(encoded.parts)


def flipped_end(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def path(encoded: EncodedObject, offset: int = 0) -> str:
    return f"{API}/uploads/{encoded.link.digest}/{encoded.link.bytes}/{offset}"


def asked(client: httpx.Client, encoded: EncodedObject) -> dict[str, object]:
    answer = client.get(
        f"{API}/uploads/{encoded.link.digest}", params={"bytes": encoded.link.bytes}
    )
    found: dict[str, object] = answer.json()
    return found


def is_there(service: RunningService, encoded: EncodedObject) -> bool:
    store = service.service.directory.open("team/photos").core.objects
    return store.stored_bytes(encoded.link.digest, 0) is not None


def test_an_upload_that_was_cut_off_goes_on(fresh: RunningService) -> None:
    data, half = whole(CHUNK), 1 << 20
    with fresh.client() as client:
        first = client.put(path(CHUNK), content=data[:half])
        before = asked(client, CHUNK)
        second = client.put(path(CHUNK, half), content=data[half:])
        after = asked(client, CHUNK)
    assert (first.json()["received"], before["received"]) == (half, half)
    assert (second.json()["stored"], after["stored"]) == (True, True)
    assert is_there(fresh, CHUNK)


def test_bytes_of_another_object_are_forgotten(fresh: RunningService) -> None:
    with fresh.client() as client:
        answer = client.put(path(CHUNK), content=flipped_end(whole(CHUNK)))
        left = asked(client, CHUNK)
    assert (answer.status_code, left) == (400, NOTHING)
    assert not is_there(fresh, CHUNK)


def test_nobody_learns_of_anothers_upload(fresh: RunningService) -> None:
    token = fresh.user("bob", Grant("team/photos", Action.WRITE, "heads/bob"))
    with fresh.client() as client, fresh.client(token) as other:
        client.put(path(CHUNK), content=whole(CHUNK)[: 1 << 20])
        partial = asked(other, CHUNK)
        client.put(path(CHUNK), content=whole(CHUNK))
        stored = asked(other, CHUNK)
    assert partial == stored == NOTHING


def test_who_may_not_write_uploads_nothing(fresh: RunningService) -> None:
    token = fresh.user("rita", Grant("team/photos", Action.READ))
    with fresh.client(token) as client:
        piece = client.put(path(CHUNK), content=whole(CHUNK))
        message = client.post(f"{API}/objects", content=b"\x02\0\0\0{}")
    assert (piece.status_code, message.status_code) == (403, 403)


@pytest.mark.parametrize("offset", [1, CHUNK.link.bytes, 1 << 40])
def test_a_piece_behind_what_came_is_refused(fresh: RunningService, offset: int) -> None:
    with fresh.client() as client:
        answer = client.put(path(CHUNK, offset), content=b"x")
    assert answer.status_code in {400, 409}


def test_a_piece_that_is_too_long_is_refused(fresh: RunningService) -> None:
    with fresh.client() as client:
        answer = client.put(path(CHUNK), content=whole(CHUNK) + bytes(PIECE_BYTES))
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"\x02\0\0\0{}x", b"\xff\xff\xff\xff{}", b'\x10\0\0\0{"objects":[[1]]}'],
)
def test_what_is_no_message_is_refused(fresh: RunningService, body: bytes) -> None:
    with fresh.client() as client:
        answers = [client.post(f"{API}/{what}", content=body) for what in ("objects", "append")]
    assert [answer.status_code for answer in answers] == [400, 400]


def test_a_large_object_goes_up_in_pieces_by_itself(fresh: RunningService) -> None:
    encoded = encode_object(Kind.CHUNK, os.urandom(PIECE_BYTES + 12345))
    url = f"{fresh.url}/team/photos"
    backend = open_http(url, {"token": fresh.token}, environment={})
    digest = encoded.link.digest
    key = f"objects/{digest[:2]}/{digest[2:]}"
    backend.create(key, encoded.parts)
    assert (
        bytes(backend.read_range(key, PIECE_BYTES, PIECE_BYTES + 9))
        == whole(encoded)[PIECE_BYTES : PIECE_BYTES + 9]
    )
    backend.close()
