"""Selections: rows and columns of a dataset that are looked for when they are needed."""

from __future__ import annotations

import hashlib
import operator
import pickle
from collections.abc import Callable
from functools import partial
from itertools import permutations, product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorrepo as tr
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.dataset.schema.schema import Schema, as_type
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.ids import Digest
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples

ROWS = 20_000
COLUMNS = {"n": "int64", "y": "int32", "text": tr.Text()}


def rows(count: int) -> dict[str, Any]:
    numbers = np.arange(count)
    return {"n": numbers, "y": numbers % 7, "text": [f"{at % 50}" for at in numbers.tolist()]}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    made = tr.init(tmp_path_factory.mktemp("store") / "store", author="Ada <ada@example.org>")
    with made.transaction("main", message="first") as tx:
        tx.create_dataset("d", columns=COLUMNS).append(rows(200))
    with made.transaction("main", message="holes") as tx:
        tx.dataset("d").delete("n between 20 and 29")
    return made


@pytest.fixture(scope="module")
def ds(repo: tr.Repository) -> tr.Dataset:
    return repo.dataset("d")


@pytest.fixture(scope="module")
def floats() -> tr.Dataset:
    nan = float("nan")
    kinds = {"f": "float32", "g": "bfloat16", "h": "float64"}
    repo = tr.init("memory://floats", author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        draft = tx.create_dataset("d", columns={**kinds, "t": tr.Text(), "l": tr.List("int64")})
        draft.append(
            {"f": [0, 2, nan, nan], "g": [0, nan, 1, nan], "h": [-1, 3, nan, 0.5],
             "t": list("abcd"), "l": [[1, 2]] * 4}
        )  # fmt: skip
    return repo.dataset("d")


@pytest.mark.parametrize(
    "condition",
    [
        "f > 1", "f >= 1", "1 < f", "1 <= self.f", '"h" < f', "not (f > 1)", "not f <= 1",
        "f between 1 and 3", "f not between 1 and 3", "1 between 0 and f", "f == f", "f != f",
        "f == h", "f <> 2", "f in (2, 3)", "g > 0", "h > g", "f > 1 or h < 0",
        "not (f > 1 or h > 2)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("beside", ["length(t) > 0", "len([f for f in l if f > 1]) = 1"])
def test_what_a_comparison_says_of_nan_is_the_same_beside_any_other_sql(
    floats: tr.Dataset, condition: str, beside: str
) -> None:
    alone = floats.find(condition).tolist()
    assert floats.find(f"({condition}) and {beside}").tolist() == alone


REALS = [-np.inf, -1.5, -0.0, 0.0, 2.0, np.inf, np.nan, None]
COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip


@pytest.fixture(scope="module")
def all_reals() -> tr.Dataset:
    """Three columns of floats, with each three of those values in a row."""
    kinds = {"f": "float32", "g": "float64", "h": "bfloat16"}
    columns = {name: tr.Column(name, as_type(kind), nullable=True) for name, kind in kinds.items()}
    repo = tr.init("memory://all-reals", author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        draft = tx.create_dataset("d", columns={**columns, "t": tr.Text()})
        draft.append([{"f": f, "g": g, "h": h, "t": "x"} for f, g, h in product(REALS, repeat=3)])
    return repo.dataset("d")


def _rows_where(names: str, holds: Callable[..., bool | None], *, negated: bool) -> list[int]:
    """Rows for whose values of these columns it is known that something holds, or does not."""
    rows = (dict(zip("fgh", row, strict=True)) for row in product(REALS, repeat=3))
    found = [holds(*(row[name] for name in names)) for row in rows]
    return [at for at, each in enumerate(found) if each is not None and each != negated]


def _unless_null(compare: Callable[[Any, Any], Any], left: Any, right: Any) -> bool | None:
    return None if left is None or right is None else bool(compare(left, right))


def _is_between(given: Any, low: Any, high: Any) -> bool | None:
    parts = {_unless_null(operator.ge, given, low), _unless_null(operator.le, given, high)}
    return False if False in parts else None if None in parts else True


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("sign", COMPARED)
@pytest.mark.parametrize(("left", "right"), [*product("fgh", repeat=2)])
def test_floats_of_two_columns_compare_as_those_of_numpy_in_each_way_of_asking(
    all_reals: tr.Dataset, left: str, right: str, sign: str, negated: bool
) -> None:
    compare = COMPARED[sign]
    expected = _rows_where(left + right, partial(_unless_null, compare), negated=negated)
    said = compare(tr.col(left), tr.col(right))
    text = f"{'not ' * negated}({left} {sign} {right})"
    ways = [~said if negated else said, text, f"{text} and length(t) > 0"]
    assert [all_reals.find(way).tolist() for way in ways] == [expected] * 3


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("names", [*permutations("fgh")], ids="".join)
def test_floats_between_two_columns_are_those_of_two_comparisons(
    all_reals: tr.Dataset, names: tuple[str, ...], negated: bool
) -> None:
    given, low, high = names
    expected = _rows_where("".join(names), _is_between, negated=negated)
    text = f"{given} {'not ' * negated}between {low} and {high}"
    for asked in (text, f"({text}) and length(t) > 0"):
        assert all_reals.find(asked).tolist() == expected


@pytest.mark.parametrize("zero", ["0", "0.0", "-0.0"])
@pytest.mark.parametrize("name", list("fgh"))
def test_zeros_of_both_signs_are_looked_up_as_one(
    all_reals: tr.Dataset, name: str, zero: str
) -> None:
    expected = all_reals.find(f"{name} = 0 or {name} = 2").tolist()
    value = float(zero) if "." in zero else int(zero)
    text = f"{name} in ({zero}, 2)"
    ways = [tr.col(name).isin([value, 2]), text, f"{text} and length(t) > 0"]
    assert [all_reals.find(way).tolist() for way in ways] == [expected] * 3


SMALLEST = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.fixture(scope="module")
def smallest() -> tr.Dataset:
    repo = tr.init("memory://smallest-floats", author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        draft = tx.create_dataset(
            "d", columns={**{kind: kind for kind in SMALLEST}, "t": tr.Text()}
        )
        draft.append({**{kind: [0, 2, float("nan")] for kind in SMALLEST}, "t": list("abc")})
    return repo.dataset("d")


@pytest.mark.parametrize("kind", SMALLEST)
@pytest.mark.parametrize("beside", ["", " and length(t) > 0"])
@pytest.mark.parametrize(
    ("condition", "rows"), [("{} > 1", [1]), ("{} in (2, 3)", [1]), ("{} <> 2", [0, 2])]
)
def test_the_smallest_floats_are_compared_and_looked_up(
    smallest: tr.Dataset, kind: str, beside: str, condition: str, rows: list[int]
) -> None:
    assert smallest.find(condition.format(kind) + beside).tolist() == rows


def test_changes_by_expressions_ask_conditions_as_others_do() -> None:
    repo = tr.init("memory://floats-changed", author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        draft = tx.create_dataset("d", columns={"f": "float32", "n": "int64"})
        draft.append({"f": [0, 2, float("nan")], "n": [0, 0, 0]})
        draft.update_sql({"n": "n + 1"}, "f > 1")
    assert repo.dataset("d")["n"][:].tolist() == [0, 1, 0]


# ------------------------------------------------------------------------------ one protocol

NUMBERS = np.array([at for at in range(200) if not 20 <= at < 30])
SELECTIONS: dict[str, tuple[Callable[[tr.Dataset], tr.Dataset], list[int]]] = {
    "where": (lambda ds: ds.filter("y == 3"), NUMBERS[NUMBERS % 7 == 3].tolist()),
    "col": (lambda ds: ds.filter(tr.col("text").isin(["3", "4"])),
            NUMBERS[np.isin(NUMBERS % 50, [3, 4])].tolist()),
    "sql": (lambda ds: ds.filter("n % 3 == 0"), NUMBERS[NUMBERS % 3 == 0].tolist()),
    "slice": (lambda ds: ds.select(rows=slice(15, 25)), NUMBERS[15:25].tolist()),
    "from the end": (lambda ds: ds.select(rows=slice(-5, None)), NUMBERS[-5:].tolist()),
    "numbers": (lambda ds: ds.select(rows=[1, 50, 189]), NUMBERS[[1, 50, 189]].tolist()),
    "mask": (lambda ds: ds.select(rows=np.arange(190) % 2 == 0), NUMBERS[::2].tolist()),
    "ids": (lambda ds: ds.select(rows=ds.row_ids([2, 40])), NUMBERS[[2, 40]].tolist()),
    "keys": (lambda ds: ds.filter({"n": [5, 100]}), [5, 100]),
    "rows and where": (lambda ds: ds.select(rows=slice(0, 40), where="y == 0"),
                       [each for each in NUMBERS[:40].tolist() if each % 7 == 0]),
    "of a selection": (lambda ds: ds.filter("y == 3").select(rows=slice(2, 5)).filter("n > 20"),
                       [31, 38]),
    "nothing": (lambda ds: ds.filter("n < 0"), []),
    "all": (lambda ds: ds.select(["n", "y", "text"]), NUMBERS.tolist()),
}  # fmt: skip
each_selection = pytest.mark.parametrize(("chosen", "wanted"), SELECTIONS.values(), ids=SELECTIONS)


@each_selection
def test_rows_are_those_that_were_asked_for(
    chosen: Callable[[tr.Dataset], tr.Dataset], wanted: list[int], ds: tr.Dataset
) -> None:
    found = chosen(ds)
    assert found["n"][:].tolist() == wanted
    assert (len(found), found.shape) == (len(wanted), (len(wanted), 3))
    assert [row["n"] for row in found] == wanted
    assert found.to_arrow(["n"])["n"].to_pylist() == wanted
    assert [row["n"] for row in found.query("SELECT n FROM self ORDER BY n")] == wanted
    assert found.row_ids() == ds.row_ids(np.searchsorted(NUMBERS, wanted).astype(np.int64))


@each_selection
def test_its_head_is_that_of_its_rows(
    chosen: Callable[[tr.Dataset], tr.Dataset], wanted: list[int], ds: tr.Dataset
) -> None:
    assert chosen(ds).head(3)["n"][:].tolist() == wanted[:3]


@each_selection
def test_it_streams_what_it_holds(
    chosen: Callable[[tr.Dataset], tr.Dataset], wanted: list[int], ds: tr.Dataset
) -> None:
    found = chosen(ds)
    batches = list(found.stream(batch_size=64, seed=1)) if wanted else []
    assert sorted(int(each) for batch in batches for each in batch["n"]) == wanted
    for batch in batches:
        assert ds["n"][batch.rows].tolist() == batch["n"].tolist()


@each_selection
def test_it_is_kept_as_a_view_and_asked_again(
    chosen: Callable[[tr.Dataset], tr.Dataset],
    wanted: list[int],
    ds: tr.Dataset,
    repo: tr.Repository,
) -> None:
    found = cast(tr.Selection, chosen(ds))
    with repo.transaction() as tx:
        tx.create_view("kept", found, replace=True)
    kept = repo.view("kept")
    assert kept["n"][:].tolist() == wanted
    assert kept.diff(found).summary == "0 rows in, 0 rows out"
    if kept.sql:
        assert [*repo.sql(f"SELECT count(*) AS n FROM ({kept.sql})")] == [{"n": len(wanted)}]


def test_a_selection_is_pickled(ds: tr.Dataset) -> None:
    found = ds.filter(tr.col("y") == 3)[["n"]]
    again = pickle.loads(pickle.dumps(found))
    assert (again["n"][:].tolist(), again.columns) == (found["n"][:].tolist(), ["n"])


def test_rows_where_and_weights_of_a_stream_count_rows_of_the_selection(ds: tr.Dataset) -> None:
    odd = ds.filter("n % 2 == 1")
    (batch,) = odd.stream(batch_size=100, sampling=tr.Sampling(rows=slice(0, 5)), shuffle=False)
    assert batch["n"].tolist() == [1, 3, 5, 7, 9]
    (batch,) = odd.stream(
        batch_size=100, sampling=tr.Sampling(rows=[7, 2, 3], where="n < 8"), shuffle=False
    )
    assert batch["n"].tolist() == [5, 7]
    first = np.zeros(len(odd))
    first[0] = 4
    (batch,) = odd.stream(batch_size=100, sampling=tr.Sampling(weights=first))
    assert batch["n"].tolist() == [1, 1, 1, 1]
    with pytest.raises(tr.InvalidInputError, match="weights are one number per row, 95"):
        odd.stream(batch_size=1, sampling=tr.Sampling(weights=np.ones(190)))


@pytest.mark.soak
def test_a_process_streams_a_selection(ds: tr.Dataset) -> None:
    found = ds.filter("y == 3").select(["n"])
    with found.stream(
        batch_size=64, loading=tr.Loading(workers="process"), transform=doubled
    ) as stream:
        numbers = sorted(int(each) for batch in stream for each in batch["n"])
    assert numbers == [2 * at for at in SELECTIONS["where"][1]]


def doubled(batch: Any) -> Any:
    batch["n"] = batch["n"] * 2
    return batch


def test_conditions_see_the_columns_of_what_is_asked(ds: tr.Dataset) -> None:
    assert len(ds.select(["n"], where="y == 3")) == len(ds.filter("y == 3"))
    with pytest.raises(tr.InvalidInputError, match="y"):
        len(ds.select(["n"]).filter("y == 3"))


def test_what_a_selection_says_of_itself(ds: tr.Dataset) -> None:
    found = ds.filter("y == 3").filter(tr.col("n") > 20)
    assert found.selected == {"where": "(y == 3) and (n > 20)"}
    assert repr(found) == "<some rows of d: n, y, text, where (y == 3) and (n > 20)>"
    assert ds.select(rows=np.arange(190) % 2 == 0).selected == {}
    few = ds.filter("y == 3").head(2)
    assert few.selected == {"where": "(y == 3) and (row_number <= 10)"}
    assert few.sql == ""  # the first two of others, in another version


@pytest.mark.parametrize("wrong", [[3, 1], [1, 1]])
def test_rows_that_do_not_ascend_are_refused(wrong: list[int], ds: tr.Dataset) -> None:
    with pytest.raises(tr.InvalidInputError, match="ascending"):
        len(ds.select(rows=wrong))


def test_a_view_of_rows_that_no_text_says_is_not_asked_again(
    repo: tr.Repository, ds: tr.Dataset
) -> None:
    with repo.transaction() as tx:
        tx.create_view("mask", cast(tr.Selection, SELECTIONS["mask"][0](ds)))
    with pytest.raises(tr.InvalidInputError, match="given one by one"), repo.transaction() as tx:
        tx.refresh_view("mask")


@pytest.mark.soak
def test_a_refreshed_split_takes_in_the_new_rows_of_its_side(tmp_path: Path) -> None:
    made = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    shares = {"train": 0.5, "test": 0.5}
    with made.transaction() as tx:
        tx.create_dataset("d", columns=COLUMNS).append(rows(100))
    with made.transaction() as tx:
        for name, part in made.dataset("d").split(shares, by="n").items():
            tx.create_view(name, part)
    with made.transaction() as tx:
        tx.dataset("d").append({name: each[100:] for name, each in rows(150).items()})
    with made.transaction() as tx:
        tx.refresh_view("train")
    wanted = made.dataset("d").split(shares, by="n")["train"]
    assert made.view("train")["n"][:].tolist() == wanted["n"][:].tolist()
    assert max(made.view("train")["n"][:]) >= 100


def test_a_selection_of_a_view_is_asked_of_the_view(repo: tr.Repository, ds: tr.Dataset) -> None:
    with repo.transaction() as tx:
        tx.create_view("threes", ds.filter("y == 3"))
    found = repo.view("threes").filter("n < 20")
    assert (found["n"][:].tolist(), found.selected["where"]) == ([3, 10, 17], "n < 20")
    assert found.sql == 'SELECT row_id FROM "views/threes" WHERE n < 20'


def test_rows_of_another_repository_are_no_view_of_this_one(ds: tr.Dataset) -> None:
    other = tr.init("memory://another-one", author="Ada <ada@example.org>")
    with pytest.raises(tr.InvalidInputError, match="another repository"), other.transaction() as tx:
        tx.create_view("v", ds.filter("y == 3"))


# ------------------------------------------------------------------------------ what is read


@pytest.fixture(scope="module")
def paged() -> tuple[MemoryObjects, tr.Dataset]:
    """20,000 rows in pages of 4 KiB, in memory."""
    objects = MemoryObjects()
    link = write_dataset(objects, Schema.of(COLUMNS), [rows(ROWS)], page_bytes=4096)
    stored = open_dataset(objects, link.digest)
    return objects, tr.Dataset(cast(Any, None), "datasets/d", Digest("0" * 64), stored)


def read_bytes(objects: MemoryObjects, work: Callable[[], object]) -> int:
    objects.reads.clear()
    work()
    return sum(stop - start for _, start, stop in objects.reads)


@pytest.mark.parametrize(
    "work",
    [
        lambda ds: ds.head(5).to_pandas(),
        lambda ds: ds.filter(tr.col("n") >= 300).head(5).to_arrow(),
        lambda ds: ds.filter("y == 3").head(5)[["text"]].to_polars(),
        lambda ds: [*ds.select(rows=[3, 19_999])],
        lambda ds: ds.select(rows=slice(-5, None)).to_numpy(),
        lambda ds: len(ds.select(rows=slice(10, 9_000))),
    ],
)
def test_no_more_is_read_than_the_rows_that_are_taken(
    work: Callable[[tr.Dataset], object], paged: tuple[MemoryObjects, tr.Dataset]
) -> None:
    objects, ds = paged
    stored = open_dataset(objects, ds.stored.digest)
    fresh = tr.Dataset(cast(Any, None), "datasets/d", ds.commit, stored)
    # A scan of a store reads 32 MiB ahead: of the small column of a condition that is all.
    assert read_bytes(objects, lambda: work(fresh)) < stored.stored_bytes / 2


def test_a_selection_reads_nothing_before_it_is_used(
    paged: tuple[MemoryObjects, tr.Dataset],
) -> None:
    objects, ds = paged
    chosen: list[tr.Dataset] = []
    assert not read_bytes(objects, lambda: chosen.append(ds.filter("y == 3")[["n"]].head()))
    assert not read_bytes(objects, lambda: ds.split({"a": 0.5, "b": 0.5}, by="text"))
    assert chosen[0].columns == ["n"]


# ------------------------------------------------------------------------------ splits


def sides(parts: dict[str, tr.Selection], column: str) -> dict[str, set[Any]]:
    return {name: set(np.asarray(part[column][:]).tolist()) for name, part in parts.items()}


SHARES = st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any)


@settings(max_examples=examples(2), deadline=None)
@given(weights=SHARES, seed=st.integers(0, 2**40), by=st.sampled_from([None, "y", "text"]))
def test_every_row_has_one_side_which_growing_does_not_change(
    weights: list[int],
    seed: int,
    by: str | None,
    ds: tr.Dataset,
    grown: tr.Dataset,
) -> None:
    shares = {f"part{at}": each / sum(weights) for at, each in enumerate(weights)}
    before, after = (sides(each.split(shares, by=by, seed=seed), "n") for each in (ds, grown))
    assert sorted(each for side in before.values() for each in side) == NUMBERS.tolist()
    assert all(before[name] <= after[name] for name in shares)
    if by is not None:
        values = list(sides(grown.split(shares, by=by, seed=seed), by).values())
        assert sum(map(len, values)) == len(set.union(*values))


@pytest.fixture(scope="module")
def grown(repo: tr.Repository, ds: tr.Dataset) -> tr.Dataset:
    """The same rows, some in another place, and 100 more."""
    with repo.transaction("grown") as tx:
        tx.restore("datasets/d", ds.commit)
        more = rows(300)
        draft = tx.dataset("d").append({name: each[200:] for name, each in more.items()})
        draft.delete("n > 290").compact(everything=True)
    return repo.dataset("d", "grown")


def test_shares_are_kept_about(grown: tr.Dataset) -> None:
    parts = grown.split({"train": 0.8, "test": 0.2}, seed=5)
    assert abs(len(parts["train"]) / len(grown) - 0.8) < 0.1


@pytest.mark.parametrize(
    ("key", "seed", "text", "share"),
    [("'p7'", 0, "0:p7", 0.09067880301575115), ("7", 1, "1:7", 0.3331684114250333),
     ("NULL", 0, "0:", 0.8289918172836156)],
)  # fmt: skip
def test_the_share_of_a_key_is_the_same_for_ever(
    key: str, seed: int, text: str, share: float, repo: tr.Repository
) -> None:
    (found,) = repo.sql(f"SELECT split_share({key}, {seed}) AS share")
    word = int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:8], "little")
    assert (found["share"], (word >> 11) / 2**53) == (share, share)


@pytest.mark.parametrize(
    ("shares", "by", "told"),
    [
        ({"a": 0.5, "b": 0.4}, None, "add up to 1"),
        ({}, None, "add up to 1"),
        ({"a": 1.5, "b": -0.5}, None, "the share of 'a'"),
        ({"a": 1}, "x", "tensors"),
        ({"a": 1}, "nothing", "no column 'nothing'"),
    ],
)
def test_shares_and_keys_that_make_no_split_are_refused(
    shares: dict[str, float], by: str | None, told: str, tmp_path: Path
) -> None:
    made = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with made.transaction() as tx:
        tx.create_dataset("d", columns={"x": tr.Tensor("float32", (2,))})
    with pytest.raises((tr.InvalidInputError, tr.NotFoundError), match=told):
        made.dataset("d").split(shares, by=by)


def test_a_column_called_row_id_needs_a_key(tmp_path: Path) -> None:
    made = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with made.transaction() as tx:
        tx.create_dataset("d", columns={"row_id": tr.Text()})
    with pytest.raises(tr.InvalidInputError, match="by="):
        made.dataset("d").split({"a": 1})
