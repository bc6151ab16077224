"""A query that nobody vouches for gets its rows, and nothing else."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

import tensorrepo as tr
from tensorrepo.query.sql.duck import DuckSettings
from tensorrepo.query.untrusted import child, sandbox
from tensorrepo.query.untrusted.pipe import SIZES, Pipe, packed
from tensorrepo.query.untrusted.sandbox import QueryLimits
from tensorrepo.repo.fork_server import ForkServers
from tests.support.faults.forks import FORKS_AT_THE_SECOND_TRY

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def repo() -> tr.Repository:
    made = tr.init(f"memory://sandbox-{uuid4()}", author="Ada <ada@example.org>")
    with made.transaction("main", message="numbers") as tx:
        tx.create_dataset("numbers", columns={"n": "int64"}).append({"n": np.arange(20_000)})
    return made


def _ask(repo: tr.Repository, query: str, **limits: Any) -> pa.Table:
    return repo.sql(query, untrusted=QueryLimits(**limits)).arrow()


# ------------------------------------------------------------------- in a process of its own


def test_rows_of_a_dataset_come_out_with_columns_and_filters_pushed(repo: tr.Repository) -> None:
    query = "SELECT n % 2 AS odd, count(*) AS rows, max(l2([n], [0])) AS most FROM numbers "
    found = _ask(repo, query + "WHERE n >= 19990 GROUP BY odd ORDER BY odd")
    assert found.to_pylist() == [
        {"odd": 0, "rows": 5, "most": 19998.0},
        {"odd": 1, "rows": 5, "most": 19999.0},
    ]


def test_memory_is_bounded_whatever_takes_it(repo: tr.Repository) -> None:
    query = "SELECT sum(length(repeat(n::VARCHAR, 200000000))) FROM numbers"
    with pytest.raises(tr.InvalidInputError, match=r"[Mm]emory"):
        _ask(repo, query, memory_bytes=64 * MEGABYTE)


def test_time_is_bounded_whatever_takes_it(repo: tr.Repository) -> None:
    query = "SELECT levenshtein(repeat('ab', 200000), repeat('ba', 200000))"
    with pytest.raises(tr.InvalidInputError, match=r"longer than 0\.2 s"):
        _ask(repo, query, seconds=0.2)


def test_rows_are_bounded(repo: tr.Repository) -> None:
    with pytest.raises(tr.InvalidInputError, match="more than 100 rows"):
        _ask(repo, "SELECT n FROM numbers", rows=100)


def test_names_are_bounded_before_one_is_looked_up(repo: tr.Repository) -> None:
    names = ", ".join(f"a{at}" for at in range(300))
    with pytest.raises(tr.InvalidInputError, match="different names is not taken"):
        _ask(repo, f"SELECT {names}")


def test_looking_names_up_counts_as_time(repo: tr.Repository) -> None:
    with pytest.raises(tr.InvalidInputError, match="too long"):
        _ask(repo, "SELECT n FROM numbers", seconds=1e-6)


def test_scans_that_end_by_limit_are_any_number(repo: tr.Repository) -> None:
    assert len(_ask(repo, _union("(SELECT n FROM numbers WHERE n <> 7 LIMIT 1)", 50))) == 50


@pytest.mark.soak
def test_tables_of_the_catalog_are_left_by_limit_any_number_of_times(repo: tr.Repository) -> None:
    query = _union('(SELECT digest FROM catalog."commit" LIMIT 1)', 20)
    assert len(_ask(repo, query)) == 20
    assert len(repo.sql(query).arrow()) == 20  # each holds a connection here


@pytest.mark.soak
def test_scans_that_ended_are_not_open(repo: tr.Repository) -> None:
    assert len(_ask(repo, _union("SELECT max(n) FROM numbers", 20))) == 20


def _union(query: str, times: int) -> str:
    return " UNION ALL ".join([query] * times)


ENUMS = {
    "'a'::ENUM('a', 'b')": "a",
    "['a'::ENUM('a', 'b'), NULL]": ["a", None],
    "{'x': ['a'::ENUM('a', 'b')]}": {"x": ["a"]},
    "MAP {'a'::ENUM('a', 'b'): 1}": [("a", 1)],
    "['a', 'b']::ENUM('a', 'b')[2]": ["a", "b"],
}


def test_values_of_enums_are_sent_as_often_as_they_are_there(repo: tr.Repository) -> None:
    found = _ask(repo, "SELECT " + ", ".join(f"{each} AS x{at}" for at, each in enumerate(ENUMS)))
    assert [column.to_pylist() for column in found.columns] == [[each] for each in ENUMS.values()]
    assert "dictionary" not in str(found.schema)


def test_filters_that_cannot_be_sent_are_applied_all_the_same(repo: tr.Repository) -> None:
    query = "SELECT n FROM numbers WHERE n = 5 OR " + " OR ".join(
        f"(n > {at} AND n < {at})" for at in range(200)
    )
    assert _ask(repo, query)["n"].to_pylist() == [5]


def test_types_that_arrow_does_not_know_come_as_what_they_are_stored_as(
    repo: tr.Repository,
) -> None:
    found = _ask(repo, "SELECT 5::BIGNUM AS x")
    assert found.schema.field("x").type == pa.binary()


def test_nulls_in_lists_count_as_bytes(repo: tr.Repository) -> None:
    with pytest.raises(tr.InvalidInputError, match="more than 100,000 rows or 1,000 bytes"):
        _ask(repo, "SELECT [NULL for _ in range(2000)]", bytes=1000)


def test_long_values_of_enums_are_bounded(repo: tr.Repository) -> None:
    query = f"SELECT enum_first(NULL::ENUM('{'a' * 50_000}')) AS x FROM range(30)"
    with pytest.raises(tr.InvalidInputError, match="more than 100,000 rows or 1,048,576 bytes"):
        _ask(repo, query, bytes=MEGABYTE)


def test_types_whose_rows_share_bytes_are_refused(repo: tr.Repository) -> None:
    with pytest.raises(tr.InvalidInputError, match="type dictionary"):
        _ask(repo, "SELECT union_value(x := 'a'::ENUM('a', 'b')) AS x")


def _served_by(patch: pytest.MonkeyPatch, code: str) -> None:
    """Let queries be answered by processes that another server forks."""
    program = replace(sandbox._SERVERS.program, code=code)
    patch.setattr(sandbox, "_SERVERS", ForkServers(program))


def test_a_process_that_does_not_start_says_why(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    _served_by(monkeypatch, "import sys; sys.exit('no module \x1b[31m')")
    with pytest.raises(tr.UnsupportedError, match=r"did not start: status 1\. no module .x1b"):
        _ask(repo, "SELECT 1")


@pytest.mark.parametrize("left", range(3))
def test_who_finds_no_more_files_keeps_none_open(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    _ask(repo, "SELECT 1")  # the server runs
    real, made = os.pipe, iter(range(left))

    def pipe() -> tuple[int, int]:
        if next(made, None) is None:
            raise OSError(errno.EMFILE, "Too many open files")
        return real()

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pipe", pipe)
        with pytest.raises(tr.StorageError, match=r"no room for .* query \(Too many.*ulimit -n"):
            _ask(repo, "SELECT 1")
    assert set(os.listdir("/proc/self/fd")) == before


def test_who_finds_no_more_threads_keeps_nothing_open(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ask(repo, "SELECT 1")

    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(sandbox.Timer, "start", start)
        with pytest.raises(tr.StorageError, match=r"no room for a thread.*can't start new thread"):
            _ask(repo, "SELECT 1")
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_server_that_cannot_fork_says_so_and_forks_later(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    _served_by(monkeypatch, FORKS_AT_THE_SECOND_TRY + sandbox._SERVERS.program.code)
    with pytest.raises(tr.StorageError, match="no room for the process of an untrusted query"):
        _ask(repo, "SELECT 1")
    assert len(_ask(repo, "SELECT 1")) == 1
    sandbox._SERVERS.server().close()


def test_a_server_that_may_open_no_more_files_says_so_and_goes_on(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_GONE_SECONDS", 0.2)
    few = """
