"""Word error rates of the graph benchmark: decoders, peers and boosts on the same encoder output."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.results import progress
from benchmarks.wfst_systems import FLASHLIGHT, KALDI_DECODER, Flashlight, GraphSearch, KaldiDecoder, missing_peer
from penstock.decoding.ctc.head import CtcHead
from penstock.decoding.wfst.sizes import WfstLimits
from penstock.errors import RunError
from penstock.evaluation.errors import EditCounts, compare, total
from penstock.evaluation.manifest import Utterance
from penstock.graphs.select import select_driver
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoder_offer import offer_decoders
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.stream_options import parse_stream_options
from penstock.pipeline.stream_decoders.builder import DecoderParts, build_stream_decoders
from penstock.pipeline.stream_decoders.fusion import StreamFusion
from penstock.pipeline.stream_decoders.transducer import Chunk
from penstock.scoring.wfst.graph_file import DecodingGraph
from penstock_client.options import CTC, CTC_BEAM

LM_WEIGHTS = (0.1, 0.2, 1 / 3, 0.5, 0.7, 1.0)
BLANK_PENALTIES = (0.0, 1 / 3, 2 / 3, 1.0)
CTC_BEAM_SIZE = 16
CTC_BEAM_WEIGHTS = (0.1, 0.2, 0.3, 0.5, 0.7)
FLASHLIGHT_WEIGHTS, FLASHLIGHT_WORD_SCORES = (0.2, 1 / 3, 0.5, 0.7, 1.0), (-0.5, 0.0, 0.5, 1.0)
BOOSTS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)


class GraphFiles(NamedTuple):
    """A graph and, where there is one, the same in OpenFst's format."""

    graph: DecodingGraph
    fst: Path | None


class Emissions(NamedTuple):
    """All utterances at one context."""

    utterances: Sequence[Utterance]
    encoded: list[torch.Tensor]
    """[T, D] float32 each"""
    log_probs: torch.Tensor
    """[B, T, V + 1] float32"""
    lengths: torch.Tensor
    """[B] int64"""

    def penalized(self, blank_penalty: float) -> list[torch.Tensor]:
        """Log-probabilities [T, V + 1] of each utterance, less off blank's."""
        rows = [row[:length] for row, length in zip(self.log_probs, self.lengths.tolist(), strict=True)]
        off = torch.zeros(self.log_probs.shape[2])
        off[-1] = blank_penalty
        return [row - off for row in rows]

    def word_edits(self, texts: Sequence[str]) -> list[EditCounts]:
        """Of each utterance."""
        return [
            compare(utterance.reference, text).words for utterance, text in zip(self.utterances, texts, strict=True)
        ]


def emissions(checkpoint: Checkpoint, utterances: Sequence[Utterance], encoded: list[torch.Tensor]) -> Emissions:
    """The CTC head's output."""
    head, lengths = CtcHead(checkpoint), torch.tensor([len(frames) for frames in encoded])
    with torch.inference_mode():
        log_probs = head.log_probs(torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)).float()
    return Emissions(utterances, encoded, log_probs, lengths)


class Row(NamedTuple):
    """One line of the table of word error rates."""

    context: str
    decoder: str
    setting: str
    is_tuned: bool
    """True where the setting is the best one for the first half of the speakers."""
    first: EditCounts
    """Words of the first half of the speakers."""
    other: EditCounts
    texts_as_kaldi: int | None = None
    """Utterances with the same words as kaldi-decoder's."""

    @property
    def all(self) -> EditCounts:
        """Words of all speakers."""
        return self.first + self.other


def in_first_half(utterances: Sequence[Utterance]) -> list[bool]:
    """Every other speaker, in alphabetical order, beginning with the first; without speakers: every other utterance."""
    names = [utterance.speaker or f"{utterance.line:09}" for utterance in utterances]
    first = set(sorted(set(names))[::2])
    return [name in first for name in names]


Decode = Callable[..., list[str]]


