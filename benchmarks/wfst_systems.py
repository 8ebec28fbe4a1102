"""Searches of the graph benchmark on the same CTC log-probabilities: this project's, kaldi-decoder, flashlight-text."""

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from penstock.decoding.tensor_tree import map_tensors
from penstock.decoding.wfst.captured_search import wfst_with_driver
from penstock.decoding.wfst.device_graph import DeviceGraph
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.decoding.wfst.paths import BestPath
from penstock.decoding.wfst.search import WfstSearch
from penstock.decoding.wfst.sizes import WfstLimits, WfstSizes
from penstock.decoding.wfst.start import StartChoices, StartStates
from penstock.decoding.wfst.state import WfstStateStore
from penstock.graphs.select import select_driver
from penstock.kernels.capability import AUTO
from penstock.scoring.boosting.arena import PhraseArena
from penstock.scoring.wfst.graph_file import NO_WORD, DecodingGraph

KALDI_DECODER, FLASHLIGHT = "kaldi-decoder", "flashlight-text"
_MANY = 2**31 - 1
_FLASHLIGHT_BEAM, _FLASHLIGHT_THRESHOLD = 200, 25.0


def missing_peer(module: str) -> bool:
    """Whether a peer's module cannot be imported."""
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:
        return True


class GraphSearch:
    """The search of `wfst` with its slots: gather, decode, scatter, report, as the server's decoder does it."""

    def __init__(  # noqa: PLR0913 - what a benchmark varies
        self,
        graph: DecodingGraph,
        streams: int,
        lm_weight: float,
        limits: WfstLimits,
        device: str = "cpu",
        chunk_encoder_frames: int = 7,
        word_boosts: np.ndarray | None = None,
        phrases: tuple[PhraseArena, list[int]] | None = None,
        kernels: str = AUTO,
    ):
        """word_boosts: [streams, W] float32, a row for each stream; None: none. phrases: an automaton, and the state in
        which the list of each stream starts; only together with `word_boosts`.
        """
        self._graph, self._lm_weight, self._device = DeviceGraph(graph, device), lm_weight, device
        search = WfstSearch(self._graph, WfstSizes(), limits, kernels)
        self._slots = torch.arange(streams, device=device)
        self._boosts, self._word_boosts = None, word_boosts
        if word_boosts is not None:
            automaton = None if phrases is None else phrases[0]
            self._boosts = StreamBoosts(torch.from_numpy(word_boosts).to(device), self._slots, automaton)
        self._phrase_starts = [0] * streams if phrases is None else phrases[1]
        driver = select_driver("auto", device).driver
        self._search = wfst_with_driver(search, driver, streams, chunk_encoder_frames, self._boosts)
        self._start = StartStates(graph, self._graph, search.sizes, limits.beam)
        self.store = WfstStateStore(self._graph, streams, search.sizes)

    @torch.inference_mode()
    def decode(
        self,
        log_probs: torch.Tensor,
        lengths: torch.Tensor | None = None,
        chunk_encoder_frames: int | None = None,
    ) -> list[list[int]]:
        """Words of each row of [B, T, V + 1].

        lengths: [B] int64 frames of each row, None: T; chunk_encoder_frames: None for whole utterances.
        """
        batch, frames = log_probs.shape[:2]
        slots, left = self._slots[:batch], torch.full((batch,), frames) if lengths is None else lengths
        left = left.to(self._device)
        rows = [None] * batch if self._word_boosts is None else self._word_boosts[:batch]
        choices = [StartChoices(self._lm_weight, row, self._phrase_starts[number]) for number, row in enumerate(rows)]
        self.store.scatter(slots, self._start.build(choices))
        boosts = None if self._boosts is None else self._boosts._replace(table_rows=slots)
        words: list[list[int]] = [[] for _ in range(batch)]
        for chunk in log_probs.split(chunk_encoder_frames or frames, dim=1):
            taken = left.clamp(max=chunk.shape[1])
            left = left - taken
            path, states = self._search.decode(chunk, taken, left == 0, self.store.gather(slots), boosts)
            self.store.scatter(slots, states)
            path = map_tensors(lambda t: t.cpu(), path)
            _append(words, path, path.stable)
        # The last best path behind its stable part.
        _append(words, path, path.lengths, path.stable)
        return words

    @property
    def bytes_per_stream(self) -> int:
        """Memory of a slot."""
        return self.store.bytes_per_slot


