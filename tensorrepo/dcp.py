"""Storage of `torch.distributed.checkpoint` in a repository.

Each rank stores its shards and says what it stored; the coordinator joins that into one model and
commits it, as the checkpointer does: at ``runs/<run>/<step>``. A checkpoint saved by some ranks is
loaded by any number of others, or by one process through the checkpointer.

    save(state, repo, "exp1", step)
    load(state, repo, "exp1")

which stand for torch's own calls, where other arguments of those are wanted:

    dcp.save(state, storage_writer=Writer(repo, "exp1", step), planner=SavePlanner())
    dcp.load(state, storage_reader=Reader(repo, "exp1"), planner=LoadPlanner())

Torch flattens a state: a tensor's name is its path, in which every key is text, and dicts that hold
nothing are gone. An optimizer's state has numbers as keys, and is no such state without an empty
`state`. So each rank says which keys were no text, and where nothing was.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any, Final, Generic, TypeVar

import numpy as np
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, WriteItem
from torch.distributed.checkpoint.planner import LoadPlanner as AnyLoadPlanner
from torch.distributed.checkpoint.planner import SavePlanner as AnySavePlanner

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.common.tensors import TORCH_NAMES, tensor_of
from tensorrepo.formats.model.state.lossy import (
    LossyState,
    Shortened,
    lossy_edge,
    moments,
    shorten,
)
from tensorrepo.formats.model.state.state_dict import put_together, take_apart
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.base_choice import Prediction
from tensorrepo.formats.model.write.shards import TensorShard, join_shards, shard_name, store_shards
from tensorrepo.formats.runs.run_record import check_run_name
from tensorrepo.models.checkpointer import (
    STATE_PATH,
    RetentionPolicy,
    against_newest,
    checked_step,
    commit_checkpoint,
    find_step,
    numbers_of,
    predicted,
    read_history,
    ref_of,
    state_entry,
    warn_if_approximate,
)
from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.changes.transaction import begin_beside
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError, NotFoundError, UnsupportedError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repository import Repository

Path = tuple[str | int, ...]  # as torch writes it: numbers are places in lists
_KEYS: Final = (bool, int, float, bytes, type(None))  # other keys that are no text become text


@dataclass(frozen=True, slots=True)
class Untold:
    """What the paths of a state do not tell.

    `keys` are those that are no text, by the paths that end in them; `empty` are the paths of
    dicts that hold nothing.
    """

    keys: dict[Path, Any] = field(default_factory=dict)
    empty: dict[Path, None] = field(default_factory=dict)


def untold(state: Mapping[Any, Any]) -> Untold:
    """What is lost when torch flattens a state."""
    found = Untold()
    _look(state, (), found)
    return found


def join_state(
    paths: Mapping[str, Path],
    texts: Mapping[str, Any],
    told: Iterable[Untold],
    stand_in: Callable[[], Any],
) -> Any:
    """The skeleton of a state, as `take_apart` makes it.

    Args:
        paths: paths of all that was flattened, by flat name.
        texts: the JSON of what is no tensor, by flat name.
        told: keys and empty dicts that each rank found.
        stand_in: makes a torch tensor that stands for one that is stored.
    """
    keys: dict[Path, Any] = {}
    state: dict[Any, Any] = {}
    told = list(told)
    for one in told:
        keys |= one.keys
    for path in (path for one in told for path in one.empty):
        _place(state, path, {}, keys)
    names: dict[int, str] = {}
    for name, path in paths.items():
        value = put_together(texts[name], {}) if name in texts else stand_in()
        if name not in texts:
            names[id(value)] = name
        _place(state, path, value, keys)
    apart = take_apart(state)
    return _named(apart.skeleton, {one: names[id(it)] for one, it in apart.tensors.items()})


def _look(value: Any, path: Path, found: Untold) -> None:
    """Walks as torch does: through dicts and lists, and not through tuples."""
    if isinstance(value, Mapping):
        if not value and path:
            found.empty[path] = None
        for key, item in value.items():
            inside = (*path, str(key))
            if isinstance(key, _KEYS):
                found.keys[inside] = key
            _look(item, inside, found)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _look(item, (*path, at), found)


def _place(state: Any, path: Path, value: Any, keys: Mapping[Path, Any]) -> None:
    """Put a value into a state that grows with it."""
    for at, part in enumerate(path[:-1], 1):
        state = _at(state, keys.get(path[:at], part), [] if isinstance(path[at], int) else {})
    last = keys.get(path, path[-1])
    _at(state, last, value)
    state[last] = value


def _at(container: Any, key: Any, fresh: Any) -> Any:
    """What lies at a key; `fresh`, where nothing does."""
    if isinstance(container, dict):
        return container.setdefault(key, fresh)
    container += [None] * (key + 1 - len(container))
    if container[key] is None:
        container[key] = fresh
    return container[key]


def _key(container: Any, part: str | int) -> Any:
    """The key that torch wrote as this part of a path."""
    if not isinstance(container, Mapping) or part in container:
        return part
    return next((key for key in container if str(key) == part), part)


def _named(node: Any, names: Mapping[str, str]) -> Any:
    """A skeleton that names tensors otherwise."""
    if isinstance(node, list):
        return [_named(one, names) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        key: names[one] if key == "$tensor" else _named(one, names) for key, one in node.items()
    }


try:
    import torch
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
    from torch.distributed.checkpoint.state_dict_loader import load as load_state
    from torch.distributed.checkpoint.state_dict_saver import save as save_state
    from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
    from torch.futures import Future
except ImportError as error:
    raise ImportError("tensorrepo.dcp needs torch: `pip install tensorrepo[torch]`") from error


Plan = TypeVar("Plan", SavePlan, LoadPlan)
_KEY: Final = "dcp"  # of a checkpoint's metadata
_MOST_JSON_BYTES: Final = 64 << 20
_SHOWN: Final = 5


class SavePlanner(DefaultSavePlanner):
    """Torch's planner, but what is no tensor is stored as JSON instead of being pickled."""

    given: dict[str, Any]  # the state as it was given, before torch flattens it

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        self.given = state_dict
        try:
            super().set_up_planner(state_dict, storage_meta, is_coordinator)
        except ValueError as error:
            raise InvalidInputError(
                f"torch cannot flatten this state: {error}. Keys along two paths, joined by dots, "
                "are alike: rename one"
            ) from error

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002  torch's
        if write_item.type != WriteItemType.BYTE_IO:
            return object
        name = write_item.index.fqn
        apart = take_apart({"value": object})
        if apart.tensors:
            raise InvalidInputError(
                f"{name}: {type(object).__name__} holds tensors that torch does not flatten; put "
                "them into dicts or lists"
            )
        return io.BytesIO(json.dumps(apart.skeleton["value"]).encode())


