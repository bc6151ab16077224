"""Purges as people ask for them: command, SDK, copies, views, catalog, caches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.purge import purge_records
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ZSTD_MAGIC, expand
from tensorrepo.repo.transfer import source_purges
from tests.support.processes.shell import ADA, Shell
from tests.support.servers.object_stores import s3_on_ours

SECRET = "zebra-quixote-77"
WHERE = f"name = '{SECRET}'"


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))


def people(first: int, count: int) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [
        {
            "name": SECRET if at == 3 else f"person {at}",
            "kind": "Ann" if at == 3 else "other",
            "age": at,
        }
        for at in numbers
    ]


COLUMNS = {"name": tr.Text(), "kind": tr.ClassLabel(("other", "Ann")), "age": "int64"}


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    return furnished(tmp_path / "store")


def furnished(place: Path) -> tr.Repository:
    """Two versions of a dataset, views of it, and a dataset and a model made of it."""
    repo = tr.init(place, author=ADA)
    with repo.transaction("main", "one") as tx:
        draft = tx.create_dataset("people", columns=COLUMNS)
        draft.append(people(0, 10), codec="none")
    with repo.transaction("main", "two") as tx:
        tx.dataset("people").append(people(10, 5), codec="none")
    with repo.transaction("main", "views") as tx:
        tx.create_view("young", "SELECT row_id FROM people WHERE age < 5")
        tx.create_view("not", f"SELECT row_id FROM people WHERE name <> '{SECRET}'")
        tx.create_dataset("less", [{"age": 1}], derived_from=[repo.dataset("people")])
        tx.save_model("net", {"w": np.ones(2, "f4")}, derived_from=[repo.dataset("people")])
    return repo


def says(folder: Path, text: str = SECRET) -> set[str]:
    """First folders below `folder` with files that hold a text, those that are compressed too."""
    found = set()
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        if data.startswith(ZSTD_MAGIC) and len(path.name) >= 62:
            data = bytes(expand(data, Digest(path.parent.name + path.name)))
        if text.encode() in data:
            found.add(path.relative_to(folder).parts[0])
    return found


def problems(repo: tr.Repository) -> list[object]:
    """What a deep check finds."""
    core = repo.context.core
    return [*check_objects(core.objects, core.log.refresh().state, ObjectTotals(), deep=True)]


def test_nothing_is_left_in_store_catalog_and_caches(repo: tr.Repository, tmp_path: Path) -> None:
    repo.catalog.catch_up()
    assert says(tmp_path) == {"store", "CACHE"}
    repo.purge("people", where=WHERE, reason="request 17")
    assert says(tmp_path) == set()
    assert repo.catalog.verify() == []
    assert {name: len(repo.dataset("people", name)) for name in ("main", "main~1", "main~2")} == {
        "main": 14,
        "main~1": 14,
        "main~2": 9,
    }
    assert repo.dataset("people").schema["kind"].type == tr.ClassLabel(("other", "purged-1"))


@pytest.mark.parametrize("hidden", ["age == 3", "age in [3, 5]", "age in [2, 4]"])
@pytest.mark.parametrize("rewritten", [False, True])
def test_nothing_is_left_of_rows_that_a_later_version_hides_or_changes(
    tmp_path: Path, hidden: str, rewritten: bool
) -> None:
    repo = furnished(tmp_path / "store")
    with repo.transaction("main", "changed") as tx:
        if rewritten:
            tx.dataset("people").update(WHERE, {"name": "nobody", "kind": "other"})
        tx.dataset("people").delete(hidden)
    with repo.transaction("main", "later") as tx:
        tx.dataset("people").append(people(15, 2), codec="none")
    before = repo.dataset("people")["age"][:].tolist()
    repo.purge("people", where=WHERE, reason="request 17")
    assert says(tmp_path) == set()
    assert problems(repo) == []
    assert repo.dataset("people")["age"][:].tolist() == [age for age in before if age != 3]
    assert len(repo.dataset("people", "main~4")) == 9


def test_views_lose_the_rows_and_what_their_query_told(repo: tr.Repository) -> None:
    repo.purge("people", where=WHERE, reason="request 17")
    assert [row["age"] for row in repo.view("young")] == [0, 1, 2, 4]
    assert repo.view("young").sql.startswith("SELECT")
    assert (len(repo.view("not")), repo.view("not").sql) == (14, "")


def test_a_plan_names_what_is_not_reached(repo: tr.Repository) -> None:
    with repo.transaction("main", f"about {SECRET}") as tx:
        tx.save_file("notes.txt", b"hello")
    plan = repo.purge_plan("people", where=WHERE)
    assert (plan.rows, dict(plan.versions)) == (1, {"datasets/people": 2})
    told = "\n".join(plan.beyond)
    assert "models/net" in told
    assert "datasets/less, made of datasets/people" in told
    assert "whose message or metadata repeats" in told
    assert "clones" in told
    assert len(repo.dataset("people")) == 15


def test_readers_of_what_was_purged_are_told(repo: tr.Repository) -> None:
    dataset = repo.dataset("people")
    (row,) = dataset.find(WHERE)
    (purged,) = dataset.row_ids([row])
    repo.purge("people", where=WHERE, reason="request 17")
    repo.purge("people", columns=["kind"], reason="never agreed to")
    fresh = repo.dataset("people", "main~1")
    with pytest.raises(tr.PurgedError, match=r"row .* was purged"):
        fresh.rows_by_id([purged])
    with pytest.raises(tr.PurgedError, match="column 'kind'"):
        fresh["kind"]
    with pytest.raises(tr.PurgedError, match="column 'kind'"):
        fresh.select(["age", "kind"])
    with pytest.raises(tr.NotFoundError, match="no column 'knd'"):
        fresh["knd"]


@pytest.fixture
def purged(repo: tr.Repository) -> tuple[tr.Repository, str]:
    return without_some(repo)


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> tuple[tr.Repository, str]:
    """The same for tests that change nothing."""
    return without_some(furnished(tmp_path_factory.mktemp("purged") / "store"))


def without_some(repo: tr.Repository) -> tuple[tr.Repository, str]:
    """Without a row, whose id is given, and without column ``kind``."""
    dataset = repo.dataset("people")
    (row,) = dataset.find(WHERE)
    (row_id,) = dataset.row_ids([row])
    repo.purge("people", where=WHERE, reason="request 17")
    repo.purge("people", columns=["kind"], reason="never agreed to")
    return repo, row_id


ASK_ROWS: dict[str, Callable[[tr.Repository, str], Any]] = {
    "select": lambda repo, row: len(repo.dataset("people").select(rows=[row])),
    "filter": lambda repo, row: len(repo.dataset("people").filter(f"row_id = '{row}'")),
    "sql": lambda repo, row: repo.sql(f"SELECT * FROM people WHERE row_id = '{row}'"),
    "sql params": lambda repo, row: repo.sql("SELECT ? = row_id FROM people", params=[row]),
    "query": lambda repo, row: repo.dataset("people").query(f"FROM self WHERE row_id = '{row}'"),
    "view": lambda repo, row: len(repo.view("young").select(rows=[row])),
    "blame": lambda repo, row: repo.blame("people", row_id=row),
}


@pytest.mark.soak
@pytest.mark.together
@pytest.mark.parametrize("ask", ASK_ROWS)
def test_who_asks_for_a_purged_row_by_its_id_is_told(
    ask: str, read_only: tuple[tr.Repository, str]
) -> None:
    with pytest.raises(tr.PurgedError, match=f"row {read_only[1]} was purged"):
        ASK_ROWS[ask](*read_only)


ASK_COLUMNS: dict[str, Callable[[tr.Repository], Any]] = {
    "filter": lambda repo: len(repo.dataset("people").filter("kind = 'Ann'")),
    "predicate": lambda repo: len(repo.dataset("people").filter(tr.col("kind") == "Ann")),
    "find": lambda repo: repo.dataset("people").find("kind = 'Ann'"),
    "sql": lambda repo: repo.sql("SELECT p.kind FROM people p"),
    "sql of a commit": lambda repo: repo.sql('SELECT kind FROM "people@main~1"'),
    "untrusted": lambda repo: repo.sql("SELECT kind FROM people", untrusted=tr.QueryLimits()),
    "query": lambda repo: repo.dataset("people").query("SELECT kind FROM self"),
    "numpy": lambda repo: repo.dataset("people").to_numpy(["kind"]),
    "arrow": lambda repo: repo.dataset("people").to_arrow(["age", "kind"]),
    "stream": lambda repo: repo.dataset("people").stream(batch_size=2, columns=["kind"]),
}


@pytest.mark.together
@pytest.mark.parametrize("ask", ASK_COLUMNS)
def test_who_asks_for_a_purged_column_is_told(
    ask: str, read_only: tuple[tr.Repository, str]
) -> None:
    with pytest.raises(tr.PurgedError, match="column 'kind' of datasets/people was purged"):
        ASK_COLUMNS[ask](read_only[0])


def test_other_errors_stay_what_they_are(read_only: tuple[tr.Repository, str]) -> None:
    repo, row = read_only
    other = row[:-1] + "99"
    with pytest.raises(tr.NotFoundError, match="no row has id"):
        len(repo.dataset("people").select(rows=[other]))
    assert list(repo.sql(f"SELECT * FROM people WHERE row_id = '{other}'")) == []
    with pytest.raises(tr.InvalidInputError, match="syntax error"):
        repo.sql("SELECT 'kind' FRM people")
    with pytest.raises(tr.NotFoundError, match="no column 'knd'"):
        repo.dataset("people").to_numpy(["knd"])


@pytest.mark.soak
def test_a_new_column_of_the_name_of_a_purged_one_is_no_purged_one(
    purged: tuple[tr.Repository, str],
) -> None:
    repo, _ = purged
    with repo.transaction("main", "kind") as tx:
        tx.dataset("people").add_column("kind", "int64", default=7)
    dataset = repo.dataset("people")
    assert set(dataset.to_numpy(["kind"])["kind"]) == {7}
    assert len(dataset.filter("kind = 7")) == 14
    assert len(list(repo.sql("SELECT kind FROM people"))) == 14


def test_cat_tells_what_was_purged(shell: Shell) -> None:
    shell("add", "points.npz", "--dataset", "points")
    shell("commit", "-m", "First")
    found = shell("sql", "SELECT row_id FROM points LIMIT 1", "--format", "json")
    row = json.loads(found.splitlines()[0])["row_id"]
    shell("purge", "points", "--row", row, "-m", "request 17", "--yes")
    shell("purge", "points", "--column", "label", "-m", "never agreed to", "--yes")
    assert "column 'label'" in shell.fails(3, "cat", "points", "--columns", "label")
    assert "column 'label'" in shell.fails(3, "cat", "points", "--where", "label = 1")
    assert f"row {row}" in shell.fails(3, "cat", "points", "--where", f"row_id = '{row}'")
    assert f"row {row}" in shell.fails(3, "sql", f"FROM points WHERE row_id = '{row}'")


def test_a_purge_of_more_names_than_a_record_holds_is_refused_whole(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorrepo.repo.changes.purge.MOST_NAMES_BYTES", 30)
    monkeypatch.setattr("tensorrepo.verbs.purge.MOST_SHOWN", 0)
    shell("add", "points.npz", "--dataset", "points")
    shell("commit", "-m", "First")
    words = ("purge", "points", "--column", "label")
    told = shell.fails(2, *words, "-m", "never agreed to", "--yes")
    assert "names 1 columns or tensors" in told
    assert "Purge some of them after the others" in told
    assert "label" in shell("cat", "points")
    assert "erases 1 more columns" in shell(*words, "--dry-run")


def test_copies_take_the_twins_and_do_not_bring_the_old_back(
    repo: tr.Repository, tmp_path: Path
) -> None:
    stale = tr.clone(repo.url, tmp_path / "stale", author=ADA)
    mirror = tr.clone(repo.url, tmp_path / "mirror", mirror=True)
    repo.purge("people", where=WHERE, reason="request 17")
    fresh = tr.clone(repo.url, tmp_path / "fresh", author=ADA)
    assert len(fresh.dataset("people", "main~2")) == 9
    with stale.transaction("main", "late") as tx:
        tx.dataset("people").append(people(20, 1))
    for target in (repo, fresh):
        with pytest.raises(tr.PurgedError, match="datasets/people holds 1 row"):
            stale.push(target.url)
    mirror.fetch(repo.url)
    assert says(tmp_path / "mirror") == set()
    assert len(mirror.dataset("people", "main~2")) == 9


@pytest.mark.soak
def test_a_clone_that_changed_something_else_still_pushes(
    repo: tr.Repository, tmp_path: Path
) -> None:
    stale = tr.clone(repo.url, tmp_path / "stale", author=ADA)
    repo.purge("people", where=WHERE, reason="request 17")
    with stale.transaction("main", "notes") as tx:
        tx.save_file("notes.txt", b"hello")
    stale.push(repo.url)
    assert len(repo.dataset("people")) == 14
    assert repo.file("notes.txt") == b"hello"


def test_a_bundle_of_a_purged_repository_has_the_twins_and_what_to_refuse(
    repo: tr.Repository, tmp_path: Path
) -> None:
    stale = tr.clone(repo.url, tmp_path / "stale", author=ADA)
    repo.purge("people", where=WHERE, reason="request 17")
    repo.bundle(tmp_path / "all.bundle")
    made = tr.clone(tmp_path / "all.bundle", tmp_path / "out", author=ADA)
    assert len(made.dataset("people", "main")) == 14
    with stale.transaction("main", "late") as tx:
        tx.dataset("people").append(people(20, 1))
    with pytest.raises(tr.PurgedError, match="datasets/people holds 1 row"):
        stale.push(made.url)


def test_a_clone_of_a_clone_of_a_bundle_refuses_what_two_purges_erased(
    repo: tr.Repository, tmp_path: Path
) -> None:
    (row,) = repo.dataset("people").find(WHERE)
    (purged,) = repo.dataset("people").row_ids([row])
    stale = tr.clone(repo.url, tmp_path / "stale", author=ADA)
    with stale.transaction("main", "late") as tx:
        tx.dataset("people").append(people(20, 1))
    repo.purge("people", where=WHERE, reason="request 17")
    repo.purge("people", columns=["kind"], reason="never agreed to")
    repo.bundle(tmp_path / "all.bundle")
    made = tr.clone(tmp_path / "all.bundle", tmp_path / "out", author=ADA)
    with pytest.raises(tr.PurgedError, match=r"row .* was purged"):
        made.dataset("people").rows_by_id([purged])
    with pytest.raises(tr.PurgedError, match="column 'kind'"):
        made.dataset("people")["kind"]
    onwards = tr.clone(made.url, tmp_path / "onwards", author=ADA)
    for target in (made, onwards):
        with pytest.raises(tr.PurgedError, match="datasets/people holds column 'kind'"):
            stale.push(target.url)
    assert [len(each.view("young")) for each in (repo, made, onwards)] == [4, 4, 4]
    assert problems(onwards) == []


@pytest.mark.soak
def test_branches_that_are_fetched_one_by_one_all_have_their_twins(
    repo: tr.Repository, tmp_path: Path
) -> None:
    repo.create_branch("old", "main~2")
    repo.purge("people", where=WHERE, reason="request 17")
    here = tr.init(tmp_path / "here", author=ADA)
    here.fetch(repo.url, ["main"])
    here.fetch(repo.url, ["old"])
    assert [len(here.dataset("people", f"store/{name}")) for name in ("main", "old")] == [14, 9]


def test_a_copy_that_knows_of_purges_takes_what_came_and_was_purged_since(
    repo: tr.Repository, tmp_path: Path
) -> None:
    repo.purge("people", where=WHERE, reason="request 17")
    copies = [tr.clone(repo.url, tmp_path / name, author=ADA, lazy=name == "lazy")
              for name in ("whole", "lazy")]  # fmt: skip
    with repo.transaction("main", "others") as tx:
        tx.create_dataset("others", people(0, 3))
    with repo.transaction("main", "more") as tx:
        tx.dataset("others").append(people(4, 3))
    repo.purge("others", columns=["kind"], reason="never agreed to")
    for here in copies:
        assert here.fetch().purged > 0
        assert here.dataset("others", "origin/main~1").schema.names == ("name", "age")
        assert problems(here) == []


LARGE = [{"name": f"{SECRET} {at}" * 3000, "age": at} for at in range(40)]


@pytest.fixture
def lazy(tmp_path: Path) -> tuple[tr.Repository, tr.Repository]:
    """A repository with a dataset in chunks, and a lazy clone of it that read nothing yet."""
    repo = tr.init(tmp_path / "store", author=ADA)
    with repo.transaction("main", "one") as tx:
        tx.create_dataset("people", LARGE, codec="none")
    with repo.transaction("main", "view") as tx:
        tx.create_view("young", "SELECT row_id FROM people WHERE age < 5")
    return repo, tr.clone(repo.url, tmp_path / "lazy", lazy=True, author=ADA)


def test_a_lazy_clone_of_a_purged_origin_says_to_fetch_and_goes_on_then(
    lazy: tuple[tr.Repository, tr.Repository],
) -> None:
    repo, clone = lazy
    repo.purge("people", where="age = 3", reason="request 17")
    with pytest.raises(tr.PurgedError, match=r"lazy clone.*`tensorrepo fetch`"):
        list(clone.dataset("people"))
    with pytest.raises(tr.PurgedError, match=r"lazy clone.*`tensorrepo fetch`"):
        list(tr.open(clone.url).dataset("people").stream(batch_size=8))
    report = clone.fetch()
    assert report.purged > 0
    assert "purged there" in str(report)
    for here in (clone, tr.open(clone.url)):
        assert [row["age"] for row in here.dataset("people")] == [0, 1, 2, *range(4, 40)]
        assert [row["age"] for row in here.view("young")] == [0, 1, 2, 4]
        assert problems(here) == []
    assert clone.fetch().purged == 0
    clone.gc()
    assert problems(clone) == []
    clone.fetch_data()
    assert len(tr.open(clone.url).dataset("people")) == 39


def test_a_lazy_clone_follows_more_erased_columns_than_a_record_names(
    lazy: tuple[tr.Repository, tr.Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_purges, "MOST_NAMED_BYTES", 10)
    repo, clone = lazy
    repo.purge("people", columns=["age"], reason="never agreed to")
    assert clone.fetch().purged > 0
    with pytest.raises(tr.PurgedError, match="column 'age'"):
        clone.dataset("people")["age"]
    ahead, last = purge_records(clone.context.core)
    assert (len(ahead.where), len(last.where)) == (0, 1)
    assert problems(clone) == []
    assert clone.fetch().purged == 0


def test_all_data_of_a_lazy_clone_comes_as_it_is_at_the_origin_now(
    lazy: tuple[tr.Repository, tr.Repository],
) -> None:
    repo, clone = lazy
    repo.purge("people", where="age = 3", reason="request 17")
    clone.fetch_data()
    assert len(tr.open(clone.url).dataset("people")) == 39


@pytest.mark.soak
def test_what_was_made_in_a_lazy_clone_of_purged_rows_is_refused_and_told(
    lazy: tuple[tr.Repository, tr.Repository],
) -> None:
    repo, clone = lazy
    with clone.transaction("main", "mine") as tx:
        tx.dataset("people").append([{"name": "Bob", "age": 99}])
        tx.save_file("notes.txt", b"mine")
    repo.purge("people", where="age = 3", reason="request 17")
    clone.fetch()
    with pytest.raises(tr.PurgedError, match="was purged"):
        list(clone.dataset("people"))
    assert clone.file("notes.txt") == b"mine"
    assert len(clone.dataset("people", "origin/main")) == 39
    with pytest.raises(tr.PurgedError, match="was purged"):
        clone.push("origin")
    clone.gc()
    with clone.transaction("main", "anew") as tx:
        tx.remove("datasets/people")
    clone.gc()
    assert len(tr.open(clone.url).dataset("people", "origin/main")) == 39


@pytest.mark.soak
def test_a_lazy_clone_keeps_what_it_purged_itself(
    lazy: tuple[tr.Repository, tr.Repository],
) -> None:
    repo, clone = lazy
    clone.purge("people", where="age = 5", reason="ours")
    repo.purge("people", where="age = 3", reason="request 17")
    clone.fetch()
    assert 5 not in [row["age"] for row in clone.dataset("people")]


@pytest.mark.soak
def test_a_lazy_clone_follows_models_that_were_stored_anew(
    models: tr.Repository, tmp_path: Path
) -> None:
    clone = tr.clone(models.url, tmp_path / "lazy", lazy=True, author=ADA)
    tuned = models.model("tuned")["w"].copy()
    models.purge("net", tensors=["w"], reason="learned from request 17")
    with pytest.raises(tr.PurgedError, match=r"lazy clone.*`tensorrepo fetch`"):
        clone.model("tuned")["w"][:]
    clone.fetch()
    assert (tr.open(clone.url).model("tuned")["w"][:] == tuned).all()
    with pytest.raises(tr.PurgedError, match="tensor 'w' of models/net was purged"):
        tr.open(clone.url).model("net")["w"]


def test_a_mirror_tells_that_what_came_was_a_purge(shell: Shell) -> None:
    shell("add", "points.npz", "--dataset", "points")
    shell("commit", "-m", "First")
    shell("clone", ".", "mirror", "--mirror")
    assert shell("fetch", "--repo", "mirror") == "Nothing new.\n"
    shell("purge", "points", "--where", "label = 1", "-m", "request 17", "--yes")
    told = shell("fetch", "--repo", "mirror")
    assert "purged there, and here from now on" in told
    assert "of the log" in told
    value = json.loads(shell("fetch", "--repo", "mirror", "--json"))
    assert value["purged"] == 0


@pytest.mark.soak
def test_a_clone_is_told_of_a_purge_elsewhere_until_it_is_made_there(shell: Shell) -> None:
    shell("add", "points.npz", "--dataset", "points")
    shell("commit", "-m", "First")
    shell("clone", ".", "copy")
    there = "copy/.tensorrepo/store"
    assert shell("fetch", "--repo", there, ".") == "Nothing new.\n"
    words = ("purge", "points", "--where", "label = 1", "-m", "request 17", "--yes")
    shell(*words)
    assert "purged there, and still here" in shell("fetch", "--repo", there, ".")
    assert json.loads(shell("fetch", "--repo", there, ".", "--json"))["kept_purged"] > 0
    shell(*words, "--repo", there)
    assert shell("fetch", "--repo", there, ".") == "Nothing new.\n"


@pytest.mark.soak
def test_packs_of_history_before_and_after_lose_the_rows(
    repo: tr.Repository, tmp_path: Path
) -> None:
    repo.gc(compact=True)
    repo.purge("people", where=WHERE, reason="request 17")
    assert says(tmp_path) == set()
    repo.gc(compact=True)
    assert says(tmp_path) == set()
    assert [len(tr.open(repo.url).dataset("people", ref)) for ref in ("main", "main~2")] == [14, 9]


@pytest.mark.soak
def test_pages_of_a_store_far_away_go_from_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_on_ours(tmp_path / "s3") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        repo = tr.init(f"{bucket.url}/people", author=ADA)
        large = [{"name": f"{SECRET} {at}" * 3000, "age": at} for at in range(3)]
        with repo.transaction("main", "one") as tx:
            tx.create_dataset("people", large, codec="none")
        for batch in tr.open(repo.url).dataset("people").stream(batch_size=1):
            assert batch
        assert says(tmp_path) == {"CACHE", "s3"}
        report = repo.purge("people", where="age >= 1", reason="request 17")
        assert report.cached > 0
        assert len(repo.dataset("people")) == 1
        repo.purge("people", where="age = 0", reason="request 18")
        assert says(tmp_path) == set()


def test_the_command_asks_and_lists(shell: Shell) -> None:
    shell("add", "points.npz", "--dataset", "points")
    shell("commit", "-m", "First")
    told = shell("purge", "points", "--where", "label = 1", "--dry-run")
    assert "in datasets/points: " in told
    words = ("purge", "points", "--where", "label = 1")
    assert "-m TEXT" in shell.fails(2, *words)
    assert "--yes" in shell.fails(2, *words, "-m", "request 17")
    done = json.loads(shell(*words, "-m", "request 17", "--yes", "--json").splitlines()[-1])
    assert done["record"] > 0
    assert "request 17" in shell("purge", "--list")
    assert shell("purge", "points", "--where", "label = 1", "-m", "again", "--yes").startswith(
        "nothing was purged"
    )
    assert "ok" in shell("fsck", "--deep")


@pytest.fixture
def models(tmp_path: Path) -> tr.Repository:
    """A model, and two that were made of it by small changes: their tensors are deltas."""
    repo = tr.init(tmp_path / "store", author=ADA)
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal((200, 300)).astype("f4") for name in ("w", "v")}
    with repo.transaction("main", "one") as tx:
        tx.save_model("net", tensors)
    for name in ("tuned", "again"):
        tensors = {key: (each * np.float32(1.0001)) for key, each in tensors.items()}
        with repo.transaction("main", name) as tx:
            tx.save_model(name, {**tensors, "v": tensors["v"]}, base=repo.model("net"))
    return repo


def test_a_tensor_goes_and_deltas_against_it_stand_alone(
    models: tr.Repository, tmp_path: Path
) -> None:
    tuned = {name: models.model("tuned")[name].copy() for name in ("w", "v")}
    kept, erased = models.model("net")["v"].copy(), models.model("net")["w"].tobytes()
    held = [one for one in (tmp_path / "store").rglob("*") if one.is_file()]
    plan = models.purge_plan("net", tensors=["w"])
    assert (plan.tensors, dict(plan.versions)) == (("w",), {"models/net": 1})
    report = models.purge("net", tensors=["w"], reason="learned from request 17")
    assert report.record is not None
    purged = {digest for digest, twin in report.record.erased.items()}
    left = [one for one in held if one.exists() and one.parent.name + one.name in purged]
    assert left == []
    assert "packs of models" in report.record.where.values()
    assert not any(
        erased[:64] in one.read_bytes() for one in (tmp_path / "store").rglob("*") if one.is_file()
    )
    fresh = tr.open(models.url)
    assert (fresh.model("net", "main~2")["v"] == kept).all()
    assert all((fresh.model("tuned")[name] == tuned[name]).all() for name in ("w", "v"))
    with pytest.raises(tr.PurgedError, match="tensor 'w' of models/net was purged"):
        fresh.model("net")["w"]
    with pytest.raises(tr.PurgedError, match="tensor 'w' of models/net was purged"):
        fresh.model("net").load(["v", "w"], output="numpy")
    assert list(tr.clone(models.url, tmp_path / "copy").model("net")) == ["v"]


@pytest.mark.soak
def test_a_model_that_holds_a_purged_tensor_is_not_taken_back(
    models: tr.Repository, tmp_path: Path
) -> None:
    stale = tr.clone(models.url, tmp_path / "stale", author=ADA)
    models.purge("net", tensors=["w"], reason="learned from request 17")
    with stale.transaction("main", "late") as tx:
        tx.save_model("other", {"x": stale.model("net")["w"]})
    with pytest.raises(tr.PurgedError, match="was purged"):
        stale.push(models.url)
