"""Published parameters, and shards of a transformer as DLIO cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.workloads.published import (
    UNNAMED,
    WORKLOADS,
    CheckpointWorkload,
    TrainingWorkload,
    accelerator_of,
    workload_named,
)

GIB = 1 << 30


@pytest.fixture
def llama() -> CheckpointWorkload:
    found = workload_named("checkpoint")
    assert isinstance(found, CheckpointWorkload)
    return found


def test_a_checkpoint_has_the_published_parameters_and_bytes(llama: CheckpointWorkload) -> None:
    # MLPerf Storage v2.0, Submission_guidelines.md, table 2: "8B", "105 GB"
    assert llama.parameters == 8_030_261_248
    assert round(llama.ranks * llama.shard_bytes(llama.ranks) / GIB) == 105


def test_a_shard_has_a_share_of_each_layer_and_of_three_optimizer_groups(
    llama: CheckpointWorkload,
) -> None:
    shard = llama.shard(8)
    assert shard["layer0.0"] == ("float16", 128_256 * 4096 // 8)
    assert shard["layer32.5"] == ("float16", 4096 * 14_336 // 8)
    assert shard["optimizer.4"] == ("float32", llama.parameters // 8)
    assert shard["optimizer.5"] == ("float32", 5 * 4096)
    assert len(shard) == 1 + 32 * 6 + 2 + 6


@given(held=st.integers(1, 16), budget=st.integers(32 << 20, 1 << 40))
def test_shards_stay_within_a_budget_and_are_no_smaller_than_they_must_be(
    held: int, budget: int
) -> None:
    llama = workload_named("checkpoint")
    assert isinstance(llama, CheckpointWorkload)
    ranks = llama.ranks_within(held, budget)
    assert held * llama.shard_bytes(ranks) <= budget
    assert ranks == max(llama.ranks, held) or held * llama.shard_bytes(ranks * 9 // 10) > budget


def test_a_budget_that_holds_no_shard_is_refused(llama: CheckpointWorkload) -> None:
    with pytest.raises(InvalidInputError, match="a larger --size, or fewer --checkpoints"):
        llama.ranks_within(1, 200_000)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_names_the_file_that_its_numbers_are_of(name: str) -> None:
    assert f"commit {'caa90c9' if 'MLPerf' in WORKLOADS[name].source else 'e1919d7'}" in (
        WORKLOADS[name].source
    )
    assert ".yaml" in WORKLOADS[name].source


@pytest.mark.parametrize(
    ("workload", "accelerator", "seconds"),
    [
        ("resnet50", None, 0.224),
        ("resnet50", "a100", 0.435),
        ("unet3d", "h100", 0.323),
        ("unet3d", "a100", 0.636),
        ("dlrm", None, 0.064296),
        ("llm", None, 2.44),
    ],
)
def test_an_accelerator_computes_for_the_published_time(
    workload: str, accelerator: str | None, seconds: float
) -> None:
    found = workload_named(workload)
    assert isinstance(found, TrainingWorkload)
    assert found.step_seconds[accelerator_of(found, accelerator)] == seconds


@pytest.mark.parametrize(
    ("workload", "told"), [("resnet50", "there are h100, a100"), ("llm", "leave --accelerator out")]
)
def test_an_accelerator_without_a_published_time_is_refused(workload: str, told: str) -> None:
    found = workload_named(workload)
    assert isinstance(found, TrainingWorkload)
    with pytest.raises(InvalidInputError, match=told):
        accelerator_of(found, "v100")
    with pytest.raises(InvalidInputError):
        accelerator_of(found, UNNAMED if workload == "resnet50" else "h100")


def test_a_workload_that_nobody_published_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="there are resnet50, unet3d, dlrm"):
        workload_named("bert")
