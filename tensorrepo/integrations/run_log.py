"""Metrics and parameters of libraries that train, as those of a run."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from tensorrepo.formats.common.json import as_plain
from tensorrepo.models.checkpointer import number
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.json_rules import check_json
from tensorrepo.repository import Repository
from tensorrepo.runs.run import Run

_MOST_TEXT: Final = 1000  # characters of what is no JSON
_LEVELS: Final = 8  # that parameters nest


class RunLog:
    """A run that begins when it is first told something, and goes on when it is told more.

    Of a run that a ``with`` has begun it is no more than the voice: it neither begins nor ends it.
    """

    def __init__(
        self, repository: Repository, run: str | Run, *, resume: bool = False, **options: Any
    ) -> None:
        """`options` are those of `Repository.run`, with `resume`."""
        if isinstance(run, Run) and (options or resume):
            raise InvalidInputError(
                f"run {run.name!r} was made already: its options belong there, not here"
            )
        self.resume = resume
        self._repository, self._options = repository, options
        self._given = run if isinstance(run, Run) else None
        self._own: Run | None = None
        self.name = run if isinstance(run, str) else run.name

    @property
    def goes_on(self) -> bool:
        """Whether the run was begun, here or by whoever gave it."""
        return self._given is not None or self._own is not None

    def run(self) -> Run:
        """The run, begun."""
        if self._given is not None:
            return self._given
        if self._own is None:
            run = self._repository.run(self.name, resume=self.resume, **self._options)
            self._own, self.resume = run.start(), True
        return self._own

    def log_params(self, params: Mapping[str, Any] | Namespace) -> None:
        """Note parameters; of what is no JSON its text."""
        told = vars(params) if isinstance(params, Namespace) else params
        self.run().log_params({str(name): plain(value) for name, value in told.items()})

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None) -> None:
        """Log the numbers among `metrics`; what is none is passed over, as loggers do."""
        self.run().log_metrics(numbers_among(metrics), step)

    def end(self, status: str) -> None:
        """End the run, where it was begun here. What goes on later resumes it.

        Args:
            status: "finished"; or "failed", of which the error that is being handled says more.
        """
        run, self._own = self._own, None
        if run is None:
            return
        error = sys.exc_info()[1]
        if status == "failed" and error is not None:
            run.__exit__(type(error), error, None)
        else:
            run.end(status)


def numbers_among(values: Mapping[str, Any]) -> dict[str, float]:
    """Those values that are numbers."""
    found = {}
    for name, value in values.items():
        if isinstance(value, str):
            continue
        try:
            found[str(name)] = number(name, value)
        except InvalidInputError:
            continue
    return found


def plain(value: Any, levels: int = _LEVELS) -> Any:
    """A value as JSON; of what is none, its text."""
    if isinstance(value, Mapping) and levels:
        return {str(key): plain(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and levels:
        return [plain(item, levels - 1) for item in value]
    told = as_plain(value)
    try:
        check_json(told, "")
    except InvalidInputError:
        return str(value).encode("utf-8", "backslashreplace").decode()[:_MOST_TEXT]
    return told
