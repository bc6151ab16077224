"""Graphs to test with: at random, and of a small torch network."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tensorrepo.formats.model.graph.graph import GraphNode, Input, Parameter


@st.composite
def node_lists(draw: st.DrawFn, most: int = 8) -> list[GraphNode]:
    """Nodes of a graph without circles, each behind those that it takes from."""
    count = draw(st.integers(1, most))
    nodes: list[GraphNode] = []
    for at in range(count):
        before = [f"n{earlier}" for earlier in range(at)]
        taken = draw(st.lists(st.sampled_from(before), max_size=2)) if before else []
        shape = draw(st.sampled_from([(), (2,), (2, 3)]))
        parameters = (Parameter("weight", f"n{at}.weight", "F32", shape),) if shape else ()
        nodes.append(
            GraphNode(
                f"n{at}",
                draw(st.sampled_from(["relu", "linear", "add"])),
                draw(st.sampled_from([{}, {"eps": 0.5}, {"dim": 1, "keep": True}])),
                tuple(Input(str(role), name) for role, name in enumerate(taken)),
                parameters,
            )
        )
    return nodes


def small_network(*, layers: int = 2, width: int = 8, seed: int = 0) -> Any:
    """A convolution, some linear layers, a head: a torch module with real weights."""
    import torch
    from torch import nn

    torch.manual_seed(seed)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3)
            self.norm = nn.BatchNorm2d(4)
            self.stem = nn.Linear(4 * 6 * 6, width)
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
            self.head = nn.Linear(width, 3)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.norm(self.conv(x)))
            x = torch.relu(self.stem(x.flatten(1)))
            for layer in self.layers:
                x = x + torch.relu(layer(x))
            return self.head(x)

    return Network().eval()
