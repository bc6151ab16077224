"""A run notes what it reads and makes, without being asked; and what it logs is there, whatever
becomes of it.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.context import Context
from tensorrepo.formats.runs import metrics, stored_run
from tensorrepo.formats.runs.process import is_alive, this_process
from tensorrepo.runs import record
from tensorrepo.runs.record import code_version, environment
from tests.support.processes.forked_python import run_python
from tests.support.processes.interrupts import interrupted_after
from tests.support.processes.prepared import run_program

ADA = "Ada <ada@example.org>"
COLUMNS = {"x": np.arange(40, dtype=np.float32), "label": np.arange(40, dtype=np.int64) % 4}
WEIGHTS = {"w": np.ones((4, 4), np.float32)}
FRESH = iter(range(1000))


@pytest.fixture
def repository() -> tr.Repository:
    made = tr.init(f"memory://runs-{os.getpid()}-{next(FRESH)}", author=ADA)
    with made.transaction() as tx:
        tx.create_dataset("points", columns={"x": "float32", "label": "int64"}).append(COLUMNS)
        tx.create_dataset("valid", columns={"x": "float32", "label": "int64"}).append(COLUMNS)
        tx.save_model("base", WEIGHTS)
    return made


def relations(edges: Any) -> list[tuple[str, str]]:
    return sorted((edge.relation, edge.path) for edge in edges)


def test_a_model_saved_in_a_run_says_what_it_was_trained_on_and_where_the_stream_stood(
    repository: tr.Repository,
) -> None:
    points = repository.dataset("points")
    with repository.run("exp1", params={"lr": 0.1}) as run:
        stream = points.stream(batch_size=8, seed=3)
        next(iter(stream))
        model = run.save_model("net", WEIGHTS)
    trained, made_by = model.lineage()
    assert (trained.relation, trained.path) == ("trained-on", "datasets/points")
    assert (trained.digest, trained.commit) == (points.digest, points.commit)
    assert trained.details == {"seed": 3, "epoch": 0, "position": 8}
    assert (made_by.relation, made_by.path, made_by.digest) == ("made-by", "runs/exp1", run.id)


def test_a_run_says_what_was_read_and_made(repository: tr.Repository) -> None:
    with repository.run("exp1") as run:
        repository.model("base")
        for _ in repository.dataset("points").stream(batch_size=8):
            pass
        with repository.transaction() as tx:
            tx.save_model("net", WEIGHTS)
            tx.create_dataset("made", columns={"x": "float32"})
        repository.model("net")  # its own: no input
    found = repository.runs()["exp1"]
    assert relations(found.inputs) == [("trained-on", "datasets/points"), ("used", "models/base")]
    assert [made.path for made in found.outputs] == ["models/net", "datasets/made"]
    assert found.outputs[0].commit == repository.resolve("main").digest
    assert next(e for e in found.inputs if e.relation == "trained-on").details["position"] == 40
    assert found.status == "finished"
    assert found.id == run.id


def test_rows_that_models_are_measured_on_are_not_what_they_are_trained_on(
    repository: tr.Repository,
) -> None:
    points, valid = repository.dataset("points"), repository.dataset("valid")
    with repository.run("exp1") as run:
        list(run.stream(points, batch_size=8))
        list(run.stream(valid, batch_size=8, evaluate=True))
        with run.evaluating():
            list(points.stream(batch_size=8, sampling=tr.Sampling(where="label == 1")))
        model = run.save_model("net", WEIGHTS)
    assert relations(model.lineage())[:3] == [
        ("evaluated-on", "datasets/points"),
        ("evaluated-on", "datasets/valid"),
        ("made-by", "runs/exp1"),
    ]
    assert ("trained-on", "datasets/points") in relations(model.lineage())


def test_all_datasets_of_a_mix_are_noted(repository: tr.Repository) -> None:
    with repository.run("exp1") as run:
        streams = [repository.dataset(name).stream(batch_size=8) for name in ("points", "valid")]
        next(iter(tr.Mix(streams, seed=5)))
        model = run.save_model("net", WEIGHTS)
    trained = [edge for edge in model.lineage() if edge.relation == "trained-on"]
    assert relations(trained) == [
        ("trained-on", "datasets/points"),
        ("trained-on", "datasets/valid"),
    ]
    assert trained[0].details["mix"] == {"seed": 5, "epoch": 0, "position": 8}


def test_a_stream_of_another_seed_is_told_beside_and_another_epoch_in_its_place(
    repository: tr.Repository,
) -> None:
    points = repository.dataset("points")
    with repository.run("exp1"):
        list(points.stream(batch_size=8, seed=1))
        second = points.stream(batch_size=8, seed=1)
        second.set_epoch(1)
        list(second)
        next(iter(points.stream(batch_size=8, seed=2)))
    told = [edge.details for edge in repository.runs()["exp1"].inputs]
    assert told == [
        {"seed": 1, "epoch": 1, "position": 40},
        {"seed": 2, "epoch": 0, "position": 8},
    ]


def test_what_happens_outside_of_a_run_is_not_noted(repository: tr.Repository) -> None:
    with repository.run("exp1"):
        pass
    list(repository.dataset("points").stream(batch_size=8))
    assert repository.runs()["exp1"].inputs == ()


def test_inputs_are_told_by_handle_by_path_and_by_url(repository: tr.Repository) -> None:
    inputs = [repository.dataset("points"), "main:models/base", "https://example.org/a.csv"]
    with repository.run("exp1", derived_from=inputs):
        pass
    found = repository.runs()["exp1"].inputs
    assert [edge.path for edge in found] == [
        "datasets/points", "models/base", "https://example.org/a.csv",
    ]  # fmt: skip
    assert found[1].digest == repository.model("base").digest


@pytest.mark.parametrize("origin", ["main", "main:models/none", 7])
def test_an_input_that_is_none_is_refused(repository: tr.Repository, origin: Any) -> None:
    with repository.run("exp1") as run, pytest.raises(tr.Error):
        run.use(origin)


def test_metrics_and_parameters_come_back_as_they_were_logged(repository: tr.Repository) -> None:
    with repository.run("exp1", params={"lr": 0.1, "layers": [3, 4]}) as run:
        run.log_metric("loss", 2.5, step=10)
        run.log_metrics({"loss": math.nan, "acc": np.float32(0.5)}, step=11)
        run.log_metric("loss", -math.inf)
        run.log_param("lr", 0.2)
    found = repository.runs()["exp1"]
    points = found.points("loss")
    assert found.params == {"lr": 0.2, "layers": [3, 4]}
    assert points.steps.tolist() == [10, 11, 2]
    assert str(points.values.tolist()) == "[2.5, nan, -inf]"
    assert (found.best("loss"), found.best("acc", "max"), found.best("none")) == (2.5, 0.5, None)
    assert found.summary("loss").not_finite == 2


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda run: run.log_metric("loss", "high"), "is no number"),
        (lambda run: run.log_metric("loss", 10**400), "too large"),
        (lambda run: run.log_param("p", 1 << 64), "65 bits"),
        (lambda run: run.log_metric("", 1.0), "printable"),
        (lambda run: run.log_metric("loss", 1.0, step=1 << 64), "64 bits"),
        (lambda run: run.log_param("p", object()), "not JSON"),
        (lambda run: run.log_param("file", "\udcff"), "surrogate"),
        (lambda run: run.log_param("p", {"\udcff": 1}), "surrogate"),
        (lambda run: run.use("https://example.org/\udcff"), "surrogate"),
        (lambda run: run.end("dreaming"), "finished"),
        (lambda run: run.start(), "begun already"),
    ],
)
def test_what_cannot_be_logged_is_refused(repository: tr.Repository, call: Any, told: str) -> None:
    with repository.run("exp1") as run, pytest.raises(tr.Error, match=told):
        call(run)


def test_nothing_is_logged_before_a_run_begins(repository: tr.Repository) -> None:
    with pytest.raises(tr.Error, match="has not begun"):
        repository.run("exp1").log_metric("loss", 1.0)


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (ValueError("too hot"), "failed", "ValueError: too hot"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt: "),
        (SystemExit(0), "finished", None),
        (SystemExit(2), "failed", "SystemExit: 2"),
    ],
)
def test_what_ends_a_run_is_what_its_status_says(
    repository: tr.Repository, error: BaseException, status: str, told: str | None
) -> None:
    run = repository.run("exp1").start()
    run.log_metric("loss", 1.0)
    run.__exit__(type(error), error, None)
    found = repository.runs()["exp1"]
    assert (found.status, found.document.error, found.state()) == (status, told, status)
    assert found.metrics == {"loss": 1.0}


@pytest.mark.parametrize("at", range(0, 60, 2))
def test_an_interrupt_while_a_run_is_stored_loses_no_point_and_doubles_none(
    repository: tr.Repository, at: int
) -> None:
    with repository.run("exp1", system_seconds=None) as run:
        run.log_metric("loss", 1.0)
        run.flush()
        run.log_metrics({"loss": 2.0, "acc": 3.0})
        with interrupted_after(at, "tensorrepo/runs/record.py", "formats/runs/metrics.py"):
            run.flush()
        run.log_metric("loss", 4.0)
    stored = repository.runs()["exp1"]
    assert stored.points("loss").values.tolist() == [1.0, 2.0, 4.0]
    assert stored.points("acc").values.tolist() == [3.0]


class Mode(StrEnum):
    FAST = "fast"


class Level(IntEnum):
    HIGH = 3


class Metres(float):
    pass


def test_numbers_and_texts_of_other_classes_are_kept_as_what_they_say(
    repository: tr.Repository,
) -> None:
    given = {
        "mode": Mode.FAST,
        "sizes": [Metres(0.5), np.str_("x")],
        "on": True,
        "level": Level.HIGH,
    }
    with repository.run("exp1") as run:
        run.log_params(given)
    kept = {"mode": "fast", "sizes": [0.5, "x"], "on": True, "level": 3}
    assert repository.runs()["exp1"].params == kept


def test_an_end_that_was_not_stored_is_stored_by_another_call(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise tr.StorageError("the disk is full")

    run = repository.run("exp1").start()
    run.log_metric("loss", 1.0)
    with monkeypatch.context() as patched:
        patched.setattr(stored_run, "commit_beside", broken)
        with pytest.raises(tr.StorageError):
            run.end("failed", "too hot")
    run.end("failed", "too hot")
    run.end()
    found = repository.runs()["exp1"]
    assert (found.status, found.document.error, found.metrics) == ("failed", "too hot", {"loss": 1})


def test_another_thread_ends_a_run(repository: tr.Repository) -> None:
    run = repository.run("exp1").start()
    run.log_metric("loss", 1.0)
    with ThreadPoolExecutor(1) as other:
        other.submit(run.end).result(timeout=60)
    assert (repr(run), repository.runs()["exp1"].metrics) == ("<run exp1: ended>", {"loss": 1.0})
    with repository.transaction("main", message="not in the run") as tx:
        tx.save_model("later", WEIGHTS)
    assert list(repository.model("later").lineage()) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.log_metric("loss", 1.0),
        lambda run: run.log_param("lr", 0.1),
        lambda run: run.use("https://example.org/a.csv"),
        lambda run: run.flush(),
    ],
)
def test_what_a_run_is_told_after_its_end_is_refused(repository: tr.Repository, call: Any) -> None:
    with repository.run("exp1") as run:
        pass
    with pytest.raises(tr.InvalidInputError, match=r"has ended.*resume=True"):
        call(run)


def test_a_checkpoint_is_kept_when_its_run_has_ended(repository: tr.Repository) -> None:
    with repository.run("exp1") as run:
        checkpointer = run.checkpointer()
    with checkpointer:
        checkpointer.save(5, {"model": WEIGHTS}, metrics={"loss": 0.25})
    assert checkpointer.metrics() == {5: {"loss": 0.25}}


def test_parameters_given_by_several_threads_are_all_kept(repository: tr.Repository) -> None:
    def note(thread: int) -> None:
        for number in range(200):
            run.log_param(f"{thread}.{number}", number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with repository.run("exp1") as run, ThreadPoolExecutor(4) as threads:
            list(threads.map(note, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert len(repository.runs()["exp1"].params) == 800


def test_a_run_that_could_not_begin_begins_later(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise tr.StorageError("the disk is full")

    run = repository.run("exp1")
    with monkeypatch.context() as patched:
        patched.setattr(stored_run, "commit_beside", broken)
        with pytest.raises(tr.StorageError):
            run.start()
    with run:
        run.log_metric("loss", 1.0)
    assert repository.runs()["exp1"].metrics == {"loss": 1.0}


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("cannot read \udcff"), r"ValueError: cannot read \udcff"),
        (Unspeakable(), "Unspeakable"),
        (
            OSError("401 for url: https://u:tok3n@host/x?sig=SECRET, and (s3://b/a)"),
            "OSError: 401 for url: https://host/x and (s3://b/a)",
        ),
        (
            OSError("host='h': url: /d.csv?token=SECRET (refused)"),
            "OSError: host='h': url: /d.csv (refused)",
        ),
        (OSError("really? a=b"), "OSError: really? a=b"),
        (ValueError("x" * 2000), "ValueError: " + "x" * 988),
        (ValueError("x" * 995 + " https://u:SECRET@host"), "ValueError: " + "x" * 988),
    ],
)
def test_the_error_of_a_run_is_told_as_it_can_be_stored_and_without_secrets(
    repository: tr.Repository, error: Exception, told: str
) -> None:
    run = repository.run("exp1").start()
    run.__exit__(type(error), error, None)
    found = repository.runs()["exp1"]
    assert (found.status, found.document.error) == ("failed", told)


def test_of_a_url_that_was_read_no_secret_is_stored(repository: tr.Repository) -> None:
    with repository.run("exp1", derived_from=["https://user:s3cret@host/d.csv?token=abc"]) as run:
        run.use("s3://key:s3cret@bucket/raw")
    paths = [path for _, path in relations(repository.runs()["exp1"].inputs)]
    assert paths == ["https://host/d.csv", "s3://bucket/raw"]


def test_whatever_fails_is_told_to_who_logs_and_storing_goes_on(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(record, "CHUNK_POINTS", 4)
    monkeypatch.setattr(record, "MOST_WAITING", 8)
    with repository.run("exp1") as run, monkeypatch.context() as patched:
        patched.setattr(stored_run, "commit_beside", broken)
        with (
            pytest.warns(UserWarning, match="no room"),
            pytest.raises(tr.StorageError, match="no room"),
        ):
            run.log_metrics(dict.fromkeys(map(str, range(10)), 1.0))
    assert len(repository.runs()["exp1"].metrics) == 10


def test_logging_does_not_wait_for_a_thread_that_is_gone(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "CHUNK_POINTS", 4)
    monkeypatch.setattr(record, "MOST_WAITING", 8)
    run = repository.run("exp1").start()
    with monkeypatch.context() as patched:
        patched.setattr(stored_run, "commit_beside", lambda *_, **__: {}["never"])
        with pytest.raises(KeyError):
            run.end()
    with pytest.raises(tr.StorageError, match="its thread has ended"):
        run.log_metrics(dict.fromkeys(map(str, range(10)), 1.0))
    run.end()
    assert len(repository.runs()["exp1"].metrics) == 10


FORKED = """
import os, sys
import tensorrepo as tr
repo = tr.open(sys.argv[1], author="Ada <ada@example.org>")
with repo.run("exp1") as run:
    run.log_metric("loss", 4.0)
    child = os.fork()
    if not child:
        run.flush()
        sys.exit(0)
    status = os.waitpid(child, 0)[1]
    print(status, repo.runs()["exp1"].status, repo.runs()["exp1"].metrics)
