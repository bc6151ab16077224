"""Runs over HTTP: those that are stored, and those that go on."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import tensorrepo as tr
from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.live.store import RunKey
from tensorrepo.api.repositories.opening import ServedRepository, open_served
from tensorrepo.repo.errors import ConflictError
from tests.support.servers.service import RunningService

BASE = "/api/v1/repositories/team/runs/-/runs"


@pytest.fixture(scope="module")
def runs(service: RunningService) -> RunningService:
    """A repository with two runs that the SDK stored: `exp1` of 5,000 points, and `exp2`."""
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/runs"}).raise_for_status()
    repo = _opened(service)
    with repo.transaction(message="data") as tx:
        tx.create_dataset("numbers", {"x": [1, 2, 3]})
    with repo.run("exp1", params={"lr": 0.1, "seed": 1}) as run:
        run.use("main:datasets/numbers")
        for step in range(5000):
            run.log_metrics({"loss": 1 / (step + 1), "system/cpu": 50.0}, step)
    with repo.run("exp2", params={"lr": 0.2, "seed": 1}) as run:
        run.log_metric("loss", math.nan, 0)
    return service


def _opened(service: RunningService) -> tr.Repository:
    url = service.service.directory.find("team/runs").url
    return tr.open(url, author="Ann <ann@example.org>")


@pytest.fixture
def client(runs: RunningService) -> Iterator[httpx.Client]:
    with runs.client() as opened:
        yield opened


def _begun(client: httpx.Client, name: str, **more: object) -> None:
    client.post(BASE, json={"name": name, **more}).raise_for_status()


def _points(metric: str, values: list[object], start: int = 0) -> list[dict[str, object]]:
    return [
        {"metric": metric, "value": value, "step": start + at} for at, value in enumerate(values)
    ]


def _logged(client: httpx.Client, name: str, points: object, **more: object) -> httpx.Response:
    return client.post(f"{BASE}/{name}/points", json={"points": points, **more})


def test_stored_runs_are_listed_with_their_last_values(client: httpx.Client) -> None:
    found = {one["name"]: one for one in client.get(BASE, params={"prefix": "exp"}).json()["items"]}
    assert list(found) == ["exp1", "exp2"]
    assert found["exp1"]["metrics"] == {"loss": 1 / 5000, "system/cpu": 50.0}
    assert (found["exp1"]["state"], found["exp2"]["metrics"]) == ("finished", {"loss": "NaN"})


def test_a_run_tells_parameters_inputs_and_metrics_in_short(client: httpx.Client) -> None:
    found = client.get(f"{BASE}/exp1").json()
    loss = found["summaries"][0]
    assert found["params"] == {"lr": 0.1, "seed": 1}
    assert [edge["path"] for edge in found["inputs"]] == ["datasets/numbers"]
    assert (loss["points"], loss["max"]) == (5000, {"step": 0, "value": 1.0})


def test_points_are_thinned_and_keep_extremes(client: httpx.Client) -> None:
    query = {"metric": "loss", "points": 100}
    (series,) = client.get(f"{BASE}/exp1/metrics", params=query).json()
    assert series["points"] == 5000
    assert 50 <= len(series["values"]) <= 100
    assert (series["values"][0], series["values"][-1]) == (1.0, 1 / 5000)


def test_metrics_of_the_machine_are_told_apart(client: httpx.Client) -> None:
    path = f"{BASE}/exp1/metrics"
    machine = client.get(path, params={"system": "true", "points": 2}).json()
    others = client.get(path, params={"system": "false", "points": 2}).json()
    assert [one["metric"] for one in machine] == ["system/cpu"]
    assert [one["metric"] for one in others] == ["loss"]


def test_runs_are_compared(client: httpx.Client) -> None:
    found = client.get(f"{BASE}/-/compare", params={"run": ["exp1", "exp2"]}).json()
    assert found["different"] == ["lr"]
    assert found["params"]["seed"] == [1, 1]
    assert found["metrics"]["loss"] == [1 / 5000, "NaN"]


def test_what_is_logged_is_seen_at_once_and_stored_at_the_end(
    runs: RunningService, client: httpx.Client
) -> None:
    _begun(client, "live1", params={"lr": 1})
    _logged(client, "live1", _points("loss", [3.0, "NaN", 1.0])).raise_for_status()
    before = _opened(runs).runs()["live1"]
    during = client.get(f"{BASE}/live1").json()
    (series,) = client.get(f"{BASE}/live1/metrics").json()
    client.post(f"{BASE}/live1/end", json={"status": "failed", "error": "boom"}).raise_for_status()
    after = _opened(runs).runs()["live1"]
    assert (before.state(), before.metrics) == ("running", {})
    assert (during["state"], during["metrics"]) == ("running", {"loss": 1.0})
    assert series["values"] == [3.0, "NaN", 1.0]
    assert (after.state(), after.document.error) == ("failed", "boom")
    assert after.points("loss").values[[0, 2]].tolist() == [3.0, 1.0]
    assert after.document.author == "admin <admin@users.invalid>"


def test_points_are_written_to_the_run_once(runs: RunningService, client: httpx.Client) -> None:
    _begun(client, "live2")
    writer, key = runs.service.live.writer, RunKey("team/runs", "live2")
    _logged(client, "live2", _points("loss", [1.0, 2.0]))
    writer.write(key)
    _logged(client, "live2", _points("loss", [3.0], 2))
    writer.write(key)
    writer.write(key)
    stored = _opened(runs).runs()["live2"]
    assert stored.points("loss").values.tolist() == [1.0, 2.0, 3.0]
    assert client.get(f"{BASE}/live2").json()["summaries"][0]["points"] == 3


def test_a_writer_that_died_before_it_noted_so_writes_nothing_twice(
    runs: RunningService, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begun(client, "live3")
    live, key = runs.service.live, RunKey("team/runs", "live3")
    _logged(client, "live3", _points("loss", [1.0, 2.0]))
    with monkeypatch.context() as patched:
        patched.setattr(live.points, "written", lambda *_, **__: None)
        live.writer.write(key)
    live.points.release(key)
    seen = client.get(f"{BASE}/live3").json()["summaries"][0]["points"]
    live.writer.write(key)
    assert seen == 2
    assert _opened(runs).runs()["live3"].points("loss").values.tolist() == [1.0, 2.0]


def test_a_batch_that_is_sent_again_counts_once(client: httpx.Client) -> None:
    _begun(client, "live4")
    first = _logged(client, "live4", _points("loss", [1.0]), batch="b1")
    again = _logged(client, "live4", _points("loss", [1.0]), batch="b1")
    other = _logged(client, "live4", _points("loss", [2.0], 1), batch="b2")
    assert [one.json()["waiting"] for one in (first, again, other)] == [1, 1, 2]


def test_a_run_is_gone_on_with_only_when_that_is_meant(client: httpx.Client) -> None:
    _begun(client, "live5", params={"a": 1})
    _logged(client, "live5", _points("loss", [1.0]))
    client.post(f"{BASE}/live5/end", json={})
    late = _logged(client, "live5", _points("loss", [2.0]))
    taken = client.post(BASE, json={"name": "live5"})
    resumed = client.post(BASE, json={"name": "live5", "resume": True, "params": {"b": 2}})
    _logged(client, "live5", _points("loss", [2.0], 1)).raise_for_status()
    ended = client.post(f"{BASE}/live5/end", json={}).json()
    assert (late.status_code, taken.status_code, resumed.status_code) == (404, 409, 201)
    assert ended["params"] == {"a": 1, "b": 2}
    assert (len(ended["attempts"]), ended["summaries"][0]["points"]) == (2, 2)


def test_parameters_and_inputs_are_noted_meanwhile(client: httpx.Client) -> None:
    _begun(client, "live6", params={"a": 1})
    edge = {"relation": "trained-on", "path": "datasets/numbers"}
    client.patch(f"{BASE}/live6", json={"params": {"b": 2}, "inputs": [edge, edge]})
    found = client.get(f"{BASE}/live6").json()
    assert found["params"] == {"a": 1, "b": 2}
    assert [one["path"] for one in found["inputs"]] == ["datasets/numbers"]


def test_metrics_arrive_as_they_are_logged_until_the_run_ends(client: httpx.Client) -> None:
    _begun(client, "live7")
    events = []
    with client.stream("GET", f"{BASE}/live7/events") as stream:
        lines = stream.iter_lines()
        next(lines)
        _logged(client, "live7", _points("loss", [1.0, "Infinity"]))
        events += _events(lines, 1)
        client.post(f"{BASE}/live7/end", json={})
        events += _events(lines, 1)
    assert [event["event"] for event in events] == ["points", "end"]
    assert events[0]["data"]["metrics"]["loss"]["values"] == [1.0, "Infinity"]


def test_a_stream_begins_when_it_misses_nothing_any_more(
    runs: RunningService, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, were_early = threading.Event(), list[bool]()
    points = runs.service.live.points
    newest = points.newest

    def late(keys: Any) -> Any:
        were_early.append(begun.wait(0.3))
        return newest(keys)

    _begun(client, "live12")
    monkeypatch.setattr(points, "newest", late)
    with client.stream("GET", f"{BASE}/live12/events") as stream:
        next(stream.iter_lines())
        begun.set()
    assert were_early == [False]


def test_metrics_end_before_they_tell_what_their_reader_may_not_know_any_more(
    runs: RunningService, client: httpx.Client
) -> None:
    _begun(client, "watched")
    token = runs.user("watcher", Grant("team/runs", Action.READ))
    with runs.client(token) as watcher, watcher.stream("GET", f"{BASE}/watched/events") as stream:
        lines = stream.iter_lines()
        next(lines)
        runs.service.accounts.revoke_id(None, runs.service.accounts.caller(token).token_id)
        _logged(client, "watched", _points("loss", [1.0]))
        (event,) = _events(lines, 1)
    assert event["event"] == "end"
    assert "metrics" not in str(event["data"])


@pytest.mark.soak
def test_points_that_wait_go_along_when_a_repository_is_renamed(
    service: RunningService, client: httpx.Client
) -> None:
    client.post("/api/v1/repositories", json={"name": "team/old"}).raise_for_status()
    base = "/api/v1/repositories/team/{}/-/runs"
    client.post(base.format("old"), json={"name": "r"}).raise_for_status()
    logged = {"points": _points("loss", [1.0, 2.0])}
    client.post(f"{base.format('old')}/r/points", json=logged).raise_for_status()
    renamed = {"name": "team/renamed"}
    client.patch("/api/v1/repositories/team/old", json=renamed).raise_for_status()
    service.service.live.writer._tried(RunKey("team/old", "r"))
    seen = client.get(f"{base.format('renamed')}/r").json()["summaries"][0]["points"]
    more = {"points": _points("loss", [3.0], 2)}
    client.post(f"{base.format('renamed')}/r/points", json=more).raise_for_status()
    ended = client.post(f"{base.format('renamed')}/r/end", json={}).json()
    assert (seen, ended["summaries"][0]["points"]) == (2, 3)


def test_who_begins_a_run_too_late_takes_no_points_from_who_was_first(
    runs: RunningService, client: httpx.Client
) -> None:
    service = runs.service
    url = service.directory.find("team/runs").url
    core = open_served(url, data=service.settings.data, environment={})
    late = ServedRepository("team/runs", core, timer=lambda: 0.0)  # as of now, for ever
    assert late.view.generation > 0
    _begun(client, "raced")
    _logged(client, "raced", _points("loss", [1.0, 2.0])).raise_for_status()
    access = RepositoryAccess(late, service.accounts.caller(runs.token))
    with pytest.raises(ConflictError, match="begun by somebody else"):
        service.live.begin(access, "raced", params={}, environment={})
    ended = client.post(f"{BASE}/raced/end", json={}).json()
    core.close()
    assert ended["summaries"][0]["points"] == 2


def test_points_that_wait_outlast_that_their_repository_was_deleted(
    service: RunningService, client: httpx.Client
) -> None:
    path = "/api/v1/repositories/team/passing"
    client.post("/api/v1/repositories", json={"name": "team/passing"}).raise_for_status()
    client.post(f"{path}/-/runs", json={"name": "r"}).raise_for_status()
    logged = {"points": _points("loss", [1.0, 2.0])}
    client.post(f"{path}/-/runs/r/points", json=logged).raise_for_status()
    client.delete(path).raise_for_status()
    service.service.live.writer._tried(RunKey("team/passing", "r"))
    client.post(f"{path}/-/undelete").raise_for_status()
    ended = client.post(f"{path}/-/runs/r/end", json={}).json()
    assert ended["summaries"][0]["points"] == 2


def test_who_comes_back_misses_nothing(client: httpx.Client) -> None:
    _begun(client, "live8")
    _logged(client, "live8", _points("loss", [1.0]))
    with client.stream("GET", f"{BASE}/live8/events") as stream:
        lines = stream.iter_lines()
        next(lines)
        _logged(client, "live8", _points("loss", [2.0], 1))
        (first,) = _events(lines, 1)
    _logged(client, "live8", _points("loss", [3.0], 2))
    headers = {"Last-Event-ID": first["id"]}
    with client.stream("GET", f"{BASE}/live8/events", headers=headers) as stream:
        (second,) = _events(stream.iter_lines(), 1)
    headers = {"Last-Event-ID": "0"}
    with client.stream("GET", f"{BASE}/live8/events", headers=headers) as stream:
        (lost,) = _events(stream.iter_lines(), 1)
    assert second["data"]["metrics"]["loss"]["values"] == [3.0]
    assert lost["event"] == "reset"


def _events(lines: Iterator[str], count: int) -> list[dict[str, object]]:
    """The next events of a stream; comments and settings are passed over."""
    events: list[dict[str, object]] = []
    event: dict[str, object] = {}
    until = time.monotonic() + 30
    for line in lines:
        assert time.monotonic() < until, "no event came"
        name, _, value = line.partition(": ")
        if name in {"id", "event"}:
            event[name] = value
        if name == "data":
            event["data"] = json.loads(value)
        if not line and "event" in event:
            events.append(event)
            event = {}
        if len(events) == count:
            break
    return events


@pytest.mark.parametrize(
    "points",
    [
        [{"metric": "a\nb", "value": 1}],
        [{"metric": "", "value": 1}],
        [{"metric": "loss", "value": "much"}],
        [{"metric": "loss", "value": 1, "step": 2**63}],
        [{"metric": "loss", "value": 1, "time_ms": -1}],
    ],
)
def test_points_that_are_none_are_refused_and_nothing_is_kept(
    client: httpx.Client, points: object
) -> None:
    client.post(BASE, json={"name": "live9", "resume": True})
    answer = _logged(client, "live9", points)
    assert (answer.status_code, answer.json()["kind"]) == (400, "invalid-input")
    assert client.get(f"{BASE}/live9").json()["summaries"] == []


def test_who_may_read_logs_nothing_and_others_see_nothing(
    runs: RunningService, client: httpx.Client
) -> None:
    _begun(client, "live10")
    reader = runs.user("ron", Grant("team/runs", Action.READ, "runs/*"))
    other = runs.user("oto", Grant("team/runs", Action.WRITE, "runs/mine/*"))
    body = {"points": _points("loss", [1.0])}
    with runs.client(reader) as one:
        answers = [one.get(f"{BASE}/live10"), one.post(f"{BASE}/live10/points", json=body)]
        begun = one.post(BASE, json={"name": "live11"})
    with runs.client(other) as one:
        hidden = [one.get(f"{BASE}/live10"), one.get(f"{BASE}/live10/events")]
        own = one.post(BASE, json={"name": "mine"})
    assert [one.status_code for one in (*answers, begun)] == [200, 403, 403]
    assert [one.status_code for one in (*hidden, own)] == [404, 404, 201]