class LoadPlanner(DefaultLoadPlanner):
    """Torch's planner, but what is no tensor comes from JSON: nothing is unpickled."""

    def create_local_plan(self) -> LoadPlan:
        """What this rank asks for.

        Raises:
            NotFoundError: the checkpoint lacks some of it, and `allow_partial_load` is not set.
            InvalidInputError: a tensor has another shape there, or is none here.
        """
        if self.metadata is not None:
            _check_fits(
                self.state_dict, self.metadata.state_dict_metadata, partly=self.allow_partial_load
            )
        return super().create_local_plan()

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.load_value(read_item, put_together(json.loads(value.getvalue()), {}))

    def load_value(self, read_item: ReadItem, found: Any) -> None:
        """Put what is no tensor where it belongs."""
        name = read_item.dest_index.fqn
        if self.flatten_state_dict:
            *above, last = self.mappings[name]
            state = self.original_state_dict
            for part in above:
                state = state[_key(state, part)]
            state[_key(state, last)] = found
        else:
            self.state_dict[name] = found


@dataclass(slots=True)
class _Rank:
    """What a rank says of what it stored: of its own pin, so that the fence covers all."""

    told: bytes
    generation: int
    texts: dict[str, Any]
    untold: Untold
    shortened: dict[str, Shortened | None]


