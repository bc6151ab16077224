"""Plug-ins of `pytorch_lightning`: what `integrations.lightning` has, for that package.

Its base classes are others than those of `lightning`, and each package takes its own alone.
"""

from __future__ import annotations

from pytorch_lightning.loggers import Logger
from pytorch_lightning.plugins import CheckpointIO

from tensorrepo.integrations.lightning_checkpoints import RunCheckpoints
from tensorrepo.integrations.lightning_logger import RunLogger


class PytorchCheckpointIO(RunCheckpoints, CheckpointIO):  # type: ignore[misc]
    """Checkpoints of a `Trainer`, stored in a repository: ``Trainer(plugins=[...])``."""


class PytorchLogger(RunLogger, Logger):  # type: ignore[misc]
    """A logger of a `Trainer` that is a run: ``Trainer(logger=...)``."""
