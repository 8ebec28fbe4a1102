"""The N best word sequences of a row that has ended, among the paths that its tokens still stand for; on the host.

Paths that recombination has dropped are not among them, so there may be fewer than wanted.
"""

from typing import NamedTuple

import torch

from penstock.decoding.wfst.state import NO_NODE, WfstStates
from penstock.scoring.wfst.graph_file import NO_WORD


class Node(NamedTuple):
    """A node of a path: fields as in `penstock.decoding.wfst.state.Nodes`."""

    piece: int
    word: int
    frame: int
    last_frame_before: int
    score: float


class PathEnd(NamedTuple):
    """One path since the nodes that are stable."""

    nodes: list[Node]
    last_frame: int
    """Last frame of its last piece; -1 without one."""
    cost: float
    """Of the whole path, as `BestPath.costs`."""
    acoustic_cost: float
    """Of its labels alone."""


def best_paths(states: WfstStates, ending_costs: torch.Tensor, row: int, count: int) -> list[PathEnd]:
    """At most `count` paths with different words, best first; states and ending_costs [B, K] are on the host."""
    tokens, nodes = states.tokens, states.nodes
    costs = ending_costs[row]
    fields = nodes.pieces, nodes.words, nodes.frames, nodes.last_frames_before, nodes.scores
    rows = [field[row].tolist() for field in fields]
    parents = nodes.parents[row].tolist()
    found: dict[tuple[int, ...], PathEnd] = {}
    for token in costs.argsort(stable=True).tolist():
        cost = float(costs[token])
        if len(found) == count or cost == float("inf"):
            break
        path, node = [], int(tokens.nodes[row, token])
        while node != NO_NODE:
            path.append(Node(*(field[node] for field in rows)))
            node = parents[node]
        path.reverse()
        words = tuple(node.word for node in path if node.word != NO_WORD)
        total, acoustic = float(states.bases[row]) + cost, float(tokens.acoustic_costs[row, token])
        found.setdefault(words, PathEnd(path, int(tokens.last_frames[row, token]), total, acoustic))
    return list(found.values())
