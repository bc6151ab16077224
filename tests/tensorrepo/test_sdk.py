"""The Python SDK: what a user of `import tensorrepo as tr` relies on."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo import connect
from tests.support.servers.object_stores import s3_on_ours

COLUMNS = {"point": tr.Tensor("float32", (2,)), "label": tr.ClassLabel(("low", "high"))}


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    return tr.init(tmp_path / "store", author="Ada <ada@example.org>")


@pytest.fixture
def filled(repo: tr.Repository) -> tr.Repository:
    """100 rows, a model with a parent, a file; two commits."""
    with repo.transaction("main", message="data") as tx:
        tx.create_dataset("points", columns=COLUMNS).append(columns(100))
        tx.save_file("notes.txt", b"hello")
    with repo.transaction("main", message="model") as tx:
        tx.save_model(
            "net",
            {"w": np.arange(6, dtype="f4").reshape(2, 3), "b": np.zeros(2, "f4")},
            files={"config.json": b"{}"},
            metrics={"accuracy": 0.5},
            derived_from=[repo.dataset("points")],
        )
    return repo


def columns(rows: int) -> dict[str, Any]:
    point = np.arange(2 * rows, dtype="float32").reshape(rows, 2)
    return {"point": point, "label": np.arange(rows) % 2}


def add_points(repo: tr.Repository, given: Any) -> tr.Dataset:
    with repo.transaction("main") as tx:
        tx.create_dataset("points", columns=COLUMNS).append(given)
    return repo.dataset("points")


ROWS = [{"point": [2.0 * at, 2.0 * at + 1], "label": at % 2} for at in range(10)]


@pytest.mark.parametrize(
    "given",
    [
        columns(10),
        ROWS,
        iter(ROWS),
        tuple(ROWS),
        [columns(10)],
        iter([columns(10)]),
        [ROWS[:5], ROWS[5:]],
    ],
    ids=["columns", "rows", "row iterator", "tuple", "batches", "batch iterator", "lists"],
)
def test_rows_are_appended_in_whatever_form_they_come(repo: tr.Repository, given: Any) -> None:
    ds = add_points(repo, given)
    assert np.array_equal(ds["point"][:], columns(10)["point"])
    assert np.array_equal(ds["label"][:], columns(10)["label"])


def test_arrow_and_foreign_files_are_appended(repo: tr.Repository, tmp_path: Path) -> None:
    import pyarrow as pa

    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,y\n")
    with repo.transaction("main") as tx:
        reading = tr.read(tmp_path / "t.csv")
        tx.create_dataset("t", columns=reading.schema).append(reading)
        tx.dataset("t").append(pa.table({"a": [3], "b": ["z"]}))
    assert repo.dataset("t")["b"][:] == ["x", "y", "z"]


@pytest.mark.parametrize("given", [7, b"bytes", None, [7]])
def test_what_is_no_rows_is_refused(repo: tr.Repository, given: Any) -> None:
    with pytest.raises(tr.InvalidInputError):
        add_points(repo, given)


def test_a_transaction_commits_at_its_end_and_nothing_on_an_error(repo: tr.Repository) -> None:
    with pytest.raises(RuntimeError, match="changed my mind"):
        fail_inside(repo)
    assert repo.branches() == {}
    with repo.transaction("main", message="kept") as tx:
        tx.save_file("a", b"x")
    assert tx.commit is not None
    assert repo.branches() == {"main": tx.commit.digest}


def fail_inside(repo: tr.Repository) -> None:
    with repo.transaction("main") as tx:
        tx.save_file("a", b"x")
        raise RuntimeError("changed my mind")


def test_a_transaction_outside_of_a_with_warns_that_it_commits_nothing(
    repo: tr.Repository,
) -> None:
    with pytest.warns(
        UserWarning, match=r"'main': 1 change> was dropped, and nothing is committed"
    ):
        repo.transaction("main").save_file("a", b"x")
    assert repo.branches() == {}


@pytest.mark.parametrize("aborted", [False, True])
def test_a_transaction_that_has_ended_says_so(repo: tr.Repository, aborted: bool) -> None:
    with repo.transaction() as tx:
        draft = tx.create_dataset("d", [{"a": 1}])
        if aborted:
            tx.abort()
    for used in (
        lambda: tx.create_dataset("e", [{"a": 1}]),
        lambda: draft.append([{"a": 1}]),
        lambda: tx.save_file("files/x", b"x"),
        lambda: tx.remove("datasets/d"),
    ):
        with pytest.raises(tr.InvalidInputError, match="this transaction has ended"):
            used()


def test_a_transaction_that_changes_nothing_makes_no_commit(filled: tr.Repository) -> None:
    before = filled.branches()
    with filled.transaction("main") as tx:
        tx.save_file("notes.txt", b"hello")
    assert tx.commit is None
    assert filled.branches() == before


def test_a_name_that_is_taken_is_not_created_again(filled: tr.Repository) -> None:
    with (
        filled.transaction("main") as tx,
        pytest.raises(tr.ConflictError, match="datasets/points"),
    ):
        tx.create_dataset("points", columns=COLUMNS)


def test_what_is_removed_is_gone(filled: tr.Repository) -> None:
    with filled.transaction("main") as tx:
        tx.remove("datasets/points")
    with pytest.raises(tr.NotFoundError):
        filled.dataset("points")
    assert len(filled.dataset("points", "main~1")) == 100


def test_a_dataset_is_indexed_by_row_slice_list_and_column(filled: tr.Repository) -> None:
    ds, expected = filled.dataset("points"), columns(100)
    assert np.array_equal(ds[7]["point"], expected["point"][7])
    assert np.array_equal(ds[-1]["point"], expected["point"][-1])
    assert np.array_equal(ds[10:20]["label"], expected["label"][10:20])
    assert np.array_equal(ds[[3, 1]]["point"], expected["point"][[3, 1]])
    assert np.array_equal(ds["point"][5:9], expected["point"][5:9])
    assert [int(row["label"]) for row in ds][:4] == [0, 1, 0, 1]


def test_a_handle_stays_at_its_commit(filled: tr.Repository) -> None:
    ds = filled.dataset("points")
    with filled.transaction("main") as tx:
        tx.dataset("points").append(columns(5))
    assert (len(ds), len(filled.dataset("points"))) == (100, 105)


def test_a_dataset_comes_out_as_arrow_numpy_and_torch(filled: tr.Repository) -> None:
    torch = pytest.importorskip("torch")
    ds, expected = filled.dataset("points"), columns(100)
    assert ds.to_arrow(["label"]).num_rows == 100
    assert sum(batch.num_rows for batch in ds.to_batches(max_bytes="1KB")) == 100
    assert np.array_equal(ds.to_numpy()["point"], expected["point"])
    assert torch.equal(ds.to_torch()["point"], torch.from_numpy(expected["point"]))


def test_types_that_numpy_has_not_come_out_as_torch_has_them(filled: tr.Repository) -> None:
    torch = pytest.importorskip("torch")
    expected = torch.arange(6).reshape(3, 2).to(torch.bfloat16)
    with filled.transaction("main") as tx:
        tx.create_dataset("halves", columns={"h": tr.Tensor("bfloat16", (2,))}).append(
            {"h": expected}
        )
    ds = filled.dataset("halves")
    assert torch.equal(ds.to_torch()["h"], expected)
    (batch,) = ds.stream(batch_size=3, shuffle=False, output="torch")
    assert torch.equal(batch["h"], expected)


def test_a_stream_covers_every_row_once_in_an_order_of_the_seed(filled: tr.Repository) -> None:
    ds = filled.dataset("points")
    first = [
        batch["point"].copy()
        for batch in ds.stream(batch_size=16, sampling=tr.Sampling(window="1MB"), seed=3)
    ]
    again = [
        batch["point"].copy()
        for batch in ds.stream(batch_size=16, sampling=tr.Sampling(window=10**6), seed=3)
    ]
    assert all(map(np.array_equal, first, again))
    assert sorted(np.concatenate(first)[:, 0]) == sorted(columns(100)["point"][:, 0])


def test_a_stream_goes_on_where_another_stopped(filled: tr.Repository) -> None:
    ds = filled.dataset("points")
    whole = [batch["label"].copy() for batch in ds.stream(batch_size=10, seed=1)]
    stream = ds.stream(batch_size=10, seed=1)
    for _, batch in zip(range(4), stream, strict=False):
        position = batch.position
    other = ds.stream(batch_size=10, seed=1)
    other.load_state_dict(stream.state_dict(position))
    rest = [batch["label"].copy() for batch in other]
    assert all(map(np.array_equal, whole[4:], rest))


def test_ranks_read_the_environment(filled: tr.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    seen = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        repo = tr.open(filled.url)
        stream = repo.dataset("points").stream(batch_size=20)
        seen += [value for batch in stream for value in batch["point"][:, 0]]
    assert sorted(seen) == sorted(columns(100)["point"][:, 0])
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(tr.InvalidInputError, match="RANK"):
        tr.open(filled.url).dataset("points").stream(batch_size=20)


def test_sizes_are_numbers_or_texts(filled: tr.Repository) -> None:
    with pytest.raises(tr.InvalidInputError, match="lots"):
        filled.dataset("points").stream(batch_size=8, sampling=tr.Sampling(window="lots"))


def test_a_model_is_read_whole_by_tensor_and_by_slice(filled: tr.Repository) -> None:
    model = filled.model("net")
    assert model.keys() == ("b", "w")
    assert np.array_equal(model["w"], np.arange(6, dtype="f4").reshape(2, 3))
    assert np.array_equal(model.tensor("w")[0:1, 1:], [[1, 2]])
    assert (model.tensor("w").shape, model.tensor("w").type, len(model.tensor("w"))) == (
        (2, 3), "F32", 2
    )  # fmt: skip
    assert np.asarray(model.tensor("w")).tolist() == model["w"].tolist()
    assert model.rows("w", [-1, 0]).tolist() == model["w"][[-1, 0]].tolist()
    with pytest.raises(tr.InvalidInputError, match="tensor 'w': row 9"):
        model.rows("w", [0, 9])
    assert set(model.load(["b"], output="numpy")) == {"b"}
    assert model.spec("w").shape == (2, 3)
    assert model.metrics == {"accuracy": 0.5}
    assert (model.files, model.file("config.json")) == (("config.json",), b"{}")
    assert [edge.path for edge in model.lineage()] == ["datasets/points"]


def test_a_module_is_filled_or_told_why_not(filled: tr.Repository) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 2)
    with filled.transaction("main") as tx:
        tx.save_model("linear", module.state_dict(), base="main:models/net")
    other = torch.nn.Linear(3, 2)
    filled.model("linear").load_into(other)
    assert torch.equal(module.weight, other.weight)
    with pytest.raises(tr.InvalidInputError, match="does not fit"):
        filled.model("linear").load_into(torch.nn.Linear(4, 2))
    assert filled.model("linear").lineage()[0].path == "models/net"


def test_a_model_is_stored_as_the_difference_from_its_base(filled: tr.Repository) -> None:
    weight = np.random.default_rng(1).normal(0, 0.02, (300, 400)).astype("f4")
    with filled.transaction("main") as tx:
        tx.save_model("base", {"w": weight})
    near = weight + np.random.default_rng(9).normal(0, 1e-6, weight.shape).astype("f4")
    with filled.transaction("main") as tx:
        found = tx.save_model("found", {"w": near})
        declared = tx.save_model("declared", {"w": near * 2}, base=filled.model("base"))
        parent = tx.save_model("child", {"w": near + near}, base="main:models/base")
    assert (found.bases[0].why, set(found.codecs)) == ("similar", {"delta"})
    assert [used.why for used in (*declared.bases, *parent.bases)] in (["declared"], [])
    assert found.stored_bytes < found.raw_bytes / 2
    assert "delta" in found.summary
    assert np.array_equal(filled.model("found")["w"], near)
    assert np.array_equal(filled.model("declared")["w"], near * 2)


def test_a_base_must_be_a_model_of_the_repository(filled: tr.Repository) -> None:
    elsewhere = tr.init("memory://elsewhere-of-base", author="A <a@b.c>")
    with elsewhere.transaction("main") as tx:
        tx.save_model("net", {"w": np.zeros(100)})
    with filled.transaction("main") as tx:
        with pytest.raises(tr.InvalidInputError, match="REF:models/NAME"):
            tx.save_model("x", {"w": np.zeros(100)}, base="net")
        with pytest.raises(tr.InvalidInputError, match="another repository"):
            tx.save_model("x", {"w": np.zeros(100)}, base=elsewhere.model("net"))


def test_parts_of_a_model_are_read_as_they_are_asked_for(filled: tr.Repository) -> None:
    loaded = filled.model("net").load(["w"], output="numpy", shard=(1, 0, 2), dtype="f8")
    assert loaded["w"].tolist() == [[0, 1], [3, 4]]
    assert filled.model("net").load(["w"], output="numpy", planes=1)["w"].max() == 2


def test_a_model_is_saved_and_compared(filled: tr.Repository, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    filled.model("net").save(tmp_path / "net.safetensors")
    assert set(load_file(tmp_path / "net.safetensors")) == {"w", "b"}
    with filled.transaction("main") as tx:
        tx.save_model("net", {"w": np.ones((2, 3), "f4"), "b": np.zeros(2, "f4")})
    found = filled.model("net", "main~1").diff(filled.model("net"))
    assert [change.spec.name for change in found.changed] == ["w"]


def test_export_chooses_the_format_by_suffix(filled: tr.Repository, tmp_path: Path) -> None:
    tr.export(filled.dataset("points"), tmp_path / "p.parquet")
    tr.export(filled.model("net"), tmp_path / "n.safetensors")
    assert tr.read(tmp_path / "p.parquet").rows == 100
    with pytest.raises(tr.InvalidInputError, match="exists"):
        tr.export(filled.dataset("points"), tmp_path / "p.parquet")


def test_history_is_listed_compared_merged_and_undone(filled: tr.Repository) -> None:
    filled.create_tag("v1", "main~1")
    filled.create_branch("side", "v1")
    assert [one.commit.message for one in filled.log("main", limit=1)] == ["model"]
    assert [change.path for change in filled.diff("v1", "main").changes] == ["models/net"]
    with filled.transaction("side") as tx:
        tx.save_file("more.txt", b"more")
    assert filled.merge("side").committed is not None
    assert filled.file("more.txt") == b"more"
    filled.undo()
    with pytest.raises(tr.NotFoundError):
        filled.file("more.txt")
    filled.redo()
    assert filled.file("more.txt") == b"more"
    assert set(filled.branches()) == {"main", "side"}
    assert set(filled.tags()) == {"v1"}


def test_two_transactions_on_one_branch_are_joined_or_conflict(filled: tr.Repository) -> None:
    with filled.transaction("main") as mine:
        mine.dataset("points").append(columns(3))
        with filled.transaction("main") as theirs:
            theirs.dataset("points").append(columns(4))
    assert len(filled.dataset("points")) == 107
    with pytest.raises(tr.ConflictError):
        change_what_others_change(filled)
    assert filled.file("notes.txt") == b"theirs"


def change_what_others_change(repo: tr.Repository) -> None:
    with repo.transaction("main") as mine:
        mine.save_file("notes.txt", b"mine")
        with repo.transaction("main") as theirs:
            theirs.save_file("notes.txt", b"theirs")


@pytest.mark.parametrize("scheme", ["memory://{name}", "dir::file://{folder}/fs", "{folder}/plain"])
def test_any_url_holds_a_repository(tmp_path: Path, scheme: str) -> None:
    url = scheme.format(name=tmp_path.name, folder=tmp_path)
    repo = tr.init(url, author="Ada <ada@example.org>")
    ds = add_points(repo, columns(10))
    assert len(tr.open(url).dataset("points")) == len(ds) == 10
    with pytest.raises(tr.ConflictError):
        tr.init(url)


def test_what_is_no_repository_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(tr.NotFoundError, match="no tensorrepo repository"):
        tr.open(tmp_path)


@pytest.mark.parametrize("take", [tr.init, tr.open])
def test_an_empty_url_is_not_the_current_folder(
    take: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tr.InvalidInputError, match="is empty"):
        take("")
    assert list(tmp_path.iterdir()) == []


def test_a_ref_that_is_both_warns(filled: tr.Repository) -> None:
    filled.create_branch("both")
    filled.create_tag("both")
    with pytest.warns(UserWarning, match="both a branch and a tag"):
        filled.dataset("points", "both")


def test_the_outcome_of_a_transaction_that_nobody_noted_needs_its_generation(
    filled: tr.Repository,
) -> None:
    record = next(iter(filled.context.core.log.records(1, 2)))
    txn = record.entries[0].txn
    assert filled.status_of(txn, 1) == "landed"
    assert filled.status_of("f" * 32, 1) == "lost"
    with pytest.raises(tr.NotFoundError, match="generation"):
        filled.status_of("f" * 32)


def handles(repo: tr.Repository) -> list[Any]:
    return [repo, repo.dataset("points"), repo.model("net"), repo.dataset("points").torch()]


def test_every_handle_survives_pickling(filled: tr.Repository) -> None:
    for handle in handles(filled):
        assert repr(pickle.loads(pickle.dumps(handle))) is not None
    ds = pickle.loads(pickle.dumps(filled.dataset("points")))
    assert np.array_equal(ds[3]["point"], columns(100)["point"][3])


def test_a_pickled_handle_is_still_at_its_commit(filled: tr.Repository) -> None:
    data = pickle.dumps(filled.dataset("points"))
    with filled.transaction("main") as tx:
        tx.dataset("points").append(columns(5))
    assert len(pickle.loads(data)) == 100


def read_rows(ds: tr.Dataset) -> list[float]:
    return [float(value) for value in ds["point"][:][:, 0]]


@pytest.mark.soak
def test_a_spawned_process_reads_through_a_handle(filled: tr.Repository) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(read_rows, (filled.dataset("points"),)) == list(range(0, 200, 2))


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.soak)])
def test_torchs_own_loader_reads_with_workers(filled: tr.Repository, start: str) -> None:
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(
        filled.dataset("points").torch(["point"]),
        batch_size=10,
        num_workers=2,
        multiprocessing_context=start,
    )
    seen = torch.cat([batch["point"] for batch in loader])
    assert torch.equal(seen, torch.from_numpy(columns(100)["point"]))


def test_handles_say_what_they_are(filled: tr.Repository) -> None:
    ds, model = filled.dataset("points"), filled.model("net")
    assert "100 rows of point, label" in repr(ds)
    assert "2 tensors" in repr(model)
    assert f"commit {ds.commit[:12]}" in repr(ds)
    assert filled.url in repr(filled)
    assert "points" in repr(ds.stream(batch_size=8))


def test_a_notebook_shows_a_small_table_with_everything_escaped(repo: tr.Repository) -> None:
    with repo.transaction("main") as tx:
        tx.create_dataset("t", columns={"text": tr.Text()}).append({"text": ["<script>"] * 20})
        tx.save_model("<net>".strip("<>"), {"w<b>": np.zeros(3, "f4")})
    shown = repo.dataset("t")._repr_html_()
    assert "<script>" not in shown
    assert shown.count("&lt;script&gt;") == 8
    assert "w&lt;b&gt;" in repo.model("net")._repr_html_()


def test_secrets_stay_out_of_what_is_shown(tmp_path: Path) -> None:
    secret = "hunter2-secret"
    with s3_on_ours(tmp_path / "s3") as bucket:
        options = {"endpoint": bucket.server.url, "access_key_id": "a", "secret_access_key": secret}
        repo = tr.init(f"{bucket.url}/r", storage_options=options, author="A <a@b.c>")
        shown = [repr(repo), repr(repo.context.origin), repr(repo.context.machine), str(vars(repo))]
        with pytest.raises(tr.Error) as raised:
            repo.dataset("nothing")
    assert secret not in "".join([*shown, str(raised.value)])


def test_pickles_hold_no_environment(
    filled: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-secret")
    repo = tr.open(filled.url)
    out = io.StringIO()
    pickletools.dis(pickle.dumps(repo.dataset("points")), out)
    assert "hunter2-secret" not in out.getvalue()
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "hunter2-secret"


def test_closing_a_handle_closes_no_other(filled: tr.Repository) -> None:
    other = tr.open(filled.url)
    filled.close()
    assert len(other.dataset("points")) == 100


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tr.Repository]:
    """A repository in S3, with an empty XDG_CACHE_HOME."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with s3_on_ours(tmp_path / "s3") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        repo = tr.init(f"{bucket.url}/repo", author="Ada <ada@example.org>")
        add_points(repo, columns(50_000))
        yield repo


