"""Random decoding graphs, and the search over them from log-probabilities to words."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from penstock.decoding.sizes import WfstLimits, WfstSizes
from penstock.decoding.tensors.tensor_tree import map_tensors
from penstock.decoding.wfst.captured_search import CapturedWfstSearch
from penstock.decoding.wfst.device_graph import DeviceGraph
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.decoding.wfst.search import WfstSearch, decode_chunk
from penstock.decoding.wfst.state import StartChoices, StartStates, WfstStateStore
from penstock.pipeline.stream_decoders.wfst import EndedSegment, LatticeStore
from penstock.scoring.automaton import Automaton
from penstock.scoring.wfst.graph_file import DecodingGraph
from tests.helpers.decoding_graphs import Arc, make_graph
from tests.helpers.reference.wfst import Found, Piece


class Result(NamedTuple):
    words: list[int]
    pieces: list[Piece]
    cost: float
    narrowed: int


def random_arcs(seed: int, states: int = 12, vocabulary: int = 4, words: int = 5) -> tuple[list[Arc], dict[int, float]]:
    """Arcs and final states of a graph in which no path dies. Epsilon arcs lead to higher states only."""
    random = np.random.default_rng(seed)
    arcs: dict[tuple[int, int | None, int, int], Arc] = {}

    def add(source: int, label: int | None, word: int, target: int) -> None:
        weight = round(float(random.uniform(0, 3)), 3)
        arcs.setdefault((source, label, word, target), Arc(source, label, word, weight, target))

    for source in range(states):
        add(source, vocabulary, 0, int(random.integers(states)))
        for label in random.choice(vocabulary + 1, size=int(random.integers(1, vocabulary)), replace=False).tolist():
            for target in random.integers(states, size=int(random.integers(1, 3))).tolist():
                add(source, label, int(random.integers(words)) if random.random() < 0.4 else 0, target)
    entered: set[int] = set()
    for source in range(states - 1):
        for target in random.integers(source + 1, states, size=int(random.integers(0, 3))).tolist():
            # One word at most on a path: only on an epsilon arc that no other leads to.
            word = int(random.integers(words)) if source not in entered and random.random() < 0.6 else 0
            add(source, None, word, target)
            entered.add(target)
    finals = {state: round(float(random.uniform(0, 2)), 3) for state in range(0, states, 3)}
    return list(arcs.values()), finals


def random_graph(seed: int, states: int = 12, vocabulary: int = 4, words: int = 5) -> DecodingGraph:
    arcs, finals = random_arcs(seed, states, vocabulary, words)
    return make_graph(arcs, finals, vocabulary, {f"w{n}": [[n % vocabulary]] for n in range(1, words)})


def log_probs(seed: int, batch: int, frames: int, vocabulary: int, sharpness: float = 2.0) -> torch.Tensor:
    """[B, T, V + 1]"""
    random = np.random.default_rng(1000 + seed)
    logits = torch.from_numpy(random.normal(size=(batch, frames, vocabulary + 1)).astype(np.float32))
    return (sharpness * logits).log_softmax(dim=2)


class Alternative(NamedTuple):
    words: tuple[int, ...]
    pieces: list[Piece]
    cost: float
    acoustic_cost: float


class Searcher:
    """A search with states of its own."""

    ended: dict[int, EndedSegment]
    """The rows of the last search that wanted alternatives."""

    def __init__(
        self,
        graph: DecodingGraph,
        sizes: WfstSizes | None = None,
        limits: WfstLimits | None = None,
        lm_weight: float = 1 / 3,
        slots: int = 4,
        device: str = "cpu",
        prepare: Callable[[WfstSearch], WfstSearch | CapturedWfstSearch] = lambda search: search,
        kernels: str = "torch",
    ):
        device_graph = DeviceGraph(graph, device)
        search = WfstSearch(device_graph, sizes, limits, kernels)
        self.search_ = prepare(search)
        self._start = StartStates(graph, device_graph, search.sizes, search.limits.beam)
        self.store = WfstStateStore(device_graph, slots, search.sizes)
        self._lattices = LatticeStore(search, self._start, graph.words)
        self._lm_weight, self._device, self._words = lm_weight, device, len(graph.words)

    def search(
        self,
        scores: torch.Tensor,
        chunk_frames: int | None = None,
        lengths: list[int] | None = None,
        word_boosts: np.ndarray | None = None,
        phrases: tuple[Automaton, int] | None = None,
        n_best: Sequence[int] = (),
        ends_apart: bool = False,
    ) -> list[Result]:
        """The result of each row; its segment ends with its last frame.

        word_boosts: [W] float32, of all rows; phrases: the automaton of all rows and its start; n_best: alternatives
        that each row wants, which go to `ended`; ends_apart: the segments end with a chunk without frames.
        """
        batch, frames, _ = scores.shape
        slots, scores = torch.arange(batch, device=self._device), scores.to(self._device)
        choice = StartChoices(self._lm_weight, word_boosts, 0 if phrases is None else phrases[1])
        self.store.scatter(slots, self._start.build([choice] * batch))
        boosts = None
        if word_boosts is not None or phrases is not None:
            table = np.zeros(self._words, np.float32) if word_boosts is None else word_boosts
            automaton = None if phrases is None else phrases[0]
            boosts = StreamBoosts(torch.from_numpy(table)[None], torch.zeros_like(slots), automaton)
        for slot, count in enumerate(n_best or [0] * batch):
            self._lattices.open(slot, count, choice)
        wants = self._lattices.wants_links(range(batch), slots.device)
        left = torch.tensor(lengths or [frames] * batch, device=self._device)
        stable: list[list] = [[] for _ in range(batch)]
        for part in (*scores.split(chunk_frames or frames, dim=1), *([scores[:, :0]] if ends_apart else [])):
            taken = left.clamp(max=part.shape[1])
            left = left - taken
            chunk = part, taken, (left == 0) & (part.shape[1] == 0 or not ends_apart)
            path, states, links = decode_chunk(self.search_, chunk, self.store.gather(slots), boosts, wants)
            self.store.scatter(slots, states)
            if wants is not None:
                self._lattices.add(range(batch), wants, links)
            self.dropped = int(states.dropped_tokens.sum())
            path = map_tensors(lambda t: t.cpu().clone(), path)
            for row in range(batch):
                stable[row] += path_nodes(path, row)[: int(path.stable[row])]
        rows = {row: row for row in range(batch)}
        self.ended = self._lattices.end(rows, self.store.gather(slots), path.costs.to(self._device), boosts)
        return [
            self._result(stable[row] + path_nodes(path, row)[int(path.stable[row]) :], path, states, row)
            for row in range(batch)
        ]

    def alternatives(self, row: int) -> list[Alternative]:
        """The alternatives of a row in the last search."""
        found = []
        for path in self.ended[row].paths:
            begun = [node for node in path.nodes if node.piece >= 0]
            ends = ([node.last_frame_before for node in begun] + [path.last_frame])[1:]
            pieces = [Piece(one.piece, one.frame, end, one.score) for one, end in zip(begun, ends, strict=True)]
            words = tuple(node.word for node in path.nodes if node.word)
            found.append(Alternative(words, pieces, path.cost, path.acoustic_cost))
        return found

    def _result(self, nodes: list, path, states, row: int) -> Result:
        words = [node[1] for node in nodes if node[1]]
        begun = [node for node in nodes if node[0] >= 0]
        ends = ([node[3] for node in begun] + [int(path.last_frames[row])])[1:]
        pieces = [Piece(node[0], node[2], end, node[4]) for node, end in zip(begun, ends, strict=True)]
        return Result(words, pieces, float(path.costs[row]), int(states.narrowed_frames[row]))

    @staticmethod
    def of_reference(found: Found) -> Result:
        return Result(found.words, found.pieces, found.cost, found.narrowed)


def path_nodes(path, row: int) -> list[tuple]:
    """(piece, word, frame, last_frame_before, score) of the best path's nodes."""
    length = int(path.lengths[row])
    fields = path.pieces, path.words, path.frames, path.last_frames_before, path.scores
    return list(zip(*(field[row, :length].tolist() for field in fields), strict=True))
