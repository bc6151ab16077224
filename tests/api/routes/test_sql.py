"""SQL over HTTP: what a caller may read, within limits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pytest

from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.query.untrusted import sandbox
from tests.support.builders.served import BASE, NAME, digits_of_sklearn, serve_digits
from tests.support.effort import sampled
from tests.support.servers.service import RunningService, running_service

SLOW = "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    data = tmp_path_factory.mktemp("service")
    with running_service(data, query_seconds=2, query_rows=5000) as service:
        serve_digits(service)
        yield service


def ask(
    service: RunningService, query: str, token: str | None = None, **more: object
) -> httpx.Response:
    with service.client(token) as client:
        return client.post(f"{BASE}/sql", json={"query": query, **more})


def test_a_query_is_answered_over_datasets_and_views(digits: RunningService) -> None:
    query = "SELECT label, count(*) AS n FROM digits GROUP BY label ORDER BY label"
    found = ask(digits, query).json()
    threes = ask(digits, "SELECT count(*), min(label) FROM threes").json()
    assert [one["name"] for one in found["columns"]] == ["label", "n"]
    assert found["rows"] == list(
        map(list, enumerate(np.bincount(digits_of_sklearn().target).tolist()))
    )
    assert threes["rows"] == [[183, 3]]


@pytest.mark.soak
def test_pages_of_a_result_follow_one_another(digits: RunningService) -> None:
    query = "SELECT row_number FROM digits WHERE label = $label ORDER BY row_number"
    first = ask(digits, query, params={"label": 3}, limit=100).json()
    rest = ask(digits, query, params={"label": 3}, limit=100, start=first["next"]).json()
    rows = [row for page in (first, rest) for (row,) in page["rows"]]
    assert rows == np.flatnonzero(digits_of_sklearn().target == 3).tolist()
    assert rest["next"] is None


def test_a_result_comes_as_an_arrow_stream(digits: RunningService) -> None:
    with digits.client() as client:
        asked = {"query": "SELECT label, image FROM digits WHERE row_number < 10"}
        found = client.post(f"{BASE}/sql/arrow", json=asked)
    table = pa.ipc.open_stream(found.content).read_all()
    assert table["label"].to_pylist() == digits_of_sklearn().target[:10].tolist()


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("SELECT * FROM nothing", 404),
        ("SELECT nothing FROM digits", 400),
        ("DROP TABLE digits", 400),
        ("SELECT 1; SELECT 2", 400),
        ("SELECT * FROM read_csv('/etc/passwd')", 403),
        ("SELECT * FROM '/etc/passwd'", 404),
        ("COPY (SELECT 1) TO '/tmp/x'", 400),
        ("ATTACH '/tmp/x.db'", 400),
        ("INSTALL httpfs", 400),
        ("SELECT getenv('HOME')", 400),
        ("SET memory_limit = '1TB'", 400),
        ("SELECT repeat('x', 10000000000)", 400),
        ("SELECT * FROM range(10000000)", 400),
    ],
)
def test_what_a_query_may_not_do_is_a_problem(
    query: str, status: int, digits: RunningService
) -> None:
    with digits.client() as client:
        answer = client.post(f"{BASE}/sql/arrow", json={"query": query})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_reader_of_main_sees_no_other_branch(digits: RunningService) -> None:
    token = digits.user("asker", Grant(NAME, Action.READ, "heads/main"))
    secret = ask(digits, "SELECT digest FROM catalog.commit WHERE message = 'hidden'").json()
    (digest,) = secret["rows"][0]
    denied = [
        ask(digits, query, token).status_code
        for query in (
            'SELECT * FROM "hidden@secret"',
            f'SELECT * FROM "hidden@{digest}"',
            'SELECT * FROM "digits@secret"',
            "SELECT * FROM hidden",
        )
    ]
    elsewhere = ask(digits, "SELECT 1", token, ref="secret").status_code
    assert (denied, elsewhere) == ([404] * 4, 404)


@pytest.mark.parametrize(
    ("table", "column", "seen", "all_seen"),
    sampled([
        ("commit", "message", {"digits", "threes"}, {"digits", "threes", "hidden"}),
        ("ref", "name", {"heads/main"}, {"heads/main", "heads/secret"}),
        ("entry", "ref", {"heads/main"}, {"heads/main", "heads/secret"}),
        ("ref_update", "ref", {"heads/main"}, {"heads/main", "heads/secret"}),
        ("dataset_column", "name", {"image", "label", "photo", "words"},
         {"image", "label", "photo", "words", "x"}),
        ("log_record", "kind", set(), {"commit", "ref-create"}),
        ("cursor", "id", set(), {1}),
    ], 3),
)  # fmt: skip
def test_the_catalog_has_rows_of_what_its_caller_may_read(
    table: str, column: str, seen: set[str], all_seen: set[str], digits: RunningService
) -> None:
    name = f"catalog-{table.replace('_', '-')}"
    token = digits.user(name, Grant(NAME, Action.READ, "heads/main"))
    query = f"SELECT DISTINCT {column} FROM catalog.{table}"
    few, every = (ask(digits, query, one).json()["rows"] for one in (token, None))
    hidden = ask(digits, f"SELECT count(*) FROM catalog.{table}", token).json()["rows"][0][0]
    visible = {value for (value,) in few if column != "name" or "." not in value}
    assert visible == seen
    assert {value for (value,) in every if column != "name" or "." not in str(value)} >= all_seen
    assert (hidden == 0) == (not seen)


def test_too_many_queries_of_one_caller_are_told_to_wait(digits: RunningService) -> None:
    gate = digits.service.queries.gate
    token = digits.user("hasty", Grant(NAME, Action.READ))
    wait_seconds, gate._wait_seconds = gate._wait_seconds, 0.2
    try:
        with ThreadPoolExecutor(3) as threads:
            asked = [threads.submit(ask, digits, SLOW, token) for _ in range(3)]
            statuses = sorted(each.result().status_code for each in asked)
    finally:
        gate._wait_seconds = wait_seconds
    assert statuses == [400, 400, 429]


def test_a_process_that_is_killed_is_a_problem_and_the_next_query_is_answered(
    digits: RunningService,
) -> None:
    ask(digits, "SELECT 1")
    server = sandbox._SERVERS.server().process
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, digits, SLOW)
        child = _child_of(server.pid)
        os.kill(child, signal.SIGKILL)
        assert asked.result().json()["kind"] in {"invalid-input", "unsupported"}  # by its state
        asked = threads.submit(ask, digits, SLOW)
        child = _child_of(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        assert asked.result().json()["kind"] in {"invalid-input", "unsupported"}
    assert ask(digits, "SELECT 41 + 1").json()["rows"] == [[42]]
    assert not _lives(child)


def _child_of(process: int) -> int:
    path = Path(f"/proc/{process}/task/{process}/children")
    while not (found := path.read_text().split()):
        threading.Event().wait(0.01)
    return int(found[0])


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in {"Z", "X"}