"""


def test_a_fork_that_leaves_a_run_does_not_end_it(tmp_path: Path) -> None:
    repository = tr.init(tmp_path / "repo", author=ADA)
    told = run_python("-c", FORKED, tmp_path / "repo").stdout
    assert told == "0 running {}\n"
    assert repository.runs()["exp1"].status == "finished"


FORGOTTEN = """
import sys
import tensorrepo as tr
repo = tr.open(sys.argv[1], author="Ada <ada@example.org>")
run = repo.run("exp1").start()
run.log_metric("loss", 4.0)
other = repo.run("exp2").start()
other.log_metric("loss", 3.0)
other.end()
"""


def test_what_was_logged_is_stored_when_a_program_ends_without_saying_so(tmp_path: Path) -> None:
    repository = tr.init(tmp_path / "repo", author=ADA)
    command = [sys.executable, "-c", FORGOTTEN, str(tmp_path / "repo")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    found = repository.runs()
    assert (found["exp1"].status, found["exp1"].metrics) == ("running", {"loss": 4.0})
    assert found["exp1"].state() == "stale"
    assert (found["exp2"].status, found["exp2"].metrics) == ("finished", {"loss": 3.0})


def test_a_name_that_is_taken_is_refused_and_resumed_where_asked(repository: tr.Repository) -> None:
    with repository.run("exp1", params={"lr": 0.1}) as first:
        list(repository.dataset("points").stream(batch_size=8))
        first.log_metric("loss", 3.0)
    with pytest.raises(tr.ConflictError, match="resume=True"):
        repository.run("exp1").start()
    with repository.run("exp1", resume=True, params={"layers": 2}) as again:
        again.log_metric("loss", 1.0)
    found = repository.runs()["exp1"]
    assert again.id == first.id
    assert found.points("loss").steps.tolist() == [0, 1]
    assert found.params == {"lr": 0.1, "layers": 2}
    assert relations(found.inputs) == [("trained-on", "datasets/points")]
    assert len(found.document.attempts) == 2


def test_a_run_that_was_taken_over_writes_no_more(repository: tr.Repository) -> None:
    first = repository.run("exp1").start()
    with repository.run("exp1", resume=True) as second:
        second.log_metric("loss", 1.0)
    with pytest.raises(tr.ConflictError, match="taken over"):
        first.end()
    assert repository.runs()["exp1"].metrics == {"loss": 1.0}


def test_only_rank_0_records(repository: tr.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "world", lambda _self: (1, 2))
    with repository.run("exp1") as run:
        run.log_metric("loss", 1.0)
        run.flush()
    assert dict(repository.runs()) == {}


def test_points_fill_objects_and_the_last_is_written_anew(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "CHUNK_POINTS", 10)
    monkeypatch.setattr(stored_run, "CHUNK_POINTS", 10)
    monkeypatch.setattr(stored_run, "cut", lambda held: metrics.cut(held, 10))
    with repository.run("exp1") as run:
        for step in range(25):
            run.log_metric("loss", step / 7, step)
            run.flush()
    found = repository.runs()["exp1"]
    assert len(found.document.chunks) == 3
    assert found.points("loss").values.tolist() == [step / 7 for step in range(25)]


def test_what_could_not_be_stored_is_stored_with_the_next_write(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise tr.StorageError("the disk is full")

    with repository.run("exp1") as run:
        run.log_metric("loss", 1.0)
        with monkeypatch.context() as patched:
            patched.setattr(stored_run, "commit_beside", broken)
            with pytest.raises(tr.StorageError):
                run.flush()
        run.log_metric("loss", 2.0)
    assert repository.runs()["exp1"].points("loss").values.tolist() == [1.0, 2.0]


def test_logging_waits_only_while_very_much_waits_and_says_why_storing_fails(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = threading.Event()
    broken.set()
    store = stored_run.commit_beside

    def unreliable(*given: Any, **options: Any) -> Any:
        if broken.is_set():
            raise tr.StorageError("the disk is full")
        return store(*given, **options)

    monkeypatch.setattr(record, "CHUNK_POINTS", 4)
    monkeypatch.setattr(record, "MOST_WAITING", 8)
    broken.clear()
    with repository.run("exp1") as run:
        monkeypatch.setattr(stored_run, "commit_beside", unreliable)
        broken.set()
        with pytest.warns(UserWarning, match="was not stored"), pytest.raises(tr.StorageError):
            run.log_metrics(dict.fromkeys(map(str, range(10)), 1.0))
        broken.clear()
    assert len(repository.runs()["exp1"].metrics) == 10


def test_checkpoints_of_a_run_log_their_metrics_and_say_what_they_are_of(
    repository: tr.Repository,
) -> None:
    with repository.run("exp1") as run, run.checkpointer() as checkpointer:
        next(iter(repository.dataset("points").stream(batch_size=8)))
        checkpointer.save(5, {"model": WEIGHTS}, metrics={"loss": 0.25})
    found = repository.runs()["exp1"]
    lineage = repository.model("state", "runs/exp1/5").lineage()
    assert found.points("loss").steps.tolist() == [5]
    assert relations(lineage) == [
        ("checkpoint-of", "runs/exp1"), ("trained-on", "datasets/points"),
    ]  # fmt: skip
    assert {edge.digest for edge in lineage if edge.relation == "checkpoint-of"} == {found.id}


@pytest.mark.parametrize(
    "save",
    [
        pytest.param(lambda run: run.save_model("net", WEIGHTS), id="a model"),
        pytest.param(lambda run: run.checkpointer().save(5, {"model": WEIGHTS}), id="a checkpoint"),
    ],
)
def test_what_led_to_what_is_saved_is_in_the_run_before_its_next_turn(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch, save: Callable[[Any], Any]
) -> None:
    monkeypatch.setattr(record, "FIRST_SECONDS", 3600.0)
    monkeypatch.setattr(record, "MOST_SECONDS", 3600.0)
    with repository.run("exp1", system_seconds=None) as run:
        run.log_metric("loss", 0.5, step=4)
        save(run)
        stored_within(10, lambda: "loss" in repository.runs()["exp1"].metrics)


def stored_within(seconds: float, is_there: Callable[[], bool]) -> None:
    """Wait for another thread to store something; long before a turn of its own would come."""
    last = time.monotonic() + seconds
    while not is_there():
        assert time.monotonic() < last
        time.sleep(0.01)


def test_metrics_stay_when_weights_and_data_are_gone(repository: tr.Repository) -> None:
    with (
        repository.run("exp1") as run,
        run.checkpointer(keep=tr.RetentionPolicy(last=1)) as checkpointer,
    ):
        checkpointer.save(1, {"model": WEIGHTS}, metrics={"loss": 1.0})
        checkpointer.save(2, {"model": WEIGHTS}, metrics={"loss": 0.5})
        checkpointer.wait()
        assert checkpointer.steps() == [2]
        checkpointer.delete(2)
    assert repository.runs()["exp1"].points("loss").values.tolist() == [1.0, 0.5]


def test_a_stream_read_by_another_thread_is_noted_through_the_run(
    repository: tr.Repository,
) -> None:
    with repository.run("exp1") as run:
        stream = run.stream(repository.dataset("points"), batch_size=8)
        reader = threading.Thread(target=lambda: list(stream))
        reader.start()
        reader.join()
    (edge,) = repository.runs()["exp1"].inputs
    assert edge.details["position"] == 40


def test_the_best_run_is_found(repository: tr.Repository) -> None:
    for name, loss in (("a", 3.0), ("b", 1.0), ("c", math.nan)):
        with repository.run(name) as run:
            run.log_metric("loss", loss)
    runs = repository.runs()
    best, worst = runs.best("loss"), runs.best("loss", "max")
    assert best is not None
    assert worst is not None
    assert (best.name, worst.name, runs.best("none")) == ("b", "a", None)
    with pytest.raises(tr.NotFoundError, match="There are a, b, c"):
        runs["zzz"]


def test_a_run_is_stale_when_it_is_not_written_in_time(repository: tr.Repository) -> None:
    with repository.run("exp1"):
        found = repository.runs()["exp1"]
        assert found.state() == "running"
        assert found.state(found.document.due_ns + 1) == "stale"


KILLED = """
import os, signal, sys
import tensorrepo as tr
repo = tr.open(sys.argv[1], author="Ada <ada@example.org>")
with repo.run("exp1", params={"lr": 0.1}) as run:
    run.log_metric("loss", 4.0)
    run.flush()
    run.log_metric("loss", 3.0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(folder: Path) -> tr.Repository:
    """A repository with the run of a program that was killed."""
    repository = tr.init(folder / "repo", author=ADA)
    (folder / "killed.py").write_text(KILLED)
    ended, said = run_program(folder / "killed.py", str(folder / "repo"), environment={})
    assert ended == -signal.SIGKILL, said
    return repository


def test_of_a_run_that_was_killed_all_that_was_flushed_is_left_and_it_is_known_at_once(
    tmp_path: Path,
) -> None:
    found = killed(tmp_path).runs()["exp1"]
    assert (found.status, found.state(), found.metrics) == ("running", "stale", {"loss": 4.0})


COMMIT = """
git init -q . && echo 1 > train.py && git add train.py
git -c user.name=A -c user.email=a@b.c -c commit.gpgsign=false commit -q -m 1
"""


def test_code_is_known_by_commit_and_whether_files_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "train.py", raising=False)
    assert code_version(tmp_path) is None
    subprocess.run(["sh", "-c", COMMIT], cwd=tmp_path, check=True, timeout=60)
    clean = code_version(tmp_path)
    (tmp_path / "train.py").write_text("2")
    dirty = code_version(tmp_path)
    assert clean is not None
    assert dirty is not None
    assert (len(clean.commit), clean.dirty, clean.script) == (40, False, "train.py")
    assert (dirty.commit, dirty.dirty) == (clean.commit, True)