class Accuracy:
    """Word error rates at one context."""

    def __init__(self, checkpoint: Checkpoint, context: AttentionContext, emissions: Emissions, beam: float):
        self._checkpoint, self._context, self._emissions, self._beam = checkpoint, context, emissions, beam
        self._is_first = in_first_half(emissions.utterances)
        self._tokenizer = Tokenizer(checkpoint.tokenizer_path)

    def rows(self, graphs: Mapping[str, GraphFiles], word_lm: Path | None, lm: Path | None) -> list[Row]:
        """Each decoder with its defaults, and tuned. graphs: by topology; lm: of the tokenizer's pieces."""
        found = [self._row(CTC, "", self._stream_texts(CTC, DecodingConfig()))]
        beam = f"{CTC_BEAM}, {CTC_BEAM_SIZE}"
        plain = self._stream_texts(CTC_BEAM, DecodingConfig(beam_size=CTC_BEAM_SIZE))
        found.append(self._row(beam, "no language model", plain))
        if lm is not None:
            found.append(self._tuned(f"{beam}, LM of pieces", self._ctc_beam(lm), {"lm": CTC_BEAM_WEIGHTS}))
        for topology, files in graphs.items():
            found += self._graph_rows(topology, files)
        if word_lm is not None and not missing_peer("flashlight"):
            graph = next(iter(graphs.values())).graph
            grid = {"lm": FLASHLIGHT_WEIGHTS, "word score": FLASHLIGHT_WORD_SCORES}
            found.append(self._tuned(FLASHLIGHT, self._flashlight(graph, word_lm), grid))
        return found

    def _graph_rows(self, topology: str, files: GraphFiles) -> list[Row]:
        name, decode = f"wfst, {topology}", self._wfst(files.graph)
        rows = []
        for weight, penalty in ((1 / 3, 0.0), (1 / 3, 2 / 3)):
            texts, as_kaldi = decode(weight, penalty), None
            setting = _setting({"lm": weight, "penalty": penalty})
            if files.fst is not None:
                peer = self._kaldi(files)(weight, penalty)
                as_kaldi = sum(map(str.__eq__, texts, peer))
                rows.append(self._row(f"{KALDI_DECODER}, {topology}", setting, peer))
            rows.append(self._row(name, setting, texts)._replace(texts_as_kaldi=as_kaldi))
        grid = {"lm": LM_WEIGHTS, "penalty": BLANK_PENALTIES}
        return [*rows, self._tuned(name, decode, grid)]

    def _tuned(self, decoder: str, decode: Decode, grid: Mapping[str, Sequence[float]]) -> Row:
        """The row of the setting with the fewest errors in the first half; of equal ones, the first."""
        rows = [
            self._row(decoder, _setting(dict(zip(grid, values, strict=True))), decode(*values))
            for values in product(*grid.values())
        ]
        progress(f"  [{self._context.left},{self._context.right}] {decoder}: {len(rows)} settings")
        return min(rows, key=lambda row: row.first.edits)._replace(is_tuned=True)

    def _row(self, decoder: str, setting: str, texts: Sequence[str]) -> Row:
        words = list(zip(self._emissions.word_edits(texts), self._is_first, strict=True))
        halves = (total(counts for counts, is_first in words if is_first is half) for half in (True, False))
        return Row(f"[{self._context.left},{self._context.right}]", decoder, setting, False, *halves)

    def _stream_texts(self, name: str, decoding: DecodingConfig) -> list[str]:
        """Texts of a stream decoder of the server, whole utterances at once."""
        checkpoint, emissions = self._checkpoint, self._emissions
        count, offer = len(emissions.encoded), offer_decoders(checkpoint.config, decoding)
        fusion = StreamFusion(checkpoint, self._tokenizer, decoding, count)
        driver, device = select_driver("no_graphs", "cpu").driver, torch.device("cpu")
        parts = DecoderParts(checkpoint, decoding, fusion, driver, device, count, count, 1)
        decoder = build_stream_decoders(offer, parts)[name]
        options = parse_stream_options({"decoder": name}, decoding, self._tokenizer, offer)
        slots = list(range(count))
        for slot in slots:
            fusion.open(slot, options)
        decoder.open(slots, [options] * count)
        encoded = torch.nn.utils.rnn.pad_sequence(emissions.encoded, batch_first=True)
        with torch.inference_mode():
            decoded = decoder.decode(Chunk(slots, encoded, emissions.lengths, [True] * count))
        return [self._tokenizer.decode([token.id for token in (*one.stable, *one.unstable)]) for one in decoded]

    def _ctc_beam(self, lm: Path) -> Decode:
        def decode(weight: float) -> list[str]:
            decoding = DecodingConfig(beam_size=CTC_BEAM_SIZE, lm=str(lm), lm_weight=weight)
            return self._stream_texts(CTC_BEAM, decoding)

        return decode

    def _wfst(self, graph: DecodingGraph) -> Decode:
        def decode(weight: float, penalty: float) -> list[str]:
            limits, batch = WfstLimits(self._beam, penalty), len(self._emissions.lengths)
            search = GraphSearch(graph, batch, weight, limits)
            return texts(graph, search.decode(self._emissions.log_probs, self._emissions.lengths))

        return decode

    def _kaldi(self, files: GraphFiles) -> Decode:
        def decode(weight: float, penalty: float) -> list[str]:
            assert files.fst is not None
            peer = KaldiDecoder(files.fst, weight, self._beam)
            return texts(files.graph, peer.decode(peer.scaled(self._emissions.penalized(penalty))))

        return decode

    def _flashlight(self, graph: DecodingGraph, arpa: Path) -> Decode:
        peer, log_probs = Flashlight(graph, arpa), self._emissions.penalized(0)

        def decode(weight: float, word_score: float) -> list[str]:
            return texts(graph, peer.decode(log_probs, weight, word_score))

        return decode


