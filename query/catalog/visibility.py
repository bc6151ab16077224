"""Visibility: which rows of a catalog belong to what some of the refs of its repository lead to.

A catalog has rows of all commits. Whoever may read some refs alone is given rows of the commits
that these lead to, of what these commits hold, and of these refs. Rows are left out where they are
read, before anything is made of them: which are there shows in no count and in no order.

Of tables that are about the log as a whole there are no rows then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, select, text

from tensorrepo.formats.common import compute as pc
from tensorrepo.query.catalog import tables
from tensorrepo.query.chunks import chunks
from tensorrepo.repo.deferred_dataclass import dataclass

# What decides over the rows of each table: a column, and the set that its value must be in. A table
# that is not here has no rows.
_BY: Final[Mapping[str, tuple[str, str]]] = {
    "ref": ("name", "refs"),
    "ref_update": ("ref", "refs"),
    "entry": ("ref", "refs"),
    "commit": ("digest", "commits"),
    "commit_parent": ("commit", "commits"),
    "entry_change": ("commit", "commits"),
    "dataset_version": ("digest", "digests"),
    "dataset_column": ("dataset", "digests"),
    "model_version": ("digest", "digests"),
    "model_tensor": ("model", "digests"),
    "tensor_piece": ("model", "digests"),
    "placement": ("model", "digests"),
    "tensor_storage": ("placement", "placements"),
    "member_base": ("placement", "placements"),
    "graph": ("digest", "graphs"),
    "node": ("graph", "graphs"),
    "edge": ("graph", "graphs"),
    "node_parameter": ("graph", "graphs"),
    "metric": ("owner", "digests"),
    "parameter": ("owner", "digests"),
    "run": ("digest", "digests"),
    "run_metric": ("run", "digests"),
    "lineage_edge": ("stated_by", "digests"),
    "view_version": ("digest", "digests"),
    "registered_model": ("name", "registered"),
}
# Rows of the registry are refs: each is granted as one.
_REF_OF: Final[Mapping[str, tuple[str, str]]] = {
    "registered_version": ("version", "registry/{model}/v/{version}"),
    "registered_alias": ("alias", "registry/{model}/alias/{alias}"),
}
_REGISTERED: Final = re.compile(r"registry/(.+)/(?:v|alias)/[^/]+")
_REACHED: Final = """
WITH RECURSIVE reached(digest) AS (
    SELECT r."commit" FROM ref AS r WHERE r.name IN ({names})
    UNION
    SELECT p.parent FROM reached JOIN commit_parent AS p ON p."commit" = reached.digest
)
SELECT digest FROM reached
"""


@dataclass(frozen=True, slots=True, eq=False)
class Visible:
    """What may be seen of a catalog.

    Attributes:
        refs: names of refs.
        commits: digests of the commits that they lead to.
        digests: digests of datasets, models, views, files and documents of runs in these.
        runs: ids of the runs among them.
        placements: where tensors of the models among them lie.
        graphs: architectures of these models.
        registered: names of registered models with a version or an alias among the refs.
    """

    refs: frozenset[str]
    commits: frozenset[str]
    digests: frozenset[str]
    runs: frozenset[str]
    placements: frozenset[str]
    graphs: frozenset[str]
    registered: frozenset[str]

    def columns(self, table: str) -> tuple[str, ...]:
        """Columns of a table that say which of its rows are there."""
        if table in _REF_OF:
            return ("model", _REF_OF[table][0])
        return (_BY[table][0],) if table in _BY else ()

    def rows(self, table: str, found: pa.Table) -> pa.Table:
        """The rows of `found` that may be seen; it has `columns(table)`."""
        if table in _REF_OF:
            column, form = _REF_OF[table]
            named = zip(found["model"].to_pylist(), found[column].to_pylist(), strict=True)
            refs = (form.format_map({"model": model, column: value}) for model, value in named)
            return found.filter(pa.array([ref in self.refs for ref in refs], pa.bool_()))
        if table not in _BY:
            return found.slice(0, 0)
        column, members = _BY[table]
        known: frozenset[str] = getattr(self, members)
        return found.filter(pc.is_in(found[column], pa.array(known, pa.string())))


def visible_to(connection: Connection, may_read: Callable[[str], bool]) -> Visible:
    """What may be seen of the catalog behind `connection` by who may read some of its refs.

    Args:
        connection: sees one state of the catalog.
        may_read: whether a ref, by its full name, may be read.
    """
    every = connection.execute(select(tables.ref.c.name)).scalars()
    refs = frozenset(name for name in every if may_read(name))
    commits = _reached(connection, refs)
    change, model, run = tables.entry_change, tables.model_version, tables.run
    digests = _column(connection, change.c.new, change.c.commit, commits)
    placed = tables.placement
    stated = _column(connection, placed.c.stated, placed.c.model, digests)
    return Visible(
        refs,
        commits,
        digests,
        _column(connection, run.c.id, run.c.digest, digests),
        stated | _column(connection, placed.c.placement, placed.c.model, digests),
        _column(connection, model.c.graph, model.c.digest, digests),
        frozenset(found[1] for ref in refs if (found := _REGISTERED.fullmatch(ref))),
    )


def _reached(connection: Connection, refs: Collection[str]) -> frozenset[str]:
    found: set[str] = set()
    for some in chunks(sorted(refs)):
        names = {f"n{at}": name for at, name in enumerate(some)}
        query = text(_REACHED.format(names=", ".join(f":{each}" for each in names)))
        found.update(connection.execute(query, names).scalars())
    return frozenset(found)


def _column(connection: Connection, wanted: Any, key: Any, keys: Collection[str]) -> frozenset[str]:
    """Values of a column of the rows whose `key` is one of `keys`, without nulls."""
    found: set[str] = set()
    for some in chunks(sorted(keys)):
        query = select(wanted).where(key.in_(some), wanted.is_not(None)).distinct()
        found.update(connection.execute(query).scalars())
    return frozenset(found)
