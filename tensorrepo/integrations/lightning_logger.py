"""Lightning's logger as a run, without Lightning: what its plug-ins are made of."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from tensorrepo.formats.runs.run_record import FINISHED
from tensorrepo.integrations.run_log import RunLog
from tensorrepo.repository import Repository
from tensorrepo.runs.run import Run

_FAILED: Final = "failed"  # Lightning's word, and ours


class RunLogger:
    """Metrics and hyperparameters of a training become those of a run. Rank 0 records."""

    def __init__(
        self, repository: Repository, run: str | Run, *, resume: bool = False, **options: Any
    ) -> None:
        """Prepare; the run begins when Lightning first tells something.

        Args:
            repository: what has the run.
            run: its name; or a run that a ``with`` has begun, which is then not ended here.
            resume: go on with the run of that name, if there is one: for jobs that are restarted.
            options: options of `Repository.run`, such as `derived_from`.
        """
        super().__init__()
        self._log = RunLog(repository, run, resume=resume, **options)
        self._saved = False  # a checkpoint, since metrics were stored last

    @property
    def name(self) -> str:
        """The run's name."""
        return self._log.name

    @property
    def version(self) -> str:
        """A run has one version: its attempts are told in its record."""
        return ""

    @property
    def experiment(self) -> Any:
        """The `Run`, for what loggers cannot say: ``logger.experiment.log_image(...)``."""
        return self._log.run() if _is_rank_0() else _Nobody()

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log the numbers among metrics."""
        if _is_rank_0():
            self._log.log_metrics(metrics, step)

    def log_hyperparams(
        self,
        params: Mapping[str, Any] | Namespace,
        *_: Any,
        **__: Any,
    ) -> None:
        """Note parameters; of what is no JSON its text."""
        if _is_rank_0():
            self._log.log_params(params)

    def save(self) -> None:
        """Begin the run, if it has not begun. Its thread stores what is logged.

        Behind a checkpoint it is stored at once: who goes on with that has what came before it.
        """
        if _is_rank_0():
            run = self._log.run()
            if self._saved:
                self._saved = False
                run.flush()

    def after_save_checkpoint(self, _: Any) -> None:
        """Lightning logs metrics of the step behind this, and then calls `save`."""
        self._saved = True

    def finalize(self, status: str) -> None:
        """End the run as Lightning says: "success" and "finished", or "failed"."""
        if _is_rank_0():
            self._log.end(_FAILED if status == _FAILED else FINISHED)


class _Nobody:
    """What ranks that do not record talk to: whatever is called does nothing."""

    def __getattr__(self, _: str) -> Any:
        return lambda *_args, **_named: None


def _is_rank_0() -> bool:
    """Whether Lightning counts this process as the first; all its packages ask the same."""
    from lightning_utilities.core.rank_zero import rank_zero_only

    return not getattr(rank_zero_only, "rank", 0)
