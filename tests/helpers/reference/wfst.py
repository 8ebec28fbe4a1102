"""CTC beam search over a decoding graph the slow and obvious way: tokens are objects in a list, one utterance.

Arithmetic is float32 in the order of the fast search, so that costs can be compared bit for bit. Without limits the
result is the graph's shortest path for the frames.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from penstock.scoring.wfst.graph_file import DecodingGraph

_MULTIPLIER = 0x9E3779B97F4A7C15
_HASH_SHIFTS = (40, 20)


class Node(NamedTuple):
    """A piece or a word that a path has passed."""

    parent: "Node | None"
    token: int
    word: int
    frame: int
    last_frame_before: int
    """Last frame of the piece before this node."""
    score: np.float32


@dataclass
class Token:
    """A path's end."""

    state: int
    phrase: int
    cost: np.float32
    node: Node | None
    last_frame: int


@dataclass
class Limits:
    """None: no limit."""

    beam: float = np.inf
    max_active: int | None = None
    max_arcs: int | None = None
    hash_cells: int | None = None


@dataclass
class Boosts:
    """A stream's boosts: words by a table, or phrases by an automaton over pieces."""

    words: np.ndarray | None = None
    """[W] float32"""
    advance: Callable[[int, int], tuple[float, int]] = field(default=lambda phrase, token: (0.0, 0))
    final: Callable[[int], float] = field(default=lambda phrase: 0.0)
    start: int = 0

    def of_word(self, word: int) -> np.float32:
        return np.float32(0) if self.words is None else np.float32(self.words[word])


class Piece(NamedTuple):
    token: int
    first_frame: int
    last_frame: int
    score: float


class Found(NamedTuple):
    """The best path of a whole utterance."""

    words: list[int]
    pieces: list[Piece]
    cost: float
    is_final: bool
    narrowed: int
    """Passes that a limit on arcs narrowed."""
    largest: int
    """Most tokens after a frame."""


