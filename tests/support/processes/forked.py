"""Processes that begin at once: forked from one that imported what they need and started nothing.

As with "spawn" what they work on is pickled, but torch and the SDK are imported once for all of
them, instead of two seconds a process.
"""

from __future__ import annotations

import multiprocessing

import pytest

from tensorrepo.cli.command_table import MODULE_OF

FORKED = multiprocessing.get_context("forkserver")
# One list for the whole test process: whoever starts a first child settles it.
FORKED.set_forkserver_preload(
    [
        "PIL.Image",
        "duckdb",
        "numpy.ma",
        "pyarrow.compute",
        "numpy.random",
        "pydantic.plugin._loader",
        "pytest",  # which the modules of tests import that targets come from
        "pyarrow.acero",  # and with it pandas, for which pyarrow looks when it makes an array
        "rich._emoji_codes",
        "rich.progress",
        "rich.table",
        "torch.distributed",
        "torch.utils.data",
        "typer._click.decorators",
        "tensorrepo.catalog.lineage",
        "tensorrepo.catalog.registry",
        "tensorrepo.formats.dataset.merge",
        "tensorrepo.formats.model.merging.three_way",
        "tensorrepo.runs.run",
        "tensorrepo.sdk",
        "tensorrepo.formats.dataset.streaming.stream",
        "tensorrepo.repo.backends.registry",
        "tensorrepo.query.compare.contents",
        *sorted(set(MODULE_OF.values())),
    ]
)


def fork_streams(patch: pytest.MonkeyPatch) -> None:
    """Let processes that make the batches of streams begin at once, instead of by "spawn"."""
    patch.setattr(multiprocessing, "get_context", lambda _start: FORKED)
