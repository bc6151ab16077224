"""Metrics and logs: what an operator sees, and what nobody must see there."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator

import pytest

from tensorrepo.api.observing.logs import ACCESS, JsonFormatter, redacted
from tests.support.servers.service import RunningService, running_service

SECRET = "trp_0123456789abcdefghijABCDEFGHIJ0123456789abc000000"


class _Lines(logging.Handler):
    """Lines of the log, as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[list[str]]:
    handler, logger = _Lines(), logging.getLogger()
    access = logging.getLogger(ACCESS)
    before = access.level
    logger.addHandler(handler)
    access.setLevel(logging.INFO)
    yield handler.lines
    logger.removeHandler(handler)
    access.setLevel(before)


def _told_of(lines: list[str], path: str) -> list[dict[str, object]]:
    read = [json.loads(line) for line in lines]
    return [line for line in read if line["logger"] == ACCESS and line["path"] == path]


def test_each_request_is_a_line_with_its_id(service: RunningService, lines: list[str]) -> None:
    with service.client() as client:
        answer = client.get("/api/v1/repositories", params={"cursor": "", "token": SECRET})
    until = time.monotonic() + 10  # it is written when the answer is gone
    while not (told := _told_of(lines, "/api/v1/repositories")) and time.monotonic() < until:
        time.sleep(0.01)
    (line,) = told
    assert line["request_id"] == answer.headers["X-Request-Id"]
    assert (line["method"], line["status"], line["user"]) == ("GET", answer.status_code, "admin")
    assert line["path"] == "/api/v1/repositories"


def test_no_secret_reaches_a_log(service: RunningService, lines: list[str]) -> None:
    with service.client() as client:
        client.get("/api/v1/repositories", params={"token": SECRET})
        client.get("/api/v1/repositories", headers={"Authorization": f"Bearer {SECRET}"})
        client.post("/api/v1/repositories", json={"name": SECRET, "password": "hunter2hunter2"})
        client.get(f"/api/v1/repositories/{SECRET}")
    logging.getLogger("somebody").warning("sent Authorization: Bearer %s", SECRET)
    written = "\n".join(lines)
    assert service.token not in written
    assert "hunter2" not in written
    assert SECRET not in written


@pytest.mark.parametrize(
    "text",
    [
        f"x {SECRET} y",
        "postgresql://me:hunter2hunter2@host/db",
        "GET /x?token=hunter2hunter2&y=1",
        "bearer hunter2hunter2",
        "/x?X-Amz-Signature=hunter2hunter2",
    ],
)
def test_what_looks_like_a_secret_is_blackened(text: str) -> None:
    shown = redacted(text)
    assert "[hidden]" in shown
    assert "hunter2" not in shown
    assert SECRET not in shown


def test_a_failure_is_told_under_the_requests_id(lines: list[str]) -> None:
    logger = logging.getLogger("somebody")
    try:
        int(SECRET)
    except ValueError:
        logger.exception("failed")
    line = json.loads(lines[-1])
    assert "ValueError" in line["exception"]
    assert SECRET not in lines[-1]


def test_requests_are_counted_by_route_and_never_by_path(service: RunningService) -> None:
    with service.client() as client:
        client.get("/api/v1/repositories/nobody-knows-this")
        text = client.get("/metrics").text
    assert 'tensorrepo_requests_total{method="GET"' in text
    assert "tensorrepo_request_seconds_bucket" in text
    assert "nobody-knows-this" not in text


def test_metrics_are_for_operators_where_a_proxy_stands_in_front(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("service")
    with running_service(folder, behind_proxy=True) as running:
        token = running.user("bob")
        statuses = []
        for each in ("", token, None):
            with running.client(each) as client:
                statuses.append(client.get("/metrics").status_code)
    assert statuses == [401, 403, 200]
