"""Words of other libraries: what they are called here, for who types them on a handle."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tensorrepo.repo.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

_Call = TypeVar("_Call", bound=Callable[..., Any])
_SHOWN: Final = 40  # characters of what was asked for
_CHANGE: Final = "with repo.transaction() as tx: tx.dataset(name)"
_QUERY: Final = 'ds.query("SELECT ... FROM self")'
# What people type on a dataset: how it is said here.
DATASET: Final = {
    "num_rows": "len(ds)",
    "size": "len(ds), or ds.shape",
    "count": 'len(ds), or len(ds.filter("label == 3"))',
    "num_columns": "len(ds.columns)",
    "column_names": "ds.columns",
    "keys": "ds.columns",
    "features": "ds.schema",
    "dtypes": "ds.schema",
    "info": "ds.schema",
    "describe": 'ds.query("SUMMARIZE self")',
    "map": "ds.stream(transform=function) for batches; draft.add_column(name, type, function) to "
    f"keep what it gives: {_CHANGE}.add_column(...)",
    "apply": "ds.stream(transform=function)",
    "with_transform": "ds.stream(transform=function)",
    "train_test_split": 'ds.split({"train": 0.8, "test": 0.2}, seed=0)',
    "random_split": 'ds.split({"train": 0.8, "test": 0.2}, seed=0)',
    "to_dict": "ds.to_numpy(), or ds.to_arrow().to_pydict()",
    "to_list": "list(ds), whose items are dicts",
    "iterrows": "for row in ds: ...",
    "itertuples": "for row in ds: ...",
    "df": "ds.to_pandas()",
    "pl": "ds.to_polars()",
    "arrow": "ds.to_arrow()",
    "values": "ds.to_numpy()",
    "to_csv": 'tr.export(ds, "rows.csv")',
    "to_json": 'tr.export(ds, "rows.jsonl")',
    "to_parquet": 'tr.export(ds, "rows.parquet")',
    "export": 'tr.export(ds, "rows.parquet")',
    "save_to_disk": 'tr.export(ds, "folder", "huggingface")',
    "save": "tx.create_view(name, ds.filter(...)) keeps rows under a name",
    "shuffle": 'ds.stream(batch_size=..., shuffle="global", seed=0)',
    "batch": "ds.stream(batch_size=...)",
    "iter": "ds.stream(batch_size=...)",
    "dataloader": "ds.stream(batch_size=..., output='torch'), or DataLoader(ds.torch())",
    "pytorch": "ds.stream(batch_size=..., output='torch'), or ds.torch()",
    "with_format": "ds.stream(batch_size=..., output='torch')",
    "set_format": "ds.stream(batch_size=..., output='torch')",
    "tail": "ds[-5:]",
    "take": "ds.head(5), or ds[[3, 1]]",
    "skip": "ds.select(rows=slice(5, None))",
    "limit": "ds.head(5)",
    "iloc": "ds[7], ds[10:20] or ds[[3, 1]]",
    "loc": 'ds[ds.find({"name": "a.png"})]',
    "sample": 'ds.query("SELECT * FROM self USING SAMPLE 5")',
    "sort": 'ds.query("SELECT * FROM self ORDER BY score")',
    "sort_values": 'ds.query("SELECT * FROM self ORDER BY score")',
    "groupby": 'ds.query("SELECT label, count(*) FROM self GROUP BY label")',
    "group_by": 'ds.query("SELECT label, count(*) FROM self GROUP BY label")',
    "value_counts": 'ds.query("SELECT label, count(*) FROM self GROUP BY label")',
    "unique": 'ds.query("SELECT DISTINCT label FROM self")',
    "merge": f"{_QUERY} with a JOIN, or repo.sql(...)",
    "join": f"{_QUERY} with a JOIN, or repo.sql(...)",
    "sql": _QUERY,
    "where": 'ds.filter("label == 3")',
    "select_columns": "ds[[...]], or ds.select([...])",
    "remove_columns": "ds.select([...]) for reading; to change the dataset, "
    f"{_CHANGE}.drop_column(...)",
    "drop": "ds.select([...]) for reading; to change the dataset, "
    f"{_CHANGE}.drop_column(...) or .delete(where)",
    "rename": f"{_CHANGE}.rename_column(...)",
    "rename_column": f"{_CHANGE}.rename_column(...)",
    "cast": f"{_CHANGE}.widen_column(...)",
    "add_column": f"{_CHANGE}.add_column(...)",
    "append": f"{_CHANGE}.append(...)",
    "add": f"{_CHANGE}.append(...)",
    "extend": f"{_CHANGE}.append(...)",
    "insert": f"{_CHANGE}.append(...)",
    "update": f"{_CHANGE}.update(...)",
    "delete": f"{_CHANGE}.delete(...)",
    "upsert": f"{_CHANGE}.upsert(...)",
    "push_to_hub": "with repo.transaction() as tx: tx.create_dataset(name, ...)",
    "history": "repo.log(), and repo.blame(name, row=7)",
    "versions": "repo.log(), and repo.dataset(name, ref) of a commit",
    "knn": 'ds.nearest("embedding", vector, k=10)',
    "vector_search": 'ds.nearest("embedding", vector, k=10)',
    "get_nearest_examples": 'ds.nearest("embedding", vector, k=10)',
    "full_text_search": 'ds.search("caption", "red car", k=10)',
    "blame": "repo.blame(name, row=7)",
    "diff": "repo.diff(ref, other)",
    "lineage": "repo.lineage(name)",
    "version": "ds.commit, the commit that it is of",
}
# What people give to `Dataset.stream`: its groups of options have them, or this.
_GROUPS: Final = {
    "sampling=tr.Sampling": "rows where weights balance epoch_rows pack bucket bucket_steps "
    "echo feedback window",
    "ranks=tr.Ranks": "rank world_size replicate",
    "loading=tr.Loading": "workers processes prefetch fetch_threads work_threads ahead next_epoch "
    "pin on_error cache_dir cache_limit cache_peers",
}
STREAM: Final = {
    name: f"{group}({name}=...)" for group, names in _GROUPS.items() for name in names.split()
} | {
    "filter": "sampling=tr.Sampling(where=...), or ds.filter(...).stream(...)",
    "filters": "sampling=tr.Sampling(where=...), or ds.filter(...).stream(...)",
    "sampler": "sampling=tr.Sampling(weights=...), or balance=column in it",
    "batch": "batch_size=...",
    "drop_last": 'last="drop"',
    "collate_fn": "transform=function",
    "map": "transform=function",
    "num_workers": "loading=tr.Loading(workers=...)",
    "executor": 'loading=tr.Loading(workers="process" or "ray", processes=...)',
    "prefetch_factor": "loading=tr.Loading(prefetch=...)",
    "pin_memory": "loading=tr.Loading(pin=True)",
    "num_replicas": "ranks=tr.Ranks(rank=..., world_size=...)",
    "num_shards": "ranks=tr.Ranks(rank=..., world_size=...)",
    "shuffle_seed": "seed=...",
    "generator": "seed=...",
    "format": 'output="torch"',
    "select": "columns=[...]",
    "epochs": "each loop over the stream is one epoch",
    "num_epochs": "each loop over the stream is one epoch",
}
# On a model.
MODEL: Final = {
    "tensors": "model.keys() names them, model.tensor(name) is one",
    "names": "model.keys()",
    "parameters": "model.state_dict()",
    "named_parameters": "model.state_dict()",
    "items": "model.load().items(), or model.tensor(name) for name in model.keys()",
    "get_tensor": "model.tensor(name)[:]",
    "shape": "model.tensor(name).shape",
    "size": "model.describe()",
    "to": "model.load_into(module), then module.to(...)",
    "eval": "model.load_into(module), then module.eval()",
    "forward": "model.load_into(module), then module(...)",
    "predict": "model.load_into(module), then module(...)",
    "load_state_dict": "module.load_state_dict(model.state_dict()), or model.load_into(module)",
    "push_to_hub": "repo.push(), repo.promote(...)",
    "history": "repo.log(), repo.registry for versions by number",
}
# And on a repository.
REPOSITORY: Final = {
    "checkout": "repo.at(ref), repo.dataset(name, ref)",
    "commit": 'with repo.transaction("main", "message") as tx: ...',
    "add": "with repo.transaction() as tx: tx.create_dataset(...), tx.save_model(...)",
    "begin": "with repo.transaction() as tx: ...",
    "create_dataset": "with repo.transaction() as tx: tx.create_dataset(...)",
    "create_view": "with repo.transaction() as tx: tx.create_view(...)",
    "save_model": "with repo.transaction() as tx: tx.save_model(...)",
    "clone": "tr.clone(url, place); tr.open(url) opens a repository where it lies",
    "branch": "repo.create_branch(name)",
    "tag": "repo.create_tag(name)",
    "history": "repo.log()",
    "versions": "repo.log(), and repo.dataset(name, ref) of a commit",
    "status": "repo.log(); what is staged is a workspace's, and `tensorrepo status` shows it",
    "stash": "what is staged is a workspace's: `tensorrepo stash`",
    "commits": "repo.log()",
    "ls": "repo.datasets(), repo.models(), repo.entries()",
    "list": "repo.datasets(), repo.models(), repo.entries()",
    "list_datasets": "repo.datasets()",
    "list_models": "repo.models()",
    "get_dataset": "repo.dataset(name)",
    "load_dataset": "repo.dataset(name)",
    "get_model": "repo.model(name)",
    "load_model": "repo.model(name).load()",
    "query": 'repo.sql("SELECT ...")',
    "execute": 'repo.sql("SELECT ...")',
    "reset": "repo.undo(branch), repo.revert(ref)",
}


# What was committed stays as it is.
_CHANGING: Final = ("transaction", "merge", "undo", "redo", "revert", "create_branch", "create_tag")
PINNED: Final = REPOSITORY | dict.fromkeys(
    _CHANGING, "a commit stays as it is: change a branch by the repository itself"
)


def named_only(words: Mapping[str, str]) -> Callable[[_Call], _Call]:
    """Decorator of a method whose arguments have names: who gives another is told the right one.

    `words` maps names of other libraries, or of groups of options, to how it is said here.
    """

    def with_words(call: _Call) -> _Call:
        known = list(signature(call).parameters)[1:]

        @wraps(call)
        def checked(handle: Any, *unnamed: Any, **named: Any) -> Any:
            if unnamed:
                first = ", ".join(f"{name}=..." for name in known[:2])
                raise TypeError(f"{call.__name__}() takes its arguments by name: {first}")
            for name in named:
                if name not in known:
                    hint = f": {words[name]}" if name in words else f".{did_you_mean(name, known)}"
                    raise TypeError(f"{call.__name__}() has no argument {name!r}{hint.rstrip('.')}")
            return call(handle, **named)

        return cast("_Call", checked)

    return with_words


def no_membership(value: object) -> TypeError:
    """What to raise for ``value in ds``, which would read all rows and compare each as a dict."""
    shown = repr(value) if isinstance(value, str) and len(value) < _SHOWN else "value"
    return TypeError(
        f"a dataset is not asked by `in`, which would read every row. Columns: {shown} in "
        'ds.columns; rows: len(ds.find({"key": value})) > 0, or a condition: ds.find("key = 7")'
    )


def no_attribute(
    handle: object, name: str, words: Mapping[str, str] = REPOSITORY
) -> AttributeError:
    """What to raise where a handle lacks an attribute: says what there is instead."""
    kind = type(handle).__name__
    told = f"{kind} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(told)
    if name in words:
        return AttributeError(f"{told}: {words[name]}")
    hint = did_you_mean(name, [each for each in dir(type(handle)) if each[0] != "_"])
    return AttributeError(f"{told}.{hint}" if hint else told)