class ReferenceSearch:
    """Call `search` with log-probabilities [T, V + 1] float32, blank last."""

    def __init__(
        self, graph: DecodingGraph, limits: Limits | None = None, lm_weight: float = 1 / 3, boosts: Boosts | None = None
    ):
        self.graph, self.limits, self.boosts = graph, limits or Limits(), boosts or Boosts()
        self.lm_weight = np.float32(lm_weight)
        self.narrowed = self.largest = 0

    def search(self, log_probs: np.ndarray) -> Found:
        start = Token(self.graph.start_state, self.boosts.start, np.float32(0), None, -1)
        self.base = 0.0
        tokens = self._close([start])
        for frame, scores in enumerate(np.asarray(log_probs, np.float32)):
            tokens = self._close(self._emit(tokens, scores, frame))
            self.largest = max(self.largest, len(tokens))
        return self._best(tokens)

    def _emit(self, tokens: list[Token], scores: np.ndarray, frame: int) -> list[Token]:
        graph = self.graph
        tokens = self._narrow(tokens, graph.arc_offsets)
        candidates = []
        for token in tokens:
            for entry in range(graph.arc_offsets[token.state], graph.arc_offsets[token.state + 1]):
                label, word = graph.arc_labels[entry], graph.arc_words[entry]
                is_repeat = graph.arc_targets[entry] == token.state and word == 0
                is_piece = label != graph.blank and not is_repeat
                cost = (token.cost + self.lm_weight * graph.arc_weights[entry]) + -scores[label]
                cost = cost - self.boosts.of_word(word)
                phrase = token.phrase
                if is_piece:
                    boost, phrase = self.boosts.advance(phrase, int(label))
                    cost = cost - np.float32(boost)
                node, last_frame = token.node, token.last_frame
                if is_piece or word:
                    piece = int(label) if is_piece else -1
                    node = Node(node, piece, int(word), frame, last_frame, scores[label] if is_piece else np.float32(0))
                if label != graph.blank:
                    last_frame = frame
                candidates.append(Token(int(graph.arc_targets[entry]), phrase, cost, node, last_frame))
        return self._pruned(candidates)

    def _close(self, tokens: list[Token]) -> list[Token]:
        graph = self.graph
        tokens = self._narrow(tokens, graph.closure_offsets)
        candidates = []
        for token in tokens:
            for entry in range(graph.closure_offsets[token.state], graph.closure_offsets[token.state + 1]):
                word = int(graph.closure_words[entry])
                cost = token.cost + self.lm_weight * graph.closure_weights[entry]
                cost = cost - self.boosts.of_word(word)
                node = token.node
                if word:
                    node = Node(node, -1, word, -1, token.last_frame, np.float32(0))
                candidates.append(Token(int(graph.closure_targets[entry]), token.phrase, cost, node, token.last_frame))
        return self._best_active(self._recombined(self._pruned(candidates)))

    def _pruned(self, candidates: list[Token]) -> list[Token]:
        """Costs become relative to the least."""
        if not candidates:
            return []
        least = min(token.cost for token in candidates)
        self.base += float(least)
        for token in candidates:
            token.cost = token.cost - least
        return [token for token in candidates if token.cost <= np.float32(self.limits.beam)]

    def _narrow(self, tokens: list[Token], offsets: np.ndarray) -> list[Token]:
        """The best tokens whose arcs fit together, in their order."""
        kept = _within([(t.cost, int(offsets[t.state + 1] - offsets[t.state])) for t in tokens], self.limits.max_arcs)
        self.narrowed += len(kept) < len(tokens)
        return [tokens[i] for i in kept]

    def _best_active(self, tokens: list[Token]) -> list[Token]:
        kept = _within([(token.cost, 1) for token in tokens], self.limits.max_active)
        return [tokens[i] for i in kept]

    def _recombined(self, tokens: list[Token]) -> list[Token]:
        cells = self.limits.hash_cells
        if cells is None:
            best: dict[tuple[int, int], int] = {}
            for i, token in enumerate(tokens):
                key = token.state, token.phrase
                if key not in best or token.cost < tokens[best[key]].cost:
                    best[key] = i
            return [tokens[i] for i in sorted(best.values())]
        kept, rest = [], list(range(len(tokens)))
        for turn, shift in enumerate(_HASH_SHIFTS):
            cell_of = {i: _cell(tokens[i], shift, cells) for i in rest}
            winners: dict[int, int] = {}
            for i in rest:
                cell = cell_of[i]
                if cell not in winners or tokens[i].cost < tokens[winners[cell]].cost:
                    winners[cell] = i
            kept += winners.values()
            rest = [i for i in rest if _key(tokens[i]) != _key(tokens[winners[cell_of[i]]])]
            if turn == 1:
                kept += rest  # what finds no cell stays, perhaps as a duplicate
        return [tokens[i] for i in sorted(kept)]

    def _best(self, tokens: list[Token]) -> Found:
        finals = self.graph.final_weights
        ended = [t for t in tokens if np.isfinite(finals[t.state])]
        cost_of: Callable[[Token], np.float32] = lambda t: t.cost  # noqa: E731
        if ended:
            cost_of = lambda t: (t.cost + self.lm_weight * finals[t.state]) - np.float32(self.boosts.final(t.phrase))  # noqa: E731
        best = min(ended or tokens, key=cost_of)
        words, pieces = _trace(best.node, best.last_frame)
        return Found(words, pieces, self.base + float(cost_of(best)), bool(ended), self.narrowed, self.largest)


def _key(token: Token) -> tuple[int, int]:
    return token.state, token.phrase


def _cell(token: Token, shift: int, cells: int) -> int:
    return (((token.state | token.phrase << 32) * _MULTIPLIER) % 2**64 >> shift) & (cells - 1)


def _within(items: Sequence[tuple[np.float32, int]], limit: int | None) -> list[int]:
    """Positions of the cheapest items whose weights add up to at most `limit`, ties by position, in order."""
    if limit is None:
        return list(range(len(items)))
    kept, total = [], 0
    for i in sorted(range(len(items)), key=lambda i: (items[i][0], i)):
        total += items[i][1]
        if total > limit:
            break
        kept.append(i)
    return sorted(kept)


def _trace(node: Node | None, last_frame: int) -> tuple[list[int], list[Piece]]:
    words, pieces = [], []
    while node is not None:
        if node.word:
            words.append(node.word)
        if node.token >= 0:
            pieces.append(Piece(node.token, node.frame, last_frame, float(node.score)))
        last_frame = node.last_frame_before if node.token >= 0 else last_frame
        node = node.parent
    return words[::-1], pieces[::-1]