import os, resource
free = [os.dup(0) for _ in range(8)]
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, most))
for each in free:
    os.close(each)
serve("""
    _served_by(monkeypatch, sandbox._SERVERS.program.code.replace("serve(", few))
    server = sandbox._SERVERS.server()
    held = [sandbox.new_process() for _ in range(8)]
    with pytest.raises(tr.StorageError, match="no room for the process of an untrusted query"):
        _ask(repo, "SELECT 1")
    for each in held:
        each.kill()
        each.wait()
        each.close()
    assert sandbox._SERVERS.server() is server
    assert len(_ask(repo, "SELECT 1")) == 1
    server.close()


def test_a_process_finds_what_this_one_found_in_its_environment(
    repo: tr.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_the_environment.py").write_text("")
    (tmp_path / "json.py").write_text("raise ImportError('not the one of Python')")
    monkeypatch.syspath_prepend(str(tmp_path))
    looks = "import of_the_environment\nserve("
    _served_by(monkeypatch, sandbox._SERVERS.program.code.replace("serve(", looks))
    assert len(_ask(repo, "SELECT 1")) == 1
    server = sandbox._SERVERS.server()
    server.close()
    assert server.process.stderr is not None
    assert server.process.stderr.closed


def test_what_this_process_takes_for_a_query_is_bounded() -> None:
    repo = tr.init(f"memory://served-{uuid4()}", author="Ada <ada@example.org>")
    with repo.transaction("main", message="wide") as tx:
        tx.create_dataset("wide", {"blob": [b"x" * MEGABYTE] * 4, "n": [1, 2, 3, 4]})
    with pytest.raises(tr.InvalidInputError, match=r"blob takes [\d,]+ bytes at once"):
        _ask(repo, "SELECT sum(octet_length(blob)) FROM wide", served_bytes=2 * MEGABYTE)
    with repo.transaction("main", message="nulls that no page holds") as tx:
        tx.dataset("wide").add_column("v", tr.Tensor("float64", (1024, 1024)), nullable=True)
    with pytest.raises(tr.InvalidInputError, match=r"v takes [\d,]+ bytes at once"):
        _ask(repo, "SELECT count(v) FROM wide", served_bytes=16 * MEGABYTE)
    assert _ask(repo, "SELECT sum(n) AS s FROM wide", served_bytes=2 * MEGABYTE).num_rows == 1


@pytest.mark.parametrize("step", ["packed", "unpacked"])
def test_this_process_without_memory_says_so(
    repo: tr.Repository, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(sandbox, step)

    def full(given: Any, *schema: Any) -> Any:
        if given == []:
            return real(given, *schema)
        raise pa.ArrowMemoryError("realloc of size 1073741824 failed")

    monkeypatch.setattr(sandbox, step, full)
    with pytest.raises(tr.InvalidInputError, match=r"this process has no memory.*Name fewer"):
        _ask(repo, "SELECT sum(n) FROM numbers")


def test_no_folder_is_left_of_a_process_that_was_killed(
    repo: tr.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(tr.InvalidInputError):
        _ask(repo, "SELECT count(DISTINCT a.n * b.n) FROM numbers a, numbers b", seconds=0.5)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------- a process that somebody took over


def _frame(head: bytes, body: bytes = b"") -> bytes:
    return SIZES.pack(len(head), len(body)) + head + body


READY = _frame(b'{"kind": "ready"}')
BEGUN = _frame(b'{"kind": "begun"}', packed([], pa.schema([("x", pa.int64())])).to_pybytes())


# Runs what a comment of the query holds, in place of the query.
TAKEN_OVER = """
import json, os, sys, time, zlib
sys.path += json.loads(sys.argv[1])
from tensorrepo.query.untrusted.isolation import leave_network
leave_network()
from tensorrepo.query.untrusted import child
from tensorrepo.query.untrusted.pipe import Pipe
def main():
    asked, _ = Pipe(os.dup(0), os.dup(1)).receive()
    exec(zlib.decompress(bytes.fromhex(asked["query"].rpartition("-- ")[2])))
    time.sleep(60)
child.main = main
child.serve(int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def taken_over() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        _served_by(patch, TAKEN_OVER)
        yield


def _say(frames: bytes, then: str = "") -> str:
    """A query whose process writes these bytes."""
    code = f"os.write(1, bytes.fromhex({frames.hex()!r}))\n{then}"
    return f"SELECT n AS x FROM numbers -- {zlib.compress(code.encode()).hex()}"


@pytest.mark.parametrize(
    "frames",
    [
        _frame(b"{}"),
        _frame(b"[]"),
        _frame(b"\xff"),
        _frame(b"[" * 20_000),
        _frame(b'{"kind": "rows"}'),
        _frame(b'{"kind": "scan", "scan": 0, "table": 0, "columns": ["n"], "ended": []}'),
        READY + _frame(b'{"kind": "scan"}'),
        READY + _frame(b'{"kind": "next", "scan": 7, "ended": []}'),
        READY + _frame(b'{"kind": "scan", "scan": 0, "table": 9, "columns": ["n"], "ended": []}'),
        READY + _frame(b'{"kind": "scan", "scan": 0, "table": -1, "columns": ["n"], "ended": []}'),
        READY + _frame(b'{"kind": "scan", "scan": 0, "table": 0, "columns": ["x"], "ended": []}'),
        READY + _frame(b'{"kind": "error"}'),
        READY + _frame(b'{"kind": "begun"}', b"no Arrow"),
        READY + BEGUN + _frame(b'{"kind": "rows"}', b""),
        READY + BEGUN + BEGUN,
    ],
)
@pytest.mark.usefixtures("taken_over")
def test_what_has_no_meaning_is_an_error_of_ours(repo: tr.Repository, frames: bytes) -> None:
    with pytest.raises(tr.InvalidInputError, match=r"process of the untrusted query|frame|body"):
        _ask(repo, _say(frames))


def _kind_of(zone: str) -> pa.DataType:
    return pa.list_(pa.timestamp("us", zone))


@pytest.mark.parametrize(
    "kind",
    [
        _kind_of("../../etc/passwd"),
        _kind_of("/etc/passwd"),
        _kind_of("x" * 100),
        pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))]),
        pa.dense_union([pa.field("a", pa.int32())]),
        pa.run_end_encoded(pa.int16(), pa.string()),
        pa.list_view(pa.int8()),
        pa.string_view(),
    ],
    ids=str,
)
def test_types_that_our_process_never_sends_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(tr.InvalidInputError, match=r"not taken|time zone"):
        sandbox._check_types(pa.schema([("x", kind)]))


