"""Repository handle of the SDK: questions about many models, and verbs over all of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tensorrepo import lazy
from tensorrepo.formats.common.arguments import byte_size, flag, listed, path_in, real, text, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tensorrepo.context import Context
    from tensorrepo.datasets.dataset import Dataset
    from tensorrepo.formats.model.maintenance.repack import RepackReport
    from tensorrepo.formats.model.maintenance.usage import SpaceUsage
    from tensorrepo.models.model import Model
    from tensorrepo.verbs.dql import MadeModels, SelectedModels
    from tensorrepo.verbs.evaluate import Evaluation


class RepositoryModels:
    """What a repository does with many models at once. See `Repository`."""

    context: Context

    def evaluate(  # noqa: PLR0913  the one call by which people compare candidates
        self,
        models: Iterable[Model | str] = (),
        *,
        data: Dataset | str,
        metric: Callable[[Any, Any], Any],
        keep: int | str = 1,
        by: str | None = None,
        mode: str = "max",
        train: Callable[[Any, dict[str, Any], Any], Mapping[str, Any]] | None = None,
        train_data: Dataset | str | None = None,
        grid: Mapping[str, Sequence[Any]] | None = None,
        ref: str = "main",
        branch: str = "main",
        name: str = "evaluation",
        version: str | None = None,
        executor: str = "thread",
        workers: int = 1,
        progressive: str | None = None,
        confidence: float = 0.9,
        memory: int | str = "2GiB",
        progress: Callable[[int, int], None] | None = None,
    ) -> Evaluation:
        """Score candidates by a function, each in a run of its own, and keep the best.

        What was scored is known by its run: a second call scores what is new, or what failed. A
        candidate that fails does not stop the others.

        Args:
            models: stored models, or their names at `ref`.
            data: dataset, view or selection to measure on, or the name of a dataset at `ref`.
            metric: function of a model and `data` that gives a number, or numbers by name. A model
                is a mapping of tensors: a `Model`, or what `train` gave.
            keep: number of the best that are kept; or a condition on metrics such as
                ``'m["loss"] < 0.5 and m["accuracy"] > 0.9'``.
            by: metric that orders, where `metric` gives several.
            mode: "max" or "min": which values are good.
            train: function of a stored model (or None), settings and `train_data` that gives the
                tensors of a model. Those that are kept are committed as ``models/NAME/KEY``, those
                that others displace are taken out again.
            train_data: what `train` gets.
            grid: values of settings by name; each combination is tried, with each of the models.
            ref: commit of names.
            branch: branch that trained models are committed to.
            name: what runs and trained models are called by.
            version: text that stands for all that `metric` and `train` are. Functions that use what
                cannot be hashed, such as a module, need it.
            executor: "thread"; or "process", for functions of a module that hold the interpreter.
            workers: number of candidates that are scored at a time.
            progressive: read high bits of all models first, and more where the order is undecided:
                "bounds" computes the metric on intervals, and is sure; "estimates" takes any
                metric, and is as sure as `confidence` says. None: read all of every model.
            confidence: probability, for each single candidate, that bounds by estimates hold.
            memory: bytes of weights that a progressive evaluation keeps for its next round.
            progress: receives candidates that are done, and all.

        Raises:
            InvalidInputError: a function that cannot be identified and no `version`, or a metric of
                which several numbers could order.

        Example:
            ``repo.evaluate(["a", "b"], data="test", metric=accuracy, keep=1).kept[0].metrics``
        """
        request = lazy.EvaluationRequest(
            data,
            metric,
            tuple(listed("models", models)),
            keep,
            by,
            mode,
            train,
            train_data,
            {} if grid is None else grid,
            text("ref", ref),
            text("branch", branch),
            name,
            version,
            executor,
            workers,
            progressive,
            confidence,
            byte_size("memory", memory, 1),
            progress or (lambda _done, _total: None),
        )
        return lazy.evaluate(self.context, request)

    def dql(
        self,
        statement: str,
        *,
        ref: str = "main",
        branch: str = "main",
        message: str | None = None,
        replace: bool = False,
        **evaluation: Any,
    ) -> SelectedModels | MadeModels | Evaluation:
        """Answer or carry out one statement of DQL, ModelHub's query language.

        ``select`` lists models, ``slice`` and ``construct`` commit new ones made of them,
        ``evaluate`` does what `evaluate` does.

        Args:
            statement: see the guide to DQL.
            ref: commit whose models are meant where the statement says no other.
            branch: branch that new models are committed to.
            message: message of that commit; None: the statement.
            replace: whether names of new models may be taken.
            evaluation: arguments of `evaluate` that a statement cannot say: ``data``, ``metric``,
                ``train``, ``progressive`` and the like.

        Raises:
            InvalidInputError: what is wrong, with line and column and what was expected there.
            NotFoundError: nothing is meant by it, or a model lacks a node; nothing was made.
            ConflictError: the name of a new model is taken; nothing was made.

        Example:
            ``repo.dql('select m where m["conv*"].next has POOL("MAX") order by m["loss"]')``
        """
        request = None
        if evaluation:
            evaluation = {"branch": branch, "ref": ref} | evaluation
            if "memory" in evaluation:
                evaluation["memory_bytes"] = byte_size("memory", evaluation.pop("memory"), 1)
            request = lazy.request_of(evaluation)
        return lazy.dql(
            self.context,
            statement,
            ref=text("ref", ref),
            branch=text("branch", branch),
            message=message,
            replace=flag("replace", replace),
            request=request,
        )

    def model_usage(self, ref: str = "main", *, every_ref: bool = False) -> SpaceUsage:
        """What the models of a commit, or of every ref, take: by model, by codec and in all.

        Unique bytes are those that no other of these models reaches. No tensor is read.
        """
        core = self.context.core
        trees = lazy.every_tree(core) if every_ref else {ref: self.context.resolve(ref).commit.tree}
        return lazy.measure_usage(core.objects, lazy.models_at(core, trees))

    def repack_models(
        self,
        paths: Iterable[str] = (),
        *,
        alpha: float = 1.5,
        depth: int = 2,
        dry_run: bool = False,
    ) -> RepackReport:
        """Store models anew, so that they take the fewest bytes; commits stay as they are.

        Args:
            paths: models at these, or below, in all commits; none: all.
            alpha: how many times as much as reading it whole reading a model may cost.
            depth: how many bases a read may pass through.
            dry_run: measure and plan, and store nothing.

        Raises:
            ConflictError: somebody else repacked meanwhile. Nothing changed.
        """
        options = lazy.RepackOptions(
            self.context.author,
            time.time_ns(),
            alpha=real("alpha", alpha, 1),
            depth=whole("depth", depth),
            paths=tuple(path_in("models", name) for name in listed("paths", paths)),
            dry_run=dry_run,
        )
        return lazy.repack_models(self.context.core, options, time.thread_time)
