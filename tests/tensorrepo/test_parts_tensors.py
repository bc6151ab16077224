"""Two-step writes of models: ranks store tensors and shards, one process commits them, once."""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorrepo as tr
from tensorrepo import parts
from tensorrepo.formats.model.verification import verify_model
from tensorrepo.verbs.part_values import ModelPart
from tests.support.processes.forked import FORKED

ANN = "Ann <ann@example.org>"
RANKS = 4
ROWS, WIDTH = 8, 32_768


def weights(seed: int = 0) -> dict[str, Any]:
    """A model of one large tensor, a bias, and one so small that it stands in the manifest."""
    rng = np.random.default_rng(seed)
    return {
        "w": rng.standard_normal((ROWS, WIDTH)).astype("f4"),
        "bias": rng.standard_normal(WIDTH).astype("f4"),
        "step": np.array([seed], "i8"),
    }


def held(rank: int, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """What a rank has: two rows of the large tensor, and the whole of what all have."""
    first = rank * ROWS // RANKS
    mine = tensors["w"][first : first + ROWS // RANKS]
    return {
        "w": parts.Shard(mine, tensors["w"].shape, (first, 0)),
        "bias": tensors["bias"],
        "step": tensors["step"],
    }


def write(repo: tr.Repository, rank: int, tensors: Mapping[str, Any], **given: Any) -> ModelPart:
    given = {"model": "net", "key": f"1/{rank}"} | given
    return parts.write_tensors(repo, held(rank, tensors), **given)


def leases(repo: tr.Repository) -> list[str]:
    return list(repo.context.core.log.refresh().state.leases)


def equal(found: tr.Model, expected: Mapping[str, Any]) -> bool:
    loaded = found.load()
    return loaded.keys() == expected.keys() and all(
        np.array_equal(loaded[name], expected[name]) for name in expected
    )


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    return tr.init(tmp_path / "store", author=ANN)


def test_shards_of_ranks_become_one_model_once(repo: tr.Repository) -> None:
    tensors = weights()
    told = [write(repo, rank, tensors).to_json() for rank in range(RANKS)]
    again = write(repo, 2, tensors)
    assert len(leases(repo)) == RANKS
    with repo.transaction(message="net") as tx:
        report = tx.save_model_parts("net", [*told, again], metrics={"loss": 0.5})
    assert (report.repeated, report.tensors) == (1, 3)
    model = repo.model("net")
    assert equal(model, tensors)
    assert model.stored.metrics == {"loss": 0.5}
    assert np.array_equal(model.tensor("w")[1:5, :7], tensors["w"][1:5, :7])
    assert verify_model(model.stored).faults == ()
    assert leases(repo) == []


def test_a_commit_that_is_repeated_changes_nothing(repo: tr.Repository) -> None:
    told = [write(repo, rank, weights()) for rank in range(RANKS)]
    with repo.transaction() as tx:
        tx.save_model_parts("net", told)
    with repo.transaction() as tx:
        tx.save_model_parts("net", reversed(told))
    assert tx.commit is None


def test_whole_tensors_of_several_ranks_are_one_model(repo: tr.Repository) -> None:
    tensors = weights()
    told = [
        parts.write_tensors(repo.url, {name: tensor}, model="net", key=name)
        for name, tensor in tensors.items()
    ]
    with repo.transaction() as tx:
        tx.save_model_parts("net", told)
    with repo.transaction() as tx:
        tx.save_model("alone", tensors)
    assert repo.model("net").digest == repo.model("alone").digest


def test_a_rank_may_hold_several_shards_of_a_tensor(repo: tr.Repository) -> None:
    w = weights()["w"]
    boxes = [(rows, columns) for rows, columns in product((0, 4), (0, WIDTH // 2))]
    shards = [
        parts.Shard(w[row : row + 4, column : column + WIDTH // 2], w.shape, (row, column))
        for row, column in boxes
    ]
    told = [
        parts.write_tensors(repo, {"w": some}, model="net", key=key)
        for key, some in (("a", shards[:3]), ("b", shards[3:]))
    ]
    with repo.transaction() as tx:
        tx.save_model_parts("net", told)
    assert equal(repo.model("net"), {"w": w})


def test_the_next_version_is_stored_as_differences_shard_by_shard(repo: tr.Repository) -> None:
    first = weights()
    with repo.transaction() as tx:
        tx.save_model_parts("net", [write(repo, rank, first) for rank in range(RANKS)])
    rng = np.random.default_rng(1)
    second = {
        name: (each * (1 + 1e-6 * rng.standard_normal(each.shape))).astype(each.dtype)
        for name, each in first.items()
    }
    told = [write(repo, rank, second, key=f"2/{rank}") for rank in range(RANKS)]
    raw_bytes = sum(each.nbytes for each in second.values())
    assert sum(each.stored_bytes for each in told) < 0.6 * raw_bytes
    with repo.transaction() as tx:
        tx.save_model_parts("net", told)
    assert equal(repo.model("net"), second)
    assert equal(repo.model("net", ref="main~1"), first)
    assert verify_model(repo.model("net").stored).faults == ()


def test_a_base_is_named_and_is_in_the_lineage(repo: tr.Repository) -> None:
    first, second = weights(), weights()
    second["w"] = np.nextafter(second["w"], np.float32(np.inf))
    with repo.transaction() as tx:
        tx.save_model_parts("net", [write(repo, rank, first) for rank in range(RANKS)])
    base = repo.model("net")
    told = [write(repo, rank, second, model="tuned", base=base) for rank in range(RANKS)]
    with repo.transaction() as tx:
        tx.save_model_parts("tuned", told, base="main:models/net")
    tuned = repo.model("tuned")
    assert [base.digest for base in tuned.stored.packs.placement.chosen] == [
        repo.model("net").digest
    ]
    assert "models/net" in repo.lineage("models/tuned").ancestors().paths
    assert equal(tuned, second)


@given(st.lists(st.integers(0, RANKS - 1), max_size=6), st.randoms(use_true_random=False))
def test_any_retries_and_any_order_give_the_same_model(retries: list[int], chance: Any) -> None:
    repo = tr.init(f"memory://{uuid4()}", author=ANN)
    small = {name: each[..., :64] for name, each in weights().items()}
    told = [write(repo, rank, small) for rank in [*range(RANKS), *retries]]
    chance.shuffle(told)
    with repo.transaction() as tx:
        report = tx.save_model_parts("net", told)
    assert report.repeated == len(retries)
    assert equal(repo.model("net"), small)


# ------------------------------------------------------------------------------ what is refused


def test_a_missing_shard_is_named(repo: tr.Repository) -> None:
    told = [write(repo, rank, weights()) for rank in range(RANKS - 1)]
    with (
        pytest.raises(tr.InvalidInputError, match=r"tensor 'w'.*its 3 pieces"),
        repo.transaction() as tx,
    ):
        tx.save_model_parts("net", told)
    assert not repo.context.core.log.refresh().state.refs


def test_replicas_that_differ_are_refused(repo: tr.Repository) -> None:
    told = [write(repo, rank, weights(seed=rank // 3)) for rank in range(RANKS)]
    said = "tensor 'bias': parts '1/0' and '1/3' hold different values"
    with pytest.raises(tr.InvalidInputError, match=said), repo.transaction() as tx:
        tx.save_model_parts("net", told)


def test_a_key_that_comes_again_with_other_tensors_is_refused(repo: tr.Repository) -> None:
    told = [write(repo, 0, weights()), write(repo, 0, weights(seed=1))]
    with pytest.raises(tr.InvalidInputError, match="'1/0' came twice"), repo.transaction() as tx:
        tx.save_model_parts("net", told)


@pytest.mark.parametrize("offset", [(7, 0), (-1, 0), (0,)])
def test_a_shard_beyond_its_tensor_is_refused(repo: tr.Repository, offset: tuple[int, ...]) -> None:
    w = weights()["w"]
    shard = parts.Shard(w[:2], w.shape, offset)
    with pytest.raises(tr.InvalidInputError, match="is not within it"):
        parts.write_tensors(repo, {"w": shard}, model="net")


def test_the_same_shard_twice_in_a_rank_is_refused(repo: tr.Repository) -> None:
    w = weights()["w"]
    shard = parts.Shard(w[:2], w.shape, (0, 0))
    with pytest.raises(tr.InvalidInputError, match="Give each box once"):
        parts.write_tensors(repo, {"w": [shard, shard]}, model="net")


def test_parts_of_rows_and_of_tensors_are_told_apart(repo: tr.Repository) -> None:
    rows = parts.write(repo, {"x": [1, 2]}, schema={"x": "int64"})
    tensors = write(repo, 0, weights())
    with repo.transaction() as tx:
        with pytest.raises(tr.InvalidInputError, match=r"of rows, expected .*write_tensors"):
            tx.save_model_parts("net", [rows])
        with pytest.raises(tr.InvalidInputError, match="is of tensors, expected"):
            tx.create_dataset("d", columns={"x": "int64"}).append_parts([tensors])
        with pytest.raises(tr.InvalidInputError, match="is no part of tensors"):
            tx.save_model_parts("net", [rows.to_json()])
        tx.abort()
    parts.release(repo, [rows.to_json(), tensors])
    assert leases(repo) == []


def test_a_part_whose_objects_were_collected_is_named(repo: tr.Repository) -> None:
    told = [write(repo, rank, weights()) for rank in range(RANKS)]
    parts.release(repo, told[1:2])
    repo.gc(grace="0s")
    elsewhere = tr.open(repo.url, author=ANN)  # nothing of it is in the memory of this one
    with (
        pytest.raises(tr.CommitExpired, match=r"part '1/1': .*Write the part again"),
        elsewhere.transaction() as tx,
    ):
        tx.save_model_parts("net", told)
    assert write(repo, 1, weights()) == told[1]
    with repo.transaction() as tx:
        tx.save_model_parts("net", told)
    assert equal(repo.model("net"), weights())


def test_a_lease_keeps_parts_until_the_commit(repo: tr.Repository) -> None:
    tensors = weights()
    told = [write(repo, rank, tensors) for rank in range(RANKS)]
    repo.gc(grace="0s")
    with repo.transaction() as tx:
        tx.save_model_parts("net", told, verify="all")
    repo.gc(grace="0s")
    assert equal(repo.model("net"), tensors)


def _packs(repo: tr.Repository) -> list[Path]:
    """Files of the store that hold frames."""
    folder = Path(repo.url.removeprefix("file://"))
    return [each for each in folder.rglob("*") if each.is_file() and each.stat().st_size > 100_000]


def test_damage_in_a_pack_is_found_before_anything_is_committed(repo: tr.Repository) -> None:
    told = [write(repo, rank, weights()) for rank in range(RANKS)]
    pack = _packs(repo)[0]
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    pack.chmod(0o600)
    pack.write_bytes(data)
    with pytest.raises(tr.CorruptError, match="is not what it says"), repo.transaction() as tx:
        tx.save_model_parts("net", told, verify="all")
    assert not repo.context.core.log.refresh().state.refs


def test_a_part_that_lies_about_its_boxes_is_refused(repo: tr.Repository) -> None:
    told = [write(repo, rank, weights()) for rank in range(RANKS)]
    other = msgspec.structs.replace(told[0], key="1/9")
    with pytest.raises(tr.CorruptError, match="was stored as '1/0'"), repo.transaction() as tx:
        tx.save_model_parts("net", [other, *told[1:]])


def test_a_part_of_another_repository_is_refused(repo: tr.Repository, tmp_path: Path) -> None:
    other = tr.init(tmp_path / "other", author=ANN)
    told = write(other, 0, weights())
    with (
        pytest.raises(tr.InvalidInputError, match="was written to repository"),
        repo.transaction() as tx,
    ):
        tx.save_model_parts("net", [told])


# ------------------------------------------------------------------------------ killed ranks


def _rank(repo: tr.Repository, rank: int, folder: Path, fate: int) -> None:
    """A rank that is killed at most once: before it stores, amid it, or after it stored."""
    mark = folder / f"{rank}"
    dies = fate if not mark.exists() else -1
    mark.touch()
    if dies == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    tensors = held(rank, weights())
    if dies == 1:  # some of it
        parts.write_tensors(repo, {"bias": tensors["bias"]}, model="net", key=f"1/{rank}/less")
        os.kill(os.getpid(), signal.SIGKILL)
    part = parts.write_tensors(repo, tensors, model="net", key=f"1/{rank}")
    (folder / f"{rank}.json").write_text(part.to_json())
    if dies == 2:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.soak
def test_ranks_that_are_killed_and_started_again_give_the_model_of_one_process(
    repo: tr.Repository, tmp_path: Path
) -> None:
    fates = dict(enumerate(np.random.default_rng(0).permutation([0, 1, 2, 3]).tolist()))
    for _ in range(2):
        ranks = [
            FORKED.Process(target=_rank, args=(repo, rank, tmp_path, fate))
            for rank, fate in fates.items()
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    told = [(tmp_path / f"{rank}.json").read_text() for rank in range(RANKS)]
    with repo.transaction() as tx:
        tx.save_model_parts("net", told)
    assert equal(repo.model("net"), weights())
    alone = tr.init(tmp_path / "alone", author=ANN)
    with alone.transaction() as tx:
        tx.save_model_parts("net", [write(alone, rank, weights()) for rank in range(RANKS)])
    assert repo.model("net").digest == alone.model("net").digest


def test_a_part_is_plain_json_and_pickles(repo: tr.Repository) -> None:
    part = write(repo, 0, weights())
    told = json.loads(part.to_json())
    assert told["kind"] == "tensors"
    assert set(told) == {
        "repository", "key", "root", "placement", "tensors", "bytes", "lease", "kind", "version",
    }  # fmt: skip
    assert pickle.loads(pickle.dumps(part)) == part == ModelPart.from_json(part.to_json())
    assert replace(parts.Shard(1, (1,), (0,)), tensor=2).tensor == 2