@pytest.mark.parametrize("zone", ["Etc/UTC", "Europe/Berlin", "+02:00", "Etc/GMT+5"])
def test_moments_of_any_zone_are_taken(zone: str) -> None:
    sandbox._check_types(pa.schema([("x", _kind_of(zone))]))


@pytest.mark.usefixtures("taken_over")
def test_a_process_that_left_another_one_behind_is_ended_at_the_deadline(
    repo: tr.Repository,
) -> None:
    query = _say(READY, "if os.fork(): os._exit(0)\nos.setsid()")
    with pytest.raises(tr.InvalidInputError, match=r"longer than 0\.5 s"):
        _ask(repo, query, seconds=0.5)


@pytest.mark.usefixtures("taken_over")
def test_what_a_process_began_is_ended_with_it(repo: tr.Repository, tmp_path: Path) -> None:
    """In its group, as everything is that does not flee."""
    told = tmp_path / "pid"
    begun = f"if not os.fork(): open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    with pytest.raises(tr.InvalidInputError, match=r"longer than 1 s"):
        _ask(repo, _say(READY, begun), seconds=1)
    assert _has_ended(int(told.read_text()))


@pytest.mark.usefixtures("taken_over")
def test_processes_go_with_the_server(repo: tr.Repository, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = f"open({str(told)!r}, 'w').write(str(os.getpid()))\nos.kill(os.getppid(), 9)"
    with pytest.raises(tr.Error, match=r"status -9"):  # also where it ended before it was asked
        _ask(repo, _say(READY, code))
    assert _has_ended(int(told.read_text()))
    with pytest.raises(tr.InvalidInputError, match=r"process of the untrusted query"):
        _ask(repo, _say(READY + BEGUN + BEGUN))  # from a server of its own


@pytest.mark.usefixtures("taken_over")
@pytest.mark.skipif(
    subprocess.run(["unshare", "--user", "--net", "true"], check=False).returncode != 0,
    reason="this system lets users give up no network",
)
def test_a_process_has_no_network_no_environment_and_no_files(
    repo: tr.Repository, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            "import socket\n"
            f"s = socket.socket(); reached = s.connect_ex({server.getsockname()!r})\n"
            f"told = [reached != 0, sorted(os.environ), os.getcwd()]\n"
            f"open({str(told)!r}, 'w').write(json.dumps(told)); os._exit(3)"
        )
        with pytest.raises(tr.Error):  # another one where it ended before the query was sent
            _ask(repo, _say(READY, code))
    assert json.loads(told.read_text()) == [True, ["LC_CTYPE", "OPENBLAS_NUM_THREADS"], "/"]


def _has_ended(process: int) -> bool:
    """Whether a process that was killed is gone, or waits for its parent to look."""
    for _ in range(1000):
        try:
            if " Z " in Path(f"/proc/{process}/stat").read_text():
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


# ------------------------------------------------------------- what the process lets DuckDB do


@pytest.fixture(scope="module")
def locked() -> Any:
    return DuckSettings("64MB", threads=1, spill="", external=False).connect()


class _Heard(Pipe):
    """A pipe that keeps what is sent."""

    def __init__(self) -> None:
        self.heads: list[Any] = []

    def send(self, head: Any, body: Any = b"") -> None:
        self.heads.append(head)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM 'secrets.parquet'",
        "SELECT content FROM read_text('/etc/passwd')",
        "SELECT content FROM read_blob('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM 'http://localhost:1/x.csv'",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM query('COPY (SELECT 1) TO ''x''')",
        "LOAD httpfs",
        "INSTALL httpfs",
        "ATTACH '/tmp/x.duckdb'",
        "ATTACH ':memory:' AS other",
        "COPY (SELECT 1) TO '/tmp/x.csv'",
        "EXPORT DATABASE '/tmp/x'",
        "SET memory_limit = '100GB'",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "PRAGMA memory_limit = '100GB'",
        "CREATE TABLE x AS SELECT 1",
        "CREATE MACRO l2(a, b) AS 0",
        "INSERT INTO x VALUES (1)",
        "DROP VIEW x",
        "CALL pragma_version()",
        "SELECT 1; SELECT 2",
        "SELECT 1; COPY (SELECT 1) TO '/tmp/x.csv'",
        "EXPLAIN ANALYZE SELECT 1",
        "",
    ],
)
def test_it_reaches_for_nothing_outside(locked: Any, query: str) -> None:
    heard = _Heard()
    with pytest.raises(Exception, match=r".") as caught:
        child._answer(heard, locked, query, None)
    refused = isinstance(caught.value, tr.InvalidInputError)
    assert refused or type(caught.value).__module__.startswith("_duckdb")
    assert {"kind": "done"} not in heard.heads


def test_a_select_is_answered(locked: Any) -> None:
    heard = _Heard()
    child._answer(heard, locked, "SELECT $x + 1", {"x": 1})
    assert [head["kind"] for head in heard.heads] == ["begun", "rows", "done"]


@pytest.mark.parametrize(
    "limits",
    [
        {"seconds": 0}, {"rows": -1}, {"bytes": 0}, {"seconds": float("nan")},
        {"seconds": float("inf")},
    ],
)  # fmt: skip
def test_limits_that_allow_nothing_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(tr.InvalidInputError, match="above 0"):
        QueryLimits(**limits)  # type: ignore[arg-type]


def test_params_are_plain_values(repo: tr.Repository) -> None:
    with pytest.raises(tr.InvalidInputError, match="text, numbers, bools and null"):
        repo.sql("SELECT $x", params={"x": Path("/")}, untrusted=QueryLimits())
