"""Callback of Hugging Face's `Trainer`: its checkpoints and metrics become those of a run.

    from tensorrepo.integrations.transformers import RepositoryCallback

    callback = RepositoryCallback(repo, "exp1")
    trainer = Trainer(model, arguments, train_dataset=..., callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.restore(arguments.output_dir))

`Trainer` writes a folder for each checkpoint. Its weights and the optimizer's state are stored as
tensors, against those of the checkpoint before; every other file as it is, once. `restore` makes a
folder of them that `Trainer` resumes from, on whatever machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from transformers import TrainerCallback

from tensorrepo.formats.exchange.output import new_folder
from tensorrepo.formats.model.state.lossy import LossyState
from tensorrepo.formats.runs.run_record import FINISHED
from tensorrepo.integrations.run_log import RunLog, numbers_among
from tensorrepo.models.checkpointer import Checkpointer, RetentionPolicy
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repository import Repository
from tensorrepo.runs.run import Run

_FOLDER: Final = "checkpoint-{}"  # as Trainer names and finds them
_WEIGHTS: Final = ".safetensors"
_OPTIMIZER: Final = "optimizer.pt"
_MOST_FILE_BYTES: Final = 1 << 30  # of files that are no weights, in all


class RepositoryCallback(TrainerCallback):  # type: ignore[misc]
    """Commits what a `Trainer` saves and logs. In a job of several ranks the first one does."""

    def __init__(
        self,
        repository: Repository,
        run: str | Run,
        *,
        keep: RetentionPolicy | None = None,
        optimizer: LossyState | None = None,
        resume: bool = False,
        **options: Any,
    ) -> None:
        """Prepare; the run begins when the training does.

        Args:
            repository: what has the run and its checkpoints.
            run: its name; or a run that a ``with`` has begun, which is then not ended here.
            keep: which checkpoints stay; None: the last 3. What lies in `output_dir` is up to
                ``save_total_limit``.
            optimizer: ``tr.LossyState(relative=2**-8)`` keeps moments in fewer bits.
            resume: go on with the run of that name, if there is one; it is so where `restore`
                found a checkpoint.
            options: options of `Repository.run`, such as `derived_from`.
        """
        self._repository = repository
        self._kept: dict[str, Any] = {"keep": keep, "optimizer": optimizer}
        self._run = run
        self._log = RunLog(repository, run, resume=resume, **options)
        self._checkpointer: Checkpointer | None = None
        self._newest: tuple[int, dict[str, float]] = (-1, {})

    def restore(self, output_dir: str | Path, step: int | None = None) -> str | None:
        """Write a checkpoint into a folder as `Trainer` does; gives what to resume from.

        Args:
            output_dir: that of the training; what is there of the same step is replaced.
            step: which; None: the newest.

        Returns:
            Path of the checkpoint's folder; None where the run has none.

        Raises:
            NotFoundError: no checkpoint of that step.
            InvalidInputError: `Trainer` did not save it.
        """
        checkpointer = self._made()
        step = checkpointer.latest() if step is None else step
        if step is None:
            return None
        state = checkpointer.load(step)
        target = Path(output_dir) / _FOLDER.format(step)
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(target, overwrite=True) as folder:
            _write(state, folder, f"step {step} of run {checkpointer.run!r}")
        self._log.resume = True
        return str(target)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Begin the run, and note its parameters."""
        if not state.is_world_process_zero:
            return
        self._log.log_params(args.to_sanitized_dict())
        config = getattr(given.get("model"), "config", None)
        if config is not None and hasattr(config, "to_dict"):
            self._log.log_params({"model": config.to_dict()})

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Log metrics."""
        if not self._log.goes_on or not state.is_world_process_zero:
            return  # an evaluation by itself would begin a run that nothing ends
        numbers = numbers_among(logs or {})
        step, known = self._newest
        self._newest = (
            state.global_step,
            {**known, **numbers} if step == state.global_step else numbers,
        )
        self._log.log_metrics(numbers, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Commit the checkpoint that `Trainer` wrote just now, while training goes on.

        Raises:
            InvalidInputError: it has files of some other kind of training, or very large ones.
            Error: an earlier checkpoint could not be stored.
        """
        _wait_for_all()  # each rank writes files of its own
        if not state.is_world_process_zero:
            return
        if self._log.goes_on:
            self._log.run().flush()  # who goes on with this checkpoint has what came before it
        folder = Path(args.output_dir) / _FOLDER.format(state.global_step)
        step, metrics = self._newest
        self._made().save(
            state.global_step,
            _read(folder, given.get("optimizer")),
            metrics=metrics if step == state.global_step else {},
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Wait until all is stored, and end the run."""
        if self._checkpointer is not None:
            self._checkpointer.wait()
        self._log.end(FINISHED)

    def _made(self) -> Checkpointer:
        if self._checkpointer is None:
            if isinstance(self._run, Run):
                self._checkpointer = self._run.checkpointer(**self._kept)
            else:
                self._checkpointer = self._repository.checkpointer(self._run, **self._kept)
        return self._checkpointer


def _read(folder: Path, optimizer: Any) -> dict[str, Any]:
    """A checkpoint's folder as a state: weights and the optimizer as tensors, files as bytes."""
    weights: dict[str, Any] = {}
    files: dict[str, Any] = {}
    state: dict[str, Any] = {"weights": weights, "files": files}
    size = 0
    for name, place in _files(folder):
        if place.suffix == _WEIGHTS:
            weights[name] = _safetensors(place)
        elif name == _OPTIMIZER and optimizer is not None:
            state["optimizer"] = optimizer.state_dict()
        else:
            size += place.stat().st_size
            if size > _MOST_FILE_BYTES:
                raise InvalidInputError(
                    f"{folder.name}: its files that are no safetensors take more than "
                    f"{_MOST_FILE_BYTES >> 30} GiB, up to {name}: save with save_safetensors, and "
                    "states that are sharded through tensorrepo.dcp"
                )
            files[name] = np.fromfile(place, np.uint8)
    if not weights:
        raise InvalidInputError(
            f"{folder}: no *{_WEIGHTS} in it, so its weights would be stored as bytes: models of "
            "FSDP and DeepSpeed in shards are saved through tensorrepo.dcp"
        )
    return state


def _safetensors(place: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(place, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no dict
        return {"tensors": tensors, "metadata": file.metadata() or {}}


def _write(state: Mapping[str, Any], folder: Path, what: str) -> None:
    import torch
    from safetensors.torch import save_file

    if not state.keys() >= {"weights", "files"}:
        raise InvalidInputError(f"{what} was not saved by this callback: it has {sorted(state)}")
    for name, file in state["weights"].items():
        save_file(file["tensors"], _inside(folder, name), metadata=file["metadata"])
    for name, content in state["files"].items():
        content.tofile(_inside(folder, name))
    if "optimizer" in state:
        torch.save(state["optimizer"], folder / _OPTIMIZER)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for place in sorted(folder.rglob("*")):
        if place.is_file():
            yield place.relative_to(folder).as_posix(), place


def _inside(folder: Path, name: str) -> Path:
    """Where a file of a stored checkpoint goes: never outside of its folder."""
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
        raise CorruptError(f"a checkpoint has a file {name!r:.200}, which leads out of its folder")
    target = folder.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _wait_for_all() -> None:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
