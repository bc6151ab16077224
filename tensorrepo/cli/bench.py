"""Emulated trainings and checkpoints against a store, before anybody trains on it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Argument, Exit, Option

from tensorrepo.cli import output
from tensorrepo.cli.exit_codes import NOTHING_TO_DO
from tensorrepo.cli.options import CommandCall
from tensorrepo.formats.common.arguments import byte_size
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.tables import bytes_text
from tensorrepo.sdk import open_repository
from tensorrepo.workloads.bench import (
    CheckpointResult,
    TrainingResult,
    data_for,
    run_checkpoints,
    run_training,
)
from tensorrepo.workloads.data import DATASET
from tensorrepo.workloads.dlio_files import DlioWorkload, export_workload
from tensorrepo.workloads.place import BenchPlace, bench_place
from tensorrepo.workloads.plans import (
    BenchOptions,
    CheckpointPlan,
    TrainingPlan,
    plan_checkpoints,
    plan_training,
)
from tensorrepo.workloads.published import (
    UNNAMED,
    WORKLOADS,
    TrainingWorkload,
    Workload,
    workload_named,
)
from tensorrepo.workloads.report import Spread
from tensorrepo.workloads.summary import dlio_summary

_SIZE: Final = "4GiB"
_LONG_SECONDS: Final = 60


def bench_command(
    call: CommandCall,
    store: Annotated[str, Argument(metavar="STORE", help="A folder, or the URL of a store.")],
    workload: Annotated[
        str | None, Option("--workload", help=f"One of {', '.join(WORKLOADS)}.")
    ] = None,
    accelerator: Annotated[
        str | None, Option("--accelerator", help="Emulate this one: h100 or a100.")
    ] = None,
    accelerators: Annotated[
        int, Option("--accelerators", min=1, max=1024, help="How many, each a process.")
    ] = 1,
    size: Annotated[str, Option("--size", help="Bytes of data at most.")] = _SIZE,
    epochs: Annotated[
        int | None, Option("--epochs", min=1, help="How often to go through it.")
    ] = None,
    most_steps: Annotated[
        int | None, Option("--most-steps", min=2, help="End each epoch after so many steps.")
    ] = None,
    batch_size: Annotated[
        int | None, Option("--batch-size", min=1, help="Samples of a step of one accelerator.")
    ] = None,
    read_threads: Annotated[
        int | None,
        Option("--read-threads", min=1, max=256, help="Threads that read for one accelerator."),
    ] = None,
    step_seconds: Annotated[
        float | None,
        Option("--step-seconds", min=0, help="Computing time of a step, or before a checkpoint."),
    ] = None,
    checkpoints: Annotated[
        int | None, Option("--checkpoints", min=1, help="How many to save, and then to load.")
    ] = None,
    seed: Annotated[int | None, Option(help="Of the order; else another one each time.")] = None,
    warm: Annotated[
        bool, Option("--warm", help="Read all data once before each epoch: measure memory.")
    ] = False,
    keep_data: Annotated[
        bool, Option("--keep-data", help="Leave the data there, for the next time.")
    ] = False,
    to: Annotated[
        str | None, Option("--to", metavar="FILE", help="Write a summary as DLIO does.")
    ] = None,
    dlio: Annotated[
        str | None,
        Option("--dlio", metavar="FOLDER", help="Make data and a workload for DLIO; run nothing."),
    ] = None,
    must_pass: Annotated[
        bool, Option("--must-pass", help="End with 1 when accelerators wait for too long.")
    ] = False,
    clean: Annotated[
        bool, Option("--clean", help="Remove what benchmarks left in the store, and run nothing.")
    ] = False,
) -> None:
    """Emulate a published training against a store, and report how busy accelerators would be.

    Data of the workload's shape is made in a folder of its own, streamed by emulated accelerators,
    which sleep for as long as a real one computes, and removed again. Parameters are those of
    MLPerf Storage and DLIO, and so is the report: accelerator utilisation (AU), samples/s, MiB/s.
    The workload `checkpoint` saves and loads the shards of a model.

    Before each epoch the system is asked to drop what it holds of a local store in memory; how much
    it still holds is measured, and told.

    Examples:
        tensorrepo bench /data --workload resnet50 --accelerators 2 --size 20GB
        tensorrepo bench s3://bucket/bench --workload unet3d --accelerator a100 --keep-data
        tensorrepo bench s3://bucket/bench --workload checkpoint --to summary.json
        tensorrepo bench /data --workload resnet50 --dlio job
        tensorrepo bench /data --clean
    """
    place = bench_place(store, call.machine)
    if clean:
        if workload is not None:
            raise InvalidInputError("--clean removes what is there: leave --workload out")
        _clean(call, place)
        return
    if workload is None:
        raise InvalidInputError(f"say which --workload: one of {', '.join(WORKLOADS)}")
    options = BenchOptions(
        accelerator=accelerator,
        accelerators=accelerators,
        size_bytes=byte_size("--size", size, 1),
        epochs=epochs,
        most_steps=most_steps,
        batch_size=batch_size,
        read_threads=read_threads,
        step_seconds=step_seconds,
        checkpoints=checkpoints,
        seed=secrets.randbits(32) if seed is None else seed,
        warm=warm,
        keep_data=keep_data,
    )
    chosen = workload_named(workload)
    if dlio is not None:
        _export(call, place, chosen, options, call.path(dlio))
        return
    if to is not None and not call.path(to).parent.is_dir():
        raise InvalidInputError(f"--to {to}: there is no folder {call.path(to).parent}")
    try:
        result = _run(place, chosen, options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"nothing half made is left in {place.url}") from None
    if to is not None:
        call.path(to).write_text(json.dumps(dlio_summary(result), indent=4) + "\n")
        output.note(f"wrote {to}")
    call.answer(_document(result), *_lines(result))
    if must_pass and isinstance(result, TrainingResult) and not result.passed:
        raise Exit(NOTHING_TO_DO)


def _run(
    place: BenchPlace, workload: Workload, options: BenchOptions
) -> TrainingResult | CheckpointResult:
    if isinstance(workload, TrainingWorkload):
        training = plan_training(workload, options)
        _tell_length(training)
        with output.write_progress(workload.name) as tell:
            return run_training(place, training, options, tell)
    saves = plan_checkpoints(workload, options)
    _tell_length(saves)
    with output.write_progress(workload.name) as tell:
        return run_checkpoints(place, saves, options, tell)


def _tell_length(plan: TrainingPlan | CheckpointPlan) -> None:
    if plan.least_seconds < _LONG_SECONDS:
        return
    shorter = "--checkpoints" if isinstance(plan, CheckpointPlan) else "--epochs, --most-steps"
    output.note(
        f"the emulated computation alone takes {_duration(plan.least_seconds)}; {shorter} and "
        "--step-seconds make it shorter"
    )


def _clean(call: CommandCall, place: BenchPlace) -> None:
    found = place.there()
    for each in found:
        place.remove(each.name)
    removed = sum(each.stored_bytes for each in found)
    names = [each.name for each in found]
    call.answer(
        {"url": place.url, "removed": names, "bytes": removed},
        f"removed {output.counted(len(found), 'benchmark')}, {bytes_text(removed)}",
    )


def _export(
    call: CommandCall, place: BenchPlace, workload: Workload, options: BenchOptions, folder: Path
) -> None:
    if not isinstance(workload, TrainingWorkload):
        raise InvalidInputError(f"DLIO reads datasets by the plug-in, and no {workload.name}")
    plan = plan_training(workload, options)
    with output.write_progress(workload.name) as tell:
        name, _ = data_for(place, plan.shape, tell)
        config = export_workload(
            open_repository(place.url_of(name)).dataset(DATASET),
            folder,
            DlioWorkload(
                name=workload.name,
                batch_size=plan.batch_size,
                step_seconds=plan.step_seconds,
                epochs=plan.epochs,
                # DLIO shares samples of a rank out among its threads, and each needs one.
                read_threads=min(plan.read_threads, plan.shape.samples // plan.accelerators),
                rows_of_sample=plan.shape.rows_of_sample,
                sample_bytes=plan.shape.data_bytes // plan.shape.samples,
                least_utilization=workload.least_utilization,
            ),
            lambda done, total: tell(done, total, "samples"),
        )
    command = f"dlio_benchmark --config-dir {config.parent.parent} workload={workload.name}"
    call.answer(
        {"url": place.url_of(name), "config": str(config), "command": command},
        f"wrote {config}; the data stays at {place.url_of(name)}",
        f"run: {command}",
    )


# ------------------------------------------------------------------------------ answers


def _document(result: TrainingResult | CheckpointResult) -> dict[str, Any]:
    """A result as JSON: what was emulated, what came of it, each epoch or checkpoint."""
    if isinstance(result, TrainingResult):
        training = result.plan
        return {
            "workload": training.workload.name,
            "source": training.workload.source,
            "accelerator": training.accelerator,
            "accelerators": training.accelerators,
            "batch_size": training.batch_size,
            "read_threads": training.read_threads,
            "steps": training.steps,
            "step_seconds": training.step_seconds,
            "samples": training.shape.samples,
            "data_bytes": result.data_bytes,
            "url": result.url,
            "made_seconds": result.made_seconds,
            "utilization": asdict(result.utilization),
            "least_utilization": 100 * training.workload.least_utilization,
            "passed": result.passed,
            "samples_per_second": asdict(result.samples_per_second),
            "mib_per_second": asdict(result.mib_per_second),
            "epochs": [asdict(each) for each in result.epochs],
            "caveats": list(result.caveats),
        }
    plan = result.plan
    return {
        "workload": plan.workload.name,
        "source": plan.workload.source,
        "model": plan.workload.model,
        "accelerators": plan.ranks,
        "of_ranks": plan.of_ranks,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "tensors": len(plan.workload.shard(plan.of_ranks)) * plan.ranks,
        "stored_bytes": result.stored_bytes,
        "url": result.url,
        "save_seconds": asdict(result.save_seconds),
        "save_gib_per_second": asdict(result.save_gib_per_second),
        "load_seconds": asdict(result.load_seconds),
        "load_gib_per_second": asdict(result.load_gib_per_second),
        "checkpoints": [asdict(each) for each in result.checkpoints],
        "caveats": list(result.caveats),
    }


def _lines(result: TrainingResult | CheckpointResult) -> Iterator[str]:
    """A result for people."""
    if isinstance(result, TrainingResult):
        yield from _training_lines(result)
    else:
        yield from _checkpoint_lines(result)
    yield from (f"note: {caveat}" for caveat in result.caveats)
    yield f"parameters: {result.plan.workload.source}"


def _training_lines(result: TrainingResult) -> Iterator[str]:
    plan = result.plan
    kind = "" if plan.accelerator == UNNAMED else f" {plan.accelerator}"
    emulated = f"{plan.accelerators} emulated{kind} accelerator" + "s" * (plan.accelerators > 1)
    yield (
        f"{plan.workload.name} on {emulated}: {plan.steps} steps of {plan.batch_size} samples, "
        f"each with {plan.step_seconds:g} s of computation"
    )
    how = "was there" if result.made_seconds is None else f"made in {result.made_seconds:.1f} s"
    yield (
        f"data: {plan.shape.samples:,} samples, {bytes_text(result.data_bytes)}, {how}, "
        f"{result.url}"
    )
    headings = ["epoch", ">AU %", ">samples/s", ">MiB/s", ">first batch s", ">seconds", "cache"]
    rows = [
        [
            str(each.epoch),
            f"{each.utilization:.2f}",
            f"{each.samples_per_second:,.1f}",
            f"{each.mib_per_second:,.1f}",
            f"{each.first_batch_seconds:.3f}",
            f"{each.seconds:.2f}",
            _cache_text(each.cache, each.cached_share),
        ]
        for each in result.epochs
    ]
    yield from output.data_lines(headings, rows)
    yield (
        f"AU {_spread_text(result.utilization)} %, {_spread_text(result.samples_per_second)} "
        f"samples/s, {_spread_text(result.mib_per_second)} MiB/s"
    )
    least = 100 * plan.workload.least_utilization
    verdict = "passed" if result.passed else "failed"
    yield f"{verdict}: the published least is AU {least:g} %"


def _checkpoint_lines(result: CheckpointResult) -> Iterator[str]:
    plan = result.plan
    yield (
        f"checkpoints of {plan.workload.model}: {output.counted(plan.ranks, 'rank')} of a job of "
        f"{plan.of_ranks}, {bytes_text(plan.checkpoint_bytes)} each, stored "
        f"{bytes_text(result.stored_bytes)} in all, {result.url}"
    )
    headings = ["checkpoint", ">save s", ">save GiB/s", ">load s", ">load GiB/s", "cache"]
    rows = [
        [
            str(each.number),
            f"{each.save_seconds:.3f}",
            f"{each.save_gib_per_second:.3f}",
            f"{each.load_seconds:.3f}",
            f"{each.load_gib_per_second:.3f}",
            _cache_text(each.cache, each.cached_share),
        ]
        for each in result.checkpoints
    ]
    yield from output.data_lines(headings, rows)
    yield (
        f"save {_spread_text(result.save_gib_per_second)} GiB/s, "
        f"load {_spread_text(result.load_gib_per_second)} GiB/s"
    )


def _spread_text(values: Spread) -> str:
    return f"{values.mean:,.2f} (± {values.stdev:,.2f})"


def _cache_text(cache: str, share: float | None) -> str:
    return cache if share is None else f"{cache}, {share:.0%} held"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