class _NamedByStep(Generic[Plan]):
    """What storage has in common whose checkpoints are named by run and step, never by a path."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            raise InvalidInputError(
                f"checkpoint_id={checkpoint_id!r}: a checkpoint is named by the run and step given "
                "to the writer or reader"
            )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003
        return False

    def prepare_local_plan(self, plan: Plan) -> Plan:
        return plan

    def prepare_global_plan(self, plans: list[Plan]) -> list[Plan]:
        return plans


class Writer(_NamedByStep[SavePlan], StorageWriter):
    """Stores one checkpoint of a run. Made alike on every rank."""

    def __init__(
        self,
        repository: Repository,
        run: str,
        step: int,
        *,
        keep: RetentionPolicy | None = None,
        metrics: Mapping[str, float] | None = None,
        start: str | None = None,
        optimizer: LossyState | None = None,
    ) -> None:
        """Prepare.

        Args:
            repository: repository to save to; each rank opens it by itself.
            run: its name, such as ``"exp1"``.
            step: step of the training.
            keep: which checkpoints stay; None: the last 3.
            metrics: numbers of this step.
            start: the commit that the run began at; None: that of branch main, where there is one.
            optimizer: how far moments of optimizers may be off; None: they are exact.
        """
        self._context = repository.context
        self._run, self._step = check_run_name(run), checked_step(step)
        self._keep = keep or RetentionPolicy()
        self._metrics = numbers_of(metrics)
        self._start = start
        self._lossy = optimizer

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        pass

    def write_data(self, plan: SavePlan, planner: AnySavePlanner) -> Future[list[WriteResult]]:
        """Store what this rank holds; durable when the future is done."""
        if not isinstance(planner, SavePlanner):
            raise UnsupportedError(
                f"{type(planner).__name__} pickles: use planner=tensorrepo.dcp.SavePlanner()"
            )
        view = self._context.core.log.refresh()
        shards, texts, shortened = _resolved(plan, planner, self._moments(planner), self._lossy)
        # The same on every rank that sees the same newest checkpoint.
        against = against_newest(self._context, view, self._run, self._step, self._keep)
        before = against.base
        if against.depth:
            against = replace(against, predictions=self._predicted(planner, shards, before))
        known = [] if before is None else [before]
        with ObjectWriter(self._context.core.objects, view.state.graves) as writer:
            told = store_shards(writer, shards, known=known, against=against)
            writer.flush()
        rank = _Rank(told, view.generation, texts, untold(planner.given), shortened)
        # Said once, with the first item.
        said = [rank, *[None] * len(plan.items)]
        results = [
            WriteResult(item.index, 0, one) for item, one in zip(plan.items, said, strict=False)
        ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _moments(self, planner: SavePlanner) -> frozenset[str]:
        """Names of the tensors that may hold fewer bits."""
        if self._lossy is None:
            return frozenset()
        apart = take_apart(planner.given)
        return frozenset(moments(apart.skeleton, apart.tensors, self._lossy.keys))

    def _predicted(
        self, planner: SavePlanner, shards: Iterable[TensorShard], before: Entry | None
    ) -> dict[str, tuple[Prediction, ...]]:
        """What an optimizer's step made of the checkpoint before, for each shard of this rank."""
        try:
            apart = take_apart(planner.given)
            whole = predicted(self._context, before, apart.skeleton, apart.tensors)
        except (InvalidInputError, RuntimeError):
            return {}  # something of it is no tensor and no plain value: nothing is predicted
        return {
            shard_name(shard): tuple(
                replace(
                    one,
                    before=tuple(shard_name(shard, name) for name in one.before),
                    now=tuple(shard_name(shard, name) for name in one.now),
                )
                for one in whole[shard.name]
            )
            for shard in shards
            if shard.name in whole
        }

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Join what all ranks stored, and commit it."""
        ranks = [one.storage_data for told in results for one in told if one.storage_data]
        names = list(metadata.state_dict_metadata)
        paths = {name: list(path) for name, path in (metadata.planner_data or {}).items()}
        texts = {name: text for rank in ranks for name, text in rank.texts.items()}
        view = self._context.core.log.refresh()
        parent = view.state.refs.get(BRANCHES + "main")
        if self._start is not None:
            parent = self._context.resolve(self._start).digest
        with begin_beside(self._context.core, ref_of(self._run, self._step)) as transaction:
            entry = join_shards(
                transaction.objects,
                (rank.told for rank in ranks),
                metadata={
                    "run": self._run,
                    "step": self._step,
                    "state": join_state(
                        {name: tuple(paths.get(name, (name,))) for name in names},
                        texts,
                        (rank.untold for rank in ranks),
                        lambda: torch.empty(0),
                    ),
                    _KEY: {"paths": paths, "texts": texts},
                },
                metrics=self._metrics,
                lineage=self._lineage(ranks),
            )
            pinned = min((rank.generation for rank in ranks), default=view.generation)
            transaction.stage(STATE_PATH, entry, since=pinned)
            commit_checkpoint(
                transaction,
                self._run,
                self._step,
                metrics=self._metrics,
                history=read_history(self._context, self._run),
                keep=self._keep,
                parent=parent,
                author=self._context.author,
            )

    def _lineage(self, ranks: Iterable[_Rank]) -> tuple[ProvenanceEdge, ...]:
        """What the checkpoint says of moments that hold fewer bits, shard by shard."""
        if self._lossy is None:
            return ()
        done = {name: one for rank in ranks for name, one in rank.shortened.items()}
        edge = lossy_edge(done, self._lossy, STATE_PATH)
        return () if edge is None else (edge,)


class Reader(_NamedByStep[LoadPlan], StorageReader):
    """Loads a checkpoint of a run, on any number of ranks. Only what a rank asks for is read."""

    def __init__(self, repository: Repository, run: str, step: int | None = None) -> None:
        """Prepare to load `step`; None: the newest, which is found when loading begins."""
        self._context = repository.context
        self._run, self._step = check_run_name(run), step
        self._model: StoredModel | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        super().reset(checkpoint_id)
        self._model = None

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """What the checkpoint holds."""
        model = self._opened()
        warn_if_approximate(model, self._run, stacklevel=2)
        flat = _flat(model)
        found: dict[str, Any] = {name: BytesStorageMetadata() for name in flat.texts}
        found |= {name: _about(model, tensor) for name, tensor in flat.tensors.items()}
        return Metadata(state_dict_metadata=found, planner_data=flat.paths)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any
    ) -> None:
        pass

    def read_data(self, plan: LoadPlan, planner: AnyLoadPlanner) -> Future[None]:
        """Read what the plan names into the tensors of the planner."""
        model = self._opened()
        flat = _flat(model)
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                if not isinstance(planner, LoadPlanner):
                    raise UnsupportedError(
                        f"{name} is no tensor, and {type(planner).__name__} unpickles: use "
                        "planner=tensorrepo.dcp.LoadPlanner()"
                    )
                inside = flat.inside.get(name, {})
                loaded = model.load(set(inside.values()), output="torch")
                tensors = {told: loaded[stored] for told, stored in inside.items()}
                planner.load_value(item, put_together(flat.texts[name], tensors))
                continue
            target = planner.resolve_tensor(item).detach()
            target.copy_(_box(model, flat.tensors[name], item))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _opened(self) -> StoredModel:
        if self._model is None:
            core = self._context.core
            commit = find_step(core.log.refresh(), self._run, self._step)
            self._model = open_model(core.objects, state_entry(self._context, commit))
        return self._model


def save(
    state: dict[str, Any],
    repository: Repository,
    run: str,
    step: int,
    *,
    process_group: Any = None,
    **options: Any,
) -> None:
    """Save what all ranks hold of a state: `torch.distributed.checkpoint.save`, with our errors.

    Args:
        state: as torch's `save` takes it.
        repository: repository to save to; each rank opens it by itself.
        run: its name.
        step: step of the training.
        process_group: ranks that take part; None: all, or this process where none were started.
        options: options of `Writer`: `keep`, `metrics`, `start`, `optimizer`.

    Raises:
        Error: what went wrong, on whichever rank, which a note of it names.
    """
    writer = Writer(repository, run, step, **options)
    with plain_errors():
        save_state(
            state,
            storage_writer=writer,
            planner=SavePlanner(),
            process_group=process_group,
            no_dist=_alone(),
        )


def load(
    state: dict[str, Any],
    repository: Repository,
    run: str,
    step: int | None = None,
    *,
    process_group: Any = None,
) -> None:
    """Load into the tensors of a state what ranks saved, or a checkpointer did.

    `torch.distributed.checkpoint.load`, with our errors; see `save`. Without `step` the newest.
    """
    reader = Reader(repository, run, step)
    reader.read_metadata()  # torch makes an AssertionError of whatever fails in this
    with plain_errors():
        load_state(
            state,
            storage_reader=reader,
            planner=LoadPlanner(),
            process_group=process_group,
            no_dist=_alone(),
        )


@contextmanager
def plain_errors() -> Iterator[None]:
    """Around calls of `torch.distributed.checkpoint`: its `CheckpointException`, unwrapped.

    It is no `Exception`, and what went wrong stands at the end of its text, below the traceback of
    every rank. Raised is the first error of ours instead, from it, with a note that names its
    ranks; what is no error of ours is left as it is.
    """
    try:
        yield
    except CheckpointException as wrapped:
        ours = {
            rank: failure
            for rank, (failure, _) in wrapped.failures.items()
            if isinstance(failure, Error)
        }
        if not ours:
            raise
        first = ours[min(ours)]
        alike = [rank for rank in sorted(ours) if str(ours[rank]) == str(first)]
        noun = "rank" if len(alike) == 1 else "ranks"
        first.add_note(f"on {noun} {', '.join(map(str, alike))} of the job")
        raise first from wrapped


def _check_fits(state: Mapping[str, Any], stored: Mapping[str, Any], *, partly: bool) -> None:
    missing = [name for name in state if name not in stored]
    if missing and not partly:
        shown = ", ".join(map(repr, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
        raise NotFoundError(
            f"the checkpoint lacks {len(missing)} of {counted(len(state), 'value')} of this state: "
            f"{shown}. Leave them out of the state that you load, or use "
            "LoadPlanner(allow_partial_load=True)"
        )
    for name, value in state.items():
        about = stored.get(name)
        if not isinstance(about, TensorStorageMetadata):
            continue
        shape = getattr(value, "shape", None)
        if shape is None or tuple(shape) != tuple(about.size):
            here = type(value).__name__ if shape is None else f"shape {list(shape)}"
            raise InvalidInputError(
                f"{name!r:.200}: the checkpoint has a tensor of shape {list(about.size)}, this "
                f"state {here}. Was it saved by another model?"
            )


def _alone() -> bool:
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())


@dataclass(frozen=True, slots=True)
class _Flat:
    """A state as torch flattens it: by flat name the tensor, the JSON, and the path.

    `inside` has, for JSON that names tensors, which tensor of the model each name of it means.
    """

    tensors: dict[str, str]
    texts: dict[str, Any]
    paths: dict[str, Path]
    inside: dict[str, dict[str, str]] = field(default_factory=dict)


def _flat(model: StoredModel) -> _Flat:
    told = model.metadata.get(_KEY)
    if told is not None:
        paths = {name: tuple(path) for name, path in told["paths"].items()}
        return _Flat({name: name for name in model}, dict(told["texts"]), paths)
    # Saved by a checkpointer, whole: flattened here, with numbers in place of its tensors.
    names = list(model)
    marked = {name: torch.tensor(at) for at, name in enumerate(names)}
    state = put_together(model.metadata.get("state"), marked)
    flat, paths = flatten_state_dict(state)
    found = _Flat({}, {}, dict(paths))
    for name, value in flat.items():
        if isinstance(value, torch.Tensor | np.ndarray):
            found.tensors[name] = names[int(value)]
            continue
        # Torch flattens no tuples: tensors in them are loaded with the rest of them.
        apart = take_apart({"value": value})
        found.texts[name] = apart.skeleton["value"]
        found.inside[name] = {told: names[int(at)] for told, at in apart.tensors.items()}
    return found


def _resolved(
    plan: SavePlan, planner: AnySavePlanner, wanted: frozenset[str], lossy: LossyState | None
) -> tuple[list[TensorShard], dict[str, Any], dict[str, Shortened | None]]:
    """Shards, texts, and what became of the shards of tensors that are `wanted` in fewer bits."""
    shards, texts, shortened = [], {}, {}
    for item in plan.items:
        name, data = item.index.fqn, planner.resolve_data(item)
        if isinstance(data, io.BytesIO):
            texts[name] = _json_of(name, data)
            continue
        tensor = data.detach().cpu()
        if lossy is not None and name in wanted:
            tensor = tensor.clone(memory_format=torch.contiguous_format)  # the training has its own
        shard = _shard(item, tensor)
        if lossy is not None and name in wanted:
            shortened[shard_name(shard)] = shorten(name, tensor, lossy)
        shards.append(shard)
    return shards, texts, shortened


def _json_of(name: str, data: io.BytesIO) -> Any:
    if len(data.getvalue()) > _MOST_JSON_BYTES:
        raise InvalidInputError(
            f"{name}: {counted(len(data.getvalue()), 'byte')} that are no tensor"
        )
    return json.loads(data.getvalue())


def _shard(item: WriteItem, tensor: torch.Tensor) -> TensorShard:
    assert item.tensor_data is not None, "what is no text is a tensor"
    name = item.index.fqn
    shape = tuple(item.tensor_data.size)
    return TensorShard(name, shape, tuple(item.tensor_data.chunk.offsets), tensor_of(name, tensor))


def _about(model: StoredModel, name: str) -> TensorStorageMetadata:
    entry = model.tensors[model.aliases.get(name, name)]
    dtype = getattr(torch, TORCH_NAMES[entry.type])
    chunks = [
        ChunkStorageMetadata(torch.Size(piece.offset), torch.Size(piece.shape))
        for piece in entry.pieces
    ]
    return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(entry.shape), chunks)


def _box(model: StoredModel, name: str, item: ReadItem) -> torch.Tensor:
    """The part of a tensor that an item names."""
    within = item.storage_offsets
    offset = item.storage_index.offset or (0,) * len(within)
    begin = tuple(at + inside for at, inside in zip(offset, within, strict=True))
    if not begin:
        whole: torch.Tensor = model.load([name], output="torch")[name]
        return whole
    box = tuple(slice(at, at + size) for at, size in zip(begin, item.lengths, strict=True))
    found: torch.Tensor = model.slice(name, box, output="torch")
    return found