class BoostRow(NamedTuple):
    """All utterances with one boost of their own words."""

    topology: str
    boost: float
    words: EditCounts
    doubled: int
    """Words beyond the reference's that equal the word before them; below 0: fewer than in the references."""


def boost_rows(files: Mapping[str, GraphFiles], emissions: Emissions, beam: float, lm_weight: float) -> list[BoostRow]:
    """Each utterance boosts the words of its reference, n * boost for a word of n pieces, on both topologies.

    The server rejects these boosts on a compact graph; here the search takes them.
    """
    rows = []
    for topology, (graph, _) in files.items():
        for boost in BOOSTS:
            table = word_boosts(graph, [utterance.reference.lower().split() for utterance in emissions.utterances])
            search = GraphSearch(
                graph, len(emissions.lengths), lm_weight, WfstLimits(beam), word_boosts=np.float32(boost) * table
            )
            found = texts(graph, search.decode(emissions.log_probs, emissions.lengths))
            references = [utterance.reference.lower() for utterance in emissions.utterances]
            doubled = sum(map(doubled_words, found)) - sum(map(doubled_words, references))
            rows.append(BoostRow(topology, boost, total(emissions.word_edits(found)), doubled))
    return rows


def word_boosts(graph: DecodingGraph, lists: Sequence[Sequence[str]]) -> np.ndarray:
    """[lists, W] float32: pieces of each word that is on the list, of its first spelling; 0 for the others.

    Words that the graph lacks are left out.
    """
    numbers = {word: number for number, word in enumerate(graph.words)}
    first = graph.spelling_words[:-1]
    pieces = graph.spelling_offsets[first + 1] - graph.spelling_offsets[first]
    table = np.zeros((len(lists), len(graph.words)), np.float32)
    for row, words in zip(table, lists, strict=True):
        known = [numbers[word] for word in words if numbers.get(word)]
        row[known] = pieces[known]
    return table


def doubled_words(text: str) -> int:
    """Words that equal the word before them."""
    words = text.split()
    return sum(map(str.__eq__, words, words[1:]))


def texts(graph: DecodingGraph, found: Sequence[Sequence[int]]) -> list[str]:
    """Words as text."""
    return [" ".join(graph.words[word] for word in words) for words in found]


def check_parity(rows: Sequence[Row], utterances: int) -> None:
    """RunError where some text differs from kaldi-decoder's."""
    for row in rows:
        if row.texts_as_kaldi not in (None, utterances):
            raise RunError(
                f"{row.decoder}, {row.setting}: {row.texts_as_kaldi} of {utterances} texts as kaldi-decoder's"
            )


def _setting(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2g}" for name, value in values.items())