def _append(words: list[list[int]], path: BestPath, ends: torch.Tensor, begins: torch.Tensor | None = None) -> None:
    """Adds the words of each row's nodes from `begins` (None: 0) to `ends`."""
    firsts = [0] * len(words) if begins is None else begins.tolist()
    for found, row, first, end in zip(words, path.words, firsts, ends.tolist(), strict=True):
        found += [word for word in row[first:end].tolist() if word != NO_WORD]


class KaldiDecoder:
    """kaldi-decoder's `FasterDecoder` over the same graph in OpenFst's format; one stream after another, one thread.

    Costs are those of the log-probabilities over the graph's weight, so the graph's are as they are in the file.
    """

    def __init__(self, fst: Path, lm_weight: float, beam: float):
        """lm_weight: above 0."""
        import kaldi_decoder
        import kaldifst

        self._kaldi_decoder, self._kaldifst, self._scale = kaldi_decoder, kaldifst, 1 / lm_weight
        self._fst = kaldifst.StdConstFst.read(str(fst))
        self._options = kaldi_decoder.FasterDecoderOptions(beam=beam * self._scale, max_active=_MANY, min_active=0)

    def scaled(self, log_probs: Iterable[torch.Tensor]) -> list[np.ndarray]:
        """Input of `decode`, from [T, V + 1] of each stream."""
        return [(row * self._scale).contiguous().numpy() for row in log_probs]

    def decode(self, scaled: Sequence[np.ndarray], chunk_encoder_frames: int | None = None) -> list[list[int]]:
        """Words of each stream; with chunks, also the best path after each chunk, as an interim result needs it."""
        return [self._words(row, chunk_encoder_frames or len(row)) for row in scaled]

    def _words(self, log_probs: np.ndarray, chunk_encoder_frames: int) -> list[int]:
        decoder = self._kaldi_decoder.FasterDecoder(self._fst, self._options)
        decoder.init_decoding()
        words: list[int] = []
        for at in range(0, len(log_probs), chunk_encoder_frames):
            decoder.advance_decoding(self._kaldi_decoder.DecodableCtc(log_probs[at : at + chunk_encoder_frames], at))
            found, path = decoder.get_best_path()
            words = self._kaldifst.get_linear_symbol_sequence(path)[2] if found else []
        return list(words)


class Flashlight:
    """flashlight-text's lexicon decoder with KenLM; the best words of each stream, for word errors only.

    It holds 200 hypotheses and follows all tokens. At a word's end it cannot take a repeat of the last piece.
    """

    def __init__(self, graph: DecodingGraph, arpa: Path):
        """arpa: a language model of words."""
        from flashlight.lib.text import decoder, dictionary
        from flashlight.lib.text.decoder.kenlm import KenLM

        self._module, self._blank, self._words = decoder, graph.vocabulary_size, dictionary.Dictionary()
        for word in (*graph.words[1:], "<unk>"):
            self._words.add_entry(word)
        self._lm = KenLM(str(arpa), self._words)
        self._trie, start = decoder.Trie(self._blank + 1, self._blank), self._lm.start(False)
        for word, spelling in _spellings(graph):
            self._trie.insert(spelling, word - 1, self._lm.score(start, word - 1)[1])
        self._trie.smear(decoder.SmearingMode.MAX)

    def decode(self, log_probs: Sequence[torch.Tensor], lm_weight: float, word_score: float) -> list[list[int]]:
        """Words, by the graph's numbers, of each [T, V + 1]."""
        module, blank = self._module, self._blank
        options = module.LexiconDecoderOptions(
            _FLASHLIGHT_BEAM, blank + 1, _FLASHLIGHT_THRESHOLD, lm_weight, word_score, float("-inf"), 0.0, False,
            module.CriterionType.CTC,
        )  # fmt: skip
        unknown = self._words.get_index("<unk>")
        decoder = module.LexiconDecoder(options, self._trie, self._lm, blank, blank, unknown, [], False)
        rows = [row.contiguous().numpy() for row in log_probs]
        found = [decoder.decode(row.ctypes.data, *row.shape)[0].words for row in rows]
        return [[word + 1 for word in words if word >= 0] for words in found]


def _spellings(graph: DecodingGraph) -> list[tuple[int, list[int]]]:
    """(word, tokens) of every spelling."""
    of_words, starts = graph.spelling_words, graph.spelling_offsets
    return [
        (word, graph.spelling_tokens[starts[one] : starts[one + 1]].tolist())
        for word in range(1, len(graph.words))
        for one in range(of_words[word], of_words[word + 1])
    ]