def pages(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_streams_keep_pages_of_a_remote_dataset_below_the_cache_folder(
    remote: tr.Repository, tmp_path: Path
) -> None:
    stream = remote.dataset("points").stream(batch_size=64)
    assert len(list(stream)) == 782
    assert pages(tmp_path / "cache" / "tensorrepo" / "pages")
    again = tr.open(remote.url).dataset("points").stream(batch_size=64, seed=1)
    list(again)
    assert again.stats().cache_hit_rate == 1


def test_the_page_cache_can_lie_elsewhere_or_nowhere(remote: tr.Repository, tmp_path: Path) -> None:
    dataset = remote.dataset("points")
    list(dataset.stream(batch_size=64, loading=tr.Loading(cache_limit=0)))
    assert pages(tmp_path / "cache" / "tensorrepo" / "pages") == []
    list(
        dataset.stream(
            batch_size=64, loading=tr.Loading(cache_dir=tmp_path / "here", cache_limit="1GB")
        )
    )
    assert pages(tmp_path / "here")
    assert pages(tmp_path / "cache" / "tensorrepo" / "pages") == []


def test_a_page_cache_among_other_files_is_refused_before_it_deletes_any(
    remote: tr.Repository, tmp_path: Path
) -> None:
    kept = tmp_path / "data" / "train" / "img_0001.jpg"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(3_000_000))
    with pytest.raises(tr.InvalidInputError, match=r"holds what no cache wrote \('train'\)"):
        remote.dataset("points").stream(
            batch_size=64, loading=tr.Loading(cache_dir=tmp_path / "data", cache_limit="2MB")
        )
    assert kept.exists()


def test_a_setting_says_how_much_streams_may_keep(
    remote: tr.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    connect.write_config(tmp_path / "config" / "tensorrepo" / "config.json", {"cache.limit": "0"})
    list(tr.open(remote.url).dataset("points").stream(batch_size=64))
    assert pages(tmp_path / "cache" / "tensorrepo" / "pages") == []


def test_a_stream_profiles_the_step_of_a_loop(filled: tr.Repository) -> None:
    seen: list[int] = []
    stream = filled.dataset("points").stream(batch_size=10, transform=len)
    found = stream.profile(seen.append)
    assert found.cold.rows == found.cached.rows == len(stream.dataset)
    assert len(seen) == 3 * found.cold.steps