def test_a_git_that_does_not_answer_in_time_is_not_waited_for(tmp_path: Path) -> None:
    assert code_version(tmp_path, timeout_seconds=0) is None


def test_what_must_not_be_imported_is_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb_", None)
    monkeypatch.setitem(sys.modules, "odd_", object())
    assert {"wandb_", "odd_"}.isdisjoint(environment()["packages"])


def test_a_script_of_a_name_that_is_no_utf8_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["sh", "-c", COMMIT], cwd=tmp_path, check=True, timeout=60)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "train\udcff.py", raising=False)
    code = code_version(tmp_path)
    assert code is not None
    assert code.script == r"train\udcff.py"


def test_surroundings_are_told_and_this_process_is_alive() -> None:
    found, process = environment(), this_process()
    assert found["packages"]["numpy"] == np.__version__
    assert found["machine"]["cores"] == os.cpu_count()
    assert process is None or is_alive(process)
    assert is_alive("elsewhere:1:2") is None


def test_sql_tells_of_a_run_that_nobody_writes_that_it_is_stale(tmp_path: Path) -> None:
    url, catalog = killed(tmp_path).url, f"sqlite:///{tmp_path}/catalog.db"
    repository = tr.open(url, author=ADA, catalog=catalog)
    with repository.run("exp2"):
        query = "SELECT name, status, state FROM catalog.run ORDER BY name"
        found = [tuple(row.values()) for row in repository.sql(query)]
    assert found == [("exp1", "running", "stale"), ("exp2", "running", "running")]
    assert list(repository.sql("SELECT name FROM catalog.run WHERE state = 'stale'")) == [
        {"name": "exp1"}
    ]
