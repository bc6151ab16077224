"""Layered layout of directed graphs (Sugiyama): layers, few crossings, straight edges.

Every node lies in a layer behind all that point to it; edges over several layers pass through
points of their own in each, which take part in the ordering. Edges that close a circle are laid
out backwards. Pure functions of the names: the same graph has the same drawing.

Source:
    Sugiyama, Tagawa and Toda, Methods for Visual Understanding of Hierarchical System Structures,
    1981: layers by longest paths, order by barycenters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from tensorrepo.repo.deferred_dataclass import dataclass

ORDER_SWEEPS: Final = 8
PLACE_SWEEPS: Final = 6

Point = tuple[int, float]  # layer, and row in it
_Place = tuple[str, int]  # a node, or the point of an edge in a layer
Neighbors = Mapping[_Place, list[_Place]]


@dataclass(frozen=True, slots=True)
class LayeredLayout:
    """Where nodes lie, and the points that edges pass through.

    Attributes:
        nodes: layer and row of each node; rows are at least 1 apart in a layer, and not negative.
        edges: points of each edge, its ends included.
        layers: number of layers.
        rows: number of rows that the whole takes.
    """

    nodes: dict[str, Point]
    edges: dict[tuple[str, str], tuple[Point, ...]]
    layers: int
    rows: float


def layered(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> LayeredLayout:
    """Lay out a graph; edges from a node to itself are left out."""
    pairs = list(dict.fromkeys((start, stop) for start, stop in edges if start != stop))
    backward = _backward(nodes, pairs)
    forward = {pair: pair[::-1] if pair in backward else pair for pair in pairs}
    layer_of = _layers(nodes, forward.values())
    chains = {pair: _chain(turned, layer_of) for pair, turned in forward.items()}
    before, behind = _neighbors(chains.values())
    count = max(layer_of.values(), default=-1) + 1
    places = dict.fromkeys(place for chain in chains.values() for place in chain[1:-1])
    layers: list[list[_Place]] = [[] for _ in range(count)]
    for place in [*((node, layer_of[node]) for node in nodes), *places]:
        layers[place[1]].append(place)
    _order(layers, before, behind)
    rows = _rows(layers, before, behind)
    points = {
        pair: tuple((place[1], rows[place]) for place in chain) for pair, chain in chains.items()
    }
    for pair, turned in forward.items():
        if pair != turned:
            points[pair] = points[pair][::-1]
    return LayeredLayout(
        {node: (layer_of[node], rows[node, layer_of[node]]) for node in nodes},
        points,
        count,
        max(rows.values(), default=-1.0) + 1,
    )


def _backward(nodes: Sequence[str], pairs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Edges that lead back to where a walk in depth came from: without them there is no circle."""
    beyond = defaultdict(list)
    for start, stop in pairs:
        beyond[start].append(stop)
    found: set[tuple[str, str]] = set()
    done: set[str] = set()
    open_nodes: set[str] = set()
    for root in nodes:
        stack = [(root, iter(beyond[root]))] if root not in done else []
        open_nodes.update(node for node, _ in stack)
        while stack:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                open_nodes.discard(node)
                done.add(node)
            elif following in open_nodes:
                found.add((node, following))
            elif following not in done:
                open_nodes.add(following)
                stack.append((following, iter(beyond[following])))
    return found


def _layers(nodes: Sequence[str], pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Of each node the longest way that leads to it."""
    beyond: dict[str, list[str]] = defaultdict(list)
    waiting = dict.fromkeys(nodes, 0)
    for start, stop in dict.fromkeys(pairs):
        beyond[start].append(stop)
        waiting[stop] += 1
    ready = [node for node, count in waiting.items() if not count]
    layer = dict.fromkeys(nodes, 0)
    for node in ready:
        for following in beyond[node]:
            layer[following] = max(layer[following], layer[node] + 1)
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    return layer


def _chain(pair: tuple[str, str], layer_of: Mapping[str, int]) -> list[_Place]:
    """The places of an edge, from its first end to its last."""
    start, stop = pair
    between = range(layer_of[start] + 1, layer_of[stop])
    name = f"{start}\0{stop}"
    return [(start, layer_of[start]), *((name, at) for at in between), (stop, layer_of[stop])]


def _neighbors(chains: Iterable[list[_Place]]) -> tuple[Neighbors, Neighbors]:
    before, behind = defaultdict(list), defaultdict(list)
    for chain in chains:
        for place, following in pairwise(chain):
            behind[place].append(following)
            before[following].append(place)
    return before, behind


def _order(layers: list[list[_Place]], before: Neighbors, behind: Neighbors) -> None:
    """Sort each layer by the mean position of neighbors, from the left and from the right."""
    for sweep in range(ORDER_SWEEPS):
        near, turn = (before, layers[1:]) if sweep % 2 == 0 else (behind, layers[-2::-1])
        position = {place: at for layer in layers for at, place in enumerate(layer)}
        for layer in turn:
            means = {
                place: _mean([position[one] for one in near.get(place, ())], position[place])
                for place in layer
            }
            layer.sort(key=means.__getitem__)
            position |= {place: at for at, place in enumerate(layer)}


def _rows(layers: list[list[_Place]], before: Neighbors, behind: Neighbors) -> dict[_Place, float]:
    """Rows near the mean of neighbors' rows, in the order of each layer, 1 apart at least."""
    rows = {place: float(at) for layer in layers for at, place in enumerate(layer)}
    for sweep in range(PLACE_SWEEPS):
        near, turn = (before, layers) if sweep % 2 == 0 else (behind, layers[::-1])
        for layer in turn:
            wished = [
                _mean([rows[one] for one in near.get(place, ())], rows[place]) for place in layer
            ]
            rows |= zip(layer, _apart(wished), strict=True)
    top = min(rows.values(), default=0.0)
    return {place: row - top for place, row in rows.items()}


def _apart(wished: Sequence[float]) -> list[float]:
    """Rows as wished, pushed down where they would be less than 1 apart; their mean stays."""
    rows: list[float] = []
    for row in wished:
        rows.append(max(row, rows[-1] + 1) if rows else row)
    shift = (sum(rows) - sum(wished)) / max(len(rows), 1)
    return [row - shift for row in rows]


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise
