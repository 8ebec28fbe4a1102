"""The stream decoder of the search over a decoding graph, its lattices for alternatives and the text of its words."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import torch

from penstock.decoding.ctc import CtcHead
from penstock.decoding.tensors.tensor_tree import copy_to_device, map_tensors, tree_to_host
from penstock.decoding.wfst.backpointers import ChunkLinks
from penstock.decoding.wfst.captured_search import CapturedWfstSearch
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.decoding.wfst.lattice import HostLinks, Lattice, LatticeArcs, Node
from penstock.decoding.wfst.n_best import PathEnd, SegmentLattice
from penstock.decoding.wfst.paths import BestPath
from penstock.decoding.wfst.search import WfstSearch, decode_chunk
from penstock.decoding.wfst.state import StartChoices, StartStates, WfstStates, WfstStateStore
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.results.words import Decoded, Token, TokenAlternative
from penstock.pipeline.stream_decoders.base import Chunk, StreamDecoder, TruncationCounters, TruncationLog, keep_states
from penstock.pipeline.stream_decoders.fusion import StreamFusion
from penstock.scoring.wfst.graph_file import NO_WORD, DecodingGraph
from penstock_common.writing import blank_between


class WordWriter:
    """Deals the tokens of a path to its words, for a lexicon that spells words with other tokens than their text.

    Such as "IBM" by letters.
    """

    def __init__(self, graph: DecodingGraph):
        self._graph = graph

    def texts(self, tokens: Sequence[int], words: Sequence[int], is_final: bool) -> tuple[list[str], int]:
        """The text that each token adds: a word at its first token, else nothing.

        words: of the path, in order; a word may come up later than its tokens. Also returns how many tokens will keep
        their text: those of all words but the last, to which more tokens may come; all where `is_final`.
        """
        counts = self._counts(tokens, words) or [len(self._graph.spellings(word)[0]) for word in words]
        texts = [""] * len(tokens)
        place = known = 0
        before = "a"  # a word of a script with spaces
        for word, count in zip(words, counts, strict=True):
            known = place
            if place < len(texts):
                texts[place] = blank_between(before, self._graph.words[word]) + self._graph.words[word]
                before = self._graph.words[word]
            place += count
        return texts, len(tokens) if is_final else min(known, len(tokens))

    def _counts(self, tokens: Sequence[int], words: Sequence[int]) -> list[int] | None:
        """Tokens of each word by a spelling of it, so that all fit one after the other; None if none do.

        Depth first, the longest spelling first. A path may have thousands of words, so nothing is called recursively,
        and no word is tried twice at one place.
        """
        counts: list[int] = []
        choices: list[list[int]] = []  # by word, the counts not tried yet
        place = 0
        seen: set[tuple[int, int]] = set()
        while len(counts) < len(words):
            number = len(counts)
            if len(choices) == number:
                choices.append(self._fitting(tokens, place, words[number], number == len(words) - 1))
            if choices[-1]:
                count = choices[-1].pop()
                if (number, place + count) not in seen:
                    seen.add((number, place + count))
                    counts.append(count)
                    place += count
            else:
                choices.pop()
                if not counts:
                    return None
                place -= counts.pop()
        return counts

    def _fitting(self, tokens: Sequence[int], place: int, word: int, is_last: bool) -> list[int]:
        """Lengths of the word's spellings that the tokens at a place are, the longest last; is_last: or begin."""
        lengths = []
        for spelling in self._graph.spellings(word):
            here = list(tokens[place : place + len(spelling)])
            if here and here == spelling[: len(here)] and (is_last or len(here) == len(spelling)):
                lengths.append(len(spelling))
        return sorted(lengths)


def word_writer(graph: DecodingGraph, tokenizer: Tokenizer) -> WordWriter | None:
    """A writer where a word's text differs from that of its tokens; None where tokens write all words."""
    for number, word in enumerate(graph.words[1:], start=1):
        if any(tokenizer.decode(spelling) != word for spelling in graph.spellings(number)):
            return WordWriter(graph)
    return None


class _Wanted(NamedTuple):
    lattice: Lattice
    paths: int
    """Alternatives at the end of the segment."""

    def copied(self) -> "_Wanted":
        """A copy that shares nothing with this."""
        return self._replace(lattice=self.lattice.copied())


class EndedSegment(NamedTuple):
    """The results at a segment's end."""

    lattice: SegmentLattice
    paths: list[PathEnd]
    """Best first."""


class LatticeStore:
    """One lattice for each slot whose stream wants alternatives."""

    def __init__(self, search: WfstSearch, start: StartStates, words: Sequence[str]):
        """words: texts by number."""
        self._search, self._start, self._words = search, start, words
        self._arcs, self._beam = LatticeArcs.of(search.graph), search.limits.lattice_beam
        self._wanted: dict[int, _Wanted] = {}

    def open(self, slot: int, count: int, choices: StartChoices) -> None:
        """Begins a segment with `count` alternatives, 0 for none."""
        self._wanted.pop(slot, None)
        if count:
            lattice = Lattice(self._arcs, self._start.links(choices, self._beam), self._beam)
            self._wanted[slot] = _Wanted(lattice, count)

    def wants_links(self, slots: Sequence[int], device: torch.device) -> torch.Tensor | None:
        """[B] bool, True where the slot has a lattice; None where none has."""
        wants = [slot in self._wanted for slot in slots]
        return copy_to_device(wants, torch.bool, device) if any(wants) else None

    def add(self, slots: Sequence[int], wants_links: torch.Tensor, parts: Sequence[ChunkLinks]) -> None:
        """Adds the links of a chunk; wants_links: [B] bool on the device."""
        for links in parts:
            host = HostLinks.fetched(links, wants_links)
            for row, slot in enumerate(slots):
                if slot in self._wanted:
                    self._wanted[slot].lattice.add(host, row)

    def copy(self, slots: Sequence[int]) -> dict[int, _Wanted]:
        """The lattices of `slots`, where they have one, for `put_back` after a chunk that the streams do not have."""
        return {slot: self._wanted[slot].copied() for slot in slots if slot in self._wanted}

    def put_back(self, kept: Mapping[int, _Wanted]) -> None:
        """Makes the lattices what they were at `copy`."""
        self._wanted.update(kept)

    def end(
        self, rows: Mapping[int, int], states: WfstStates, costs: torch.Tensor, boosts: StreamBoosts | None
    ) -> dict[int, EndedSegment]:
        """Ends the segments of `rows`, slots by row; of a batch with states and best costs [B] after the last chunk."""
        rows = {row: slot for row, slot in rows.items() if slot in self._wanted}
        if not rows:
            return {}
        chosen = copy_to_device(list(rows), torch.int64, costs.device)
        states, costs = map_tensors(lambda t: t.index_select(0, chosen), (states, costs))
        if boosts is not None:
            boosts = boosts._replace(table_rows=boosts.table_rows.index_select(0, chosen))
        ending_costs = self._search.ending_costs(states, torch.ones_like(chosen, dtype=torch.bool), boosts)
        if chosen.device.type != "cpu":
            # Both at once: one wait for the device.
            ending_costs, costs = tree_to_host((ending_costs, costs))
        ended = {}
        for (row, slot), ending, cost in zip(rows.items(), ending_costs.numpy(), costs.tolist(), strict=True):
            lattice, paths = self._wanted.pop(slot)
            segment = SegmentLattice(*lattice.end(ending), self._beam, cost, self._words)
            ended[row] = EndedSegment(segment, segment.best(paths))
        return ended


class WfstStreamDecoder(StreamDecoder):
    """Viterbi beam search over one graph for all streams, boosted by stream."""

    needs_frames = False

    def __init__(
        self,
        head: CtcHead,
        search: WfstSearch | CapturedWfstSearch,
        start: StartStates,
        state: WfstStateStore,
        fusion: StreamFusion,
        lattices: LatticeStore,
        writer: WordWriter | None = None,
    ):
        """fusion: with the boosts of the graph's words; writer: None where tokens write all words."""
        self._writer, self._lattices = writer, lattices
        self._head, self._search, self._start, self._state, self._fusion = head, search, start, state, fusion
        slots = state.slots
        self.truncation = TruncationLog("wfst", slots)
        self._held: list[list[Node]] = [[] for _ in range(slots)]
        """By slot, stable nodes from the first token on that has not been reported."""

    def open(self, slots: Sequence[int], options: Sequence[ResolvedOptions]) -> None:
        """Resets to the start of the graph."""
        words = self._fusion.word_boosts
        # By the boosts that the stage has given these slots before.
        choices = [
            StartChoices(chosen.lm_weight, None if words is None else words.row(slot), self._fusion.phrase_start(slot))
            for slot, chosen in zip(slots, options, strict=True)
        ]
        self._state.scatter(copy_to_device(slots, torch.int64, self._head.device), self._start.build(choices))
        for slot, chosen, choice in zip(slots, options, choices, strict=True):
            self._held[slot] = []
            self._lattices.open(slot, chosen.n_best, choice)
        self.truncation.begin(slots)

    def begin_segment(self, slots: Sequence[int], options: Sequence[ResolvedOptions]) -> None:
        """Starts anew: a segment is a path from the graph's start to its end."""
        self.open(slots, options)

    def restart_phrases(self, slot: int) -> None:
        """Paths keep the boosts of phrases that they have begun, as the links of lattices do."""
        rows = copy_to_device([slot], torch.int64, self._head.device)
        states = self._state.gather(rows)
        at_start = torch.full_like(states.tokens.phrases, self._fusion.phrase_start(slot))
        self._state.scatter(rows, states._replace(tokens=states.tokens._replace(phrases=at_start)))

    def decode(self, chunk: Chunk) -> list[Decoded]:
        """Pieces that all paths share are stable once the next one is, for only then is it known where they end."""
        device = self._head.device
        slots = copy_to_device(chunk.slots, torch.int64, device)
        is_final = copy_to_device(chunk.is_final, torch.bool, device)
        log_probs = self._head.log_probs(chunk.encoded, chunk.prompts).float()
        wants_links = self._lattices.wants_links(chunk.slots, device)
        boosts = self._boosts(chunk.slots, slots, wants_links is not None)
        inputs, before = (log_probs, chunk.lengths, is_final), self._state.gather(slots)
        path, states, links = decode_chunk(self._search, inputs, before, boosts, wants_links)
        keep_states(chunk, self._state, slots, states)
        report = _Report(path, states.narrowed_frames, states.dropped_tokens)
        ended: dict[int, EndedSegment] = {}
        if wants_links is not None:
            # A copy's segment ends here, so its lattice gets these links, too; then the stream goes on without them.
            kept = self._lattices.copy([slot for row, slot in enumerate(chunk.slots) if row in chunk.copies])
            self._lattices.add(chunk.slots, wants_links, links)
            final = {row: slot for row, slot in enumerate(chunk.slots) if chunk.is_final[row]}
            ended = self._lattices.end(final, states, path.costs, boosts)
            self._lattices.put_back(kept)
        return self._to_decoded(chunk, report if device.type == "cpu" else report.fetched(), ended)

    def _boosts(self, slots: Sequence[int], rows: torch.Tensor, has_links: bool) -> StreamBoosts | None:
        """has_links: programs with links have boosts, too."""
        words, has_phrases = self._fusion.word_boosts, self._fusion.has_phrases(slots)
        if words is None or not (has_phrases or has_links or words.is_used(slots)):
            return None
        return StreamBoosts(words.table, rows, self._fusion.phrases if has_phrases else None)

    def _to_decoded(self, chunk: Chunk, report: "_Report", ended: Mapping[int, EndedSegment]) -> list[Decoded]:
        """Converts a report on the host to tokens, and records truncation."""
        decoded, path = [], report.path
        fields = path.pieces, path.words, path.frames, path.last_frames_before, path.scores
        rows_of_nodes = list(zip(*(field.tolist() for field in fields), strict=True))
        numbers = path.lengths, path.stable, path.last_frames, report.narrowed_frames, report.dropped_tokens
        rows = zip(chunk.slots, chunk.is_final, *(field.tolist() for field in numbers), strict=True)
        for row, (slot, is_final, length, stable, last_frame, narrowed, dropped) in enumerate(rows):
            nodes = list(islice(map(Node, *rows_of_nodes[row]), length))
            held = self._held[slot] + nodes[:stable]
            tokens, known = self._tokens(self._held[slot] + nodes, last_frame, is_final)
            # A token is reported once the next one is stable, for only then is it known where it ends.
            reported = min(max(sum(node.piece >= 0 for node in held) - 1, 0), known)
            while reported and tokens[reported].text == "":  # words are reported as a whole
                reported -= 1
            lattice, paths = ended.get(row, (None, []))
            alternatives = [
                TokenAlternative(
                    self._tokens(one.nodes, one.last_frame, True)[0], -one.cost, -one.acoustic_cost, is_whole=True
                )
                for one in paths
            ]
            decoded.append(Decoded(tokens[:reported], tokens[reported:], alternatives, lattice))
            # Of a copy nothing is kept: its frames come again.
            if row not in chunk.copies:
                self.truncation.add(slot, TruncationCounters(0, 0, narrowed, dropped), is_final)
                self._held[slot] = self._behind(held, reported)
        return decoded

    def _tokens(self, nodes: Sequence[Node], last_frame: int, is_final: bool) -> tuple[list[Token], int]:
        """The tokens of a path that was reported up to `nodes`, and how many will keep their text.

        Each lasts until the frame that the next one knows of, the last one until that of the path.
        """
        pieces = [node for node in nodes if node.piece >= 0]
        ends = [*(node.last_frame_before for node in pieces[1:]), last_frame]
        tokens = [
            Token(node.piece, node.frame, end - node.frame + 1, node.score)
            for node, end in zip(pieces, ends, strict=bool(pieces))
        ]
        if self._writer is None:
            return tokens, len(tokens)
        words = [node.word for node in nodes if node.word != NO_WORD]
        texts, known = self._writer.texts([token.id for token in tokens], words, is_final)
        return [token._replace(text=text) for token, text in zip(tokens, texts, strict=True)], known

    def _behind(self, nodes: list[Node], reported: int) -> list[Node]:
        """The nodes without those of the first tokens, and without the words of these."""
        if self._writer is None:
            return [node for node in nodes if node.piece >= 0][reported:]
        texts = self._tokens(nodes, 0, True)[0][:reported]
        pieces, words = reported, sum(bool(token.text) for token in texts)
        left = []
        for node in nodes:
            piece, word = node.piece, node.word
            if piece >= 0 and pieces:
                piece, pieces = -1, pieces - 1
            if word != NO_WORD and words:
                word, words = NO_WORD, words - 1
            if piece >= 0 or word != NO_WORD:
                left.append(node._replace(piece=piece, word=word))
        return left


class _Report(NamedTuple):
    """All that the host needs of a chunk."""

    path: BestPath
    narrowed_frames: torch.Tensor
    dropped_tokens: torch.Tensor

    def fetched(self, expected: int = 32) -> "_Report":
        """Copies to the CPU with the first nodes of each path; again where one is longer than expected."""
        width = self.path.pieces.shape[1]
        path = map_tensors(lambda t: t[:, :expected].contiguous() if t.dim() == 2 else t, self.path)
        host: _Report = tree_to_host(self._replace(path=path))
        longest = int(host.path.lengths.max())
        return host if longest <= min(expected, width) else self.fetched(longest)
