"""Plug-ins of `lightning`: checkpoints that are stored in a repository, and a logger that is a run.

    from lightning import Trainer
    from tensorrepo.integrations.lightning import RepositoryCheckpointIO, RepositoryLogger

    plugin = RepositoryCheckpointIO(repo, "exp1")
    trainer = Trainer(plugins=[plugin], logger=RepositoryLogger(repo, "exp1", resume=True))
    trainer.fit(module, ckpt_path=plugin.latest())

For the package `pytorch_lightning`, whose base classes are others, see the module of that name.
"""

from __future__ import annotations

from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import CheckpointIO

from tensorrepo.integrations.lightning_checkpoints import RunCheckpoints
from tensorrepo.integrations.lightning_logger import RunLogger


class RepositoryCheckpointIO(RunCheckpoints, CheckpointIO):  # type: ignore[misc]
    """Checkpoints of a `Trainer`, stored in a repository: ``Trainer(plugins=[...])``."""


class RepositoryLogger(RunLogger, Logger):  # type: ignore[misc]
    """A logger of a `Trainer` that is a run: ``Trainer(logger=...)``."""
