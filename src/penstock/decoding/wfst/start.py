"""The start of streams: the closure of the graph's first state, with the weights and boosts of each stream."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from penstock.decoding.tensors.tensor_tree import map_tensors
from penstock.decoding.wfst.device_graph import DeviceGraph
from penstock.decoding.wfst.lattice import StartLinks
from penstock.decoding.wfst.sizes import WfstSizes
from penstock.decoding.wfst.state import WfstStates, empty_states
from penstock.scoring.wfst.graph_file import NO_WORD, DecodingGraph


class StartChoices(NamedTuple):
    """The options of a stream."""

    lm_weight: float
    """Scale of the graph's weights."""
    word_boosts: np.ndarray | None = None
    """[W] float32, by word; None: none."""
    phrase_state: int = 0
    """Start of its phrase list; 0 without one."""


class StartStates:
    """Builds the states of new streams, on the host."""

    def __init__(self, graph: DecodingGraph, device_graph: DeviceGraph, sizes: WfstSizes, beam: float):
        first, end = graph.closure_offsets[graph.start_state : graph.start_state + 2]
        self._targets = graph.closure_targets[first:end]
        self._weights = graph.closure_weights[first:end]
        self._words = graph.closure_words[first:end]
        self._max_active = sizes.max_active
        # Only what is used at the start, and not K and C slots of each stream.
        self._sizes = sizes._replace(max_active=min(sizes.max_active, int(end - first)), nodes=int(end - first))
        self._beam = np.float32(beam)
        self._device = device_graph.device

    def build(self, choices: Sequence[StartChoices]) -> WfstStates:
        """States of B streams before their first frame, with as few slots as they need."""
        states = empty_states(len(choices), self._sizes, torch.device("cpu"))
        for row, choice in enumerate(choices):
            self._fill(states, row, choice)
        return map_tensors(lambda t: t.to(self._device), states)

    def links(self, choice: StartChoices, beam: float) -> StartLinks:
        """The ways to the first tokens of a stream, up to `beam` nats above the cheapest of each."""
        costs, _ = self._costs(choice)
        kept = self._kept(costs)
        places = {int(self._targets[entry]): place for place, entry in enumerate(kept)}
        links = []
        for entry in np.flatnonzero(costs <= self._beam).tolist():
            place = places.get(int(self._targets[entry]))
            if place is not None and costs[entry] - costs[kept[place]] <= beam:
                excess = float(costs[entry] - costs[kept[place]])
                links.append((place, entry != kept[place], int(self._words[entry]), excess))
        targets, _, words, excesses = zip(*sorted(links, key=lambda link: link[:2]), strict=True)
        return StartLinks(np.array(targets), np.array(words), np.array(excesses))

    def _costs(self, choice: StartChoices) -> tuple[np.ndarray, np.float32]:
        """Costs of the closure's entries above the least, and the least."""
        costs = np.float32(choice.lm_weight) * self._weights
        if choice.word_boosts is not None:
            costs = costs - choice.word_boosts[self._words]
        least = costs.min()
        return costs - least, least

    def _kept(self, costs: np.ndarray) -> list[int]:
        """The cheapest entry of each state, in order of position."""
        best: dict[int, int] = {}
        for entry in np.flatnonzero(costs <= self._beam).tolist():
            state = int(self._targets[entry])
            if state not in best or costs[entry] < costs[best[state]]:
                best[state] = entry
        return sorted(sorted(best.values(), key=lambda entry: (costs[entry], entry))[: self._max_active])

    def _fill(self, states: WfstStates, row: int, choice: StartChoices) -> None:
        costs, least = self._costs(choice)
        entries = np.array(self._kept(costs))
        words = self._words[entries]
        places = np.flatnonzero(words != NO_WORD)  # of tokens with a node
        count, node_count = len(entries), len(places)
        tokens, nodes = states.tokens, states.nodes
        tokens.states[row, :count] = torch.from_numpy(self._targets[entries])
        tokens.phrases[row, :count] = choice.phrase_state
        tokens.costs[row, :count] = torch.from_numpy(costs[entries])
        if node_count:
            tokens.nodes[row, torch.from_numpy(places)] = torch.arange(node_count, dtype=torch.int32)
            nodes.words[row, :node_count] = torch.from_numpy(words[places])
            nodes.last_frames_before[row, :node_count] = -1
        states.token_counts[row], states.node_counts[row] = count, node_count
        states.bases[row] = float(least)
        states.lm_weights[row] = choice.lm_weight
