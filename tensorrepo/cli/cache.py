"""Caches of this machine at the terminal: what they hold, less of it, and pages fetched early."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import (
    ColumnsOption,
    CommandCall,
    RepoCall,
    WhereOption,
    column_names,
    complete_place,
)
from tensorrepo.cli.remotes import LimitRate
from tensorrepo.cli.sdk_handle import streamed_handle
from tensorrepo.formats.common.arguments import byte_size
from tensorrepo.formats.dataset.streaming.options import Loading, Ranks, Sampling
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.verbs.caches import HeldBytes, held_bytes, machine_caches, trim_caches

CacheDirOption = Annotated[
    str | None, Option("--cache-dir", metavar="DIR", help="This cache, not the usual ones.")
]


def cache_ls_command(call: CommandCall, cache_dir: CacheDirOption = None) -> None:
    """List what the caches of this machine hold, by the repository that it was kept for.

    Nothing in them is needed: what is gone is fetched or made again. Processes share them, and each
    stays below `cache.limit` by itself.

    Examples:
        tensorrepo cache ls
        tensorrepo cache ls --cache-dir /scratch/pages --json
    """
    held = held_bytes(machine_caches(call.machine, cache_dir))
    now = time.time()

    def age(each: HeldBytes) -> str:
        return output.age_text(max(0.0, now - each.newest))

    columns = {
        "cache": "cache",
        "repository": lambda each: each.origin or "(not noted)",
        ">files": lambda each: f"{each.files:,}",
        ">bytes": lambda each: output.bytes_text(each.bytes),
        "used ago": age,
        "oldest": lambda each: output.age_text(max(0.0, now - each.oldest)),
    }
    call.show(held, columns, empty="the caches of this machine are empty")


def cache_trim_command(
    call: CommandCall,
    size: Annotated[str, Argument(metavar="SIZE", help="What is left at most: 10GB.")],
    of: Annotated[
        str | None,
        Option("--of", metavar="URL", help="Only what was kept for this repository."),
    ] = None,
    cache_dir: CacheDirOption = None,
) -> None:
    """Delete what is worth least in the caches of this machine, until they take SIZE together.

    What was not used for longest goes first; of the pages of streams a fixed part stays.

    Examples:
        tensorrepo cache trim 10GB
        tensorrepo cache trim 0 --of s3://bucket/team
    """
    to_bytes = byte_size("SIZE", size)
    caches = machine_caches(call.machine, cache_dir)
    if of is not None and not any(of == each.origin for each in held_bytes(caches)):
        raise InvalidInputError(
            f"--of {of}: nothing was kept for it. `tensorrepo cache ls` lists the repositories"
        )
    gone = trim_caches(caches, to_bytes, of)
    files = sum(each.files for each in gone.values())
    freed = sum(each.bytes for each in gone.values())
    call.answer(
        {
            "files": files,
            "bytes": freed,
            "caches": {name: each._asdict() for name, each in gone.items()},
        },
        f"deleted {output.counted(files, 'file')}, {output.bytes_text(freed)}",
    )


def cache_warm_command(
    call: RepoCall,
    entry: Annotated[
        str,
        Argument(metavar="[REF:]DATASET", help="A dataset or view.", autocompletion=complete_place),
    ],
    columns: ColumnsOption = None,
    where: WhereOption = None,
    shard: Annotated[
        str | None,
        Option("--shard", metavar="R/N", help="What rank R of N reads in the epoch, not all."),
    ] = None,
    epoch: Annotated[int, Option(min=0, help="Whose share, with --shard.")] = 0,
    seed: Annotated[int, Option(help="Of the order.")] = 0,
    batch_size: Annotated[int, Option(min=1, help="Rows of a batch of all ranks.")] = 256,
    cache_dir: CacheDirOption = None,
    limit_rate: LimitRate = None,
) -> None:
    """Fetch what a stream of a remote dataset will read, before it is read.

    Pages are verified as they come, and kept on this machine's disk up to `cache.limit`. What is
    there is not fetched again, so a command that was cut off goes on when it is repeated. All ranks
    together read every page in every epoch; with --shard, what one rank reads follows from epoch,
    seed and batch size, which are then to be those of the training.

    Examples:
        tensorrepo cache warm photos
        tensorrepo cache warm v1:photos --columns image,label --limit-rate 50MB
        tensorrepo cache warm photos --shard 0/8 --epoch 3 --batch-size 2048
    """
    ranks = Ranks(rank=0, world_size=1) if shard is None else _ranks(shard)
    place = None if cache_dir is None else str(call.path(cache_dir))
    stream = streamed_handle(call, entry).stream(
        batch_size=batch_size,
        columns=column_names(columns),
        seed=seed,
        sampling=Sampling(where=where),
        ranks=ranks,
        last="pad",
        loading=Loading(cache_dir=place),
    )
    stream.set_epoch(epoch)
    with output.progress(f"warming {entry}") as advance:
        report = stream.warm(limit_rate=limit_rate, progress=advance)
    call.answer(asdict(report), str(report))


def _ranks(shard: str) -> Ranks:
    rank, slash, count = shard.partition("/")
    if not slash or not rank.isdecimal() or not count.isdecimal() or int(rank) >= int(count):
        raise InvalidInputError(f"--shard {shard!r}: expected R/N with R from 0 to below N: 0/8")
    return Ranks(rank=int(rank), world_size=int(count))
