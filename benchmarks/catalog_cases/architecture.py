"""Longest common prefix, and ways between nodes, over 10,000 models of 300 nodes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from catalog_cases.databases import databases
from harness import SEED, Options, medians_ms

from tensorrepo.formats.model.graph.graph import Graph, GraphNode, Input, make_graph
from tensorrepo.query.architecture import Ranking, donors, models_with_path
from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.database import CatalogDatabase
from tensorrepo.query.sync.contents import graph_rows
from tensorrepo.query.sync.loader import TableRow, insert

if TYPE_CHECKING:
    from sqlalchemy import Table


MODELS, NODES, FAMILIES = 10_000, 300, 20
MODELS_AT_ONCE = 50
OPS = ("conv2d", "relu", "linear", "norm", "add", "max_pool2d")


def common_prefix(folder: Path, options: Options) -> dict[str, Any]:
    """The donors of a model, of 10,000 whose graphs leave its family's at any node."""
    count = max(100, int(MODELS * options.scale))
    found: dict[str, Any] = {"models": count, "nodes": NODES}
    for name, catalog in databases(folder):
        begun = time.perf_counter()
        _fill(catalog, count)
        found[f"{name}_fill_rows_per_s"] = round(count * NODES * 2 / (time.perf_counter() - begun))
        found |= {f"{name}_{key}": value for key, value in _asked(catalog, options).items()}
    return found | {"goal": "donors_ms < 200 on both"}


def _asked(catalog: CatalogDatabase, options: Options) -> dict[str, float]:
    rng = np.random.default_rng(SEED + 1)
    seconds: dict[str, list[float]] = {"donors": [], "donors_by_metric": [], "path": []}
    rankings = {"donors": Ranking("accuracy"), "donors_by_metric": Ranking("accuracy", True)}
    for _ in range(options.rounds):
        wanted = _mutated(int(rng.integers(FAMILIES)), int(rng.integers(NODES)), "wanted")
        with catalog.reading() as connection:
            for name, ranking in rankings.items():
                begun = time.perf_counter()
                donors(connection, wanted, ranking)
                seconds[name].append(time.perf_counter() - begun)
    with catalog.reading() as connection:
        begun = time.perf_counter()
        list(models_with_path(connection, "n1[0-9]", "n29[0-9]"))
        seconds["path"].append(time.perf_counter() - begun)
    return medians_ms(seconds)


def _fill(catalog: CatalogDatabase, count: int) -> None:
    rng = np.random.default_rng(SEED)
    families = [list(graph_rows(_mutated(family, 0, ""))) for family in range(FAMILIES)]
    # Six million rows: an index that grows with them is written in no order, again and again.
    indexes = [index for table in (tables.node, tables.edge) for index in table.indexes]
    with catalog.writing() as connection:
        for index in indexes:
            index.drop(connection)
        for first in range(0, count, MODELS_AT_ONCE):
            rows: defaultdict[Table, list[TableRow]] = defaultdict(list)
            for at in range(first, min(first + MODELS_AT_ONCE, count)):
                family, place = int(rng.integers(FAMILIES)), int(rng.integers(NODES))
                for table, row in _rows(families[family], at, place, rng):
                    rows[table].append(row)
            for table, some in rows.items():
                insert(connection, table, some)
        for index in indexes:
            index.create(connection)
    with catalog.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")
        connection.commit()


def _rows(
    family: list[tuple[Table, TableRow]], at: int, place: int, rng: np.random.Generator
) -> Iterator[tuple[Table, TableRow]]:
    """The rows of model number `at`: its family's up to node `place`, which is another one.

    What leads to the nodes behind differs with it: their hashes are like no other's, so random
    ones are as good, and nothing is computed for them.
    """
    key, hashes = f"{at:064x}", rng.bytes(32 * NODES).hex()
    for table, row in family:
        if table is tables.node and row[1] >= place:
            node = row[1]
            yield table, (key, *row[1:-1], hashes[64 * node : 64 * node + 64])
        else:
            yield table, (key, *row[1:])
    accuracy = float(rng.random())
    yield tables.model_version, (key, NODES, NODES, NODES, key, key, "{}")
    yield tables.metric, (key, 0, None, "accuracy", None, accuracy, tables.FINITE, None)
    yield tables.entry_change, (key, f"models/m{at}", "model", None, key, None)


def _mutated(family: int, place: int, mark: str) -> Graph:
    """The family's chain of nodes with one of them changed: what stands before it is shared."""
    nodes = [GraphNode("n0", "input", {"family": family})]
    for at in range(1, NODES):
        config = {"changed": mark} if at == place else {}
        nodes.append(GraphNode(f"n{at}", OPS[at % len(OPS)], config, (Input("0", nodes[-1].name),)))
    return make_graph("given", nodes, [Input("0", nodes[-1].name)])


CASES = {"common_prefix": common_prefix}
