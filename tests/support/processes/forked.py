"""Processes that begin at once: forked from one that imported what they need and started nothing.

As with "spawn" what they work on is pickled, but torch and the SDK are imported once for all of
them, instead of two seconds a process.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver, resource_tracker

import pytest

from tensorrepo.cli.main import MODULE_OF

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


class _InheritedServer(forkserver.ForkServer):
    """That of a parent, who alone may wait for it."""

    def ensure_running(self) -> None:
        resource_tracker.ensure_running()


def start_server() -> None:
    """Let it import beside what this process does next, for this one and its forks."""
    kept = [os.dup(stream) for stream in (1, 2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)  # its children would print between the reports of tests
    try:
        forkserver.ensure_running()
    finally:
        for stream, before in zip((1, 2), kept, strict=True):
            os.dup2(before, stream)
            os.close(before)
        os.close(nothing)


def inherit_server() -> None:
    """Go on in a fork with the server of the parent, where that has one."""
    server = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is not None:
        server.__class__ = _InheritedServer


def fork_streams(patch: pytest.MonkeyPatch) -> None:
    """Let processes that make the batches of streams begin at once, instead of by "spawn"."""
    patch.setattr(multiprocessing, "get_context", lambda _start: FORKED)
