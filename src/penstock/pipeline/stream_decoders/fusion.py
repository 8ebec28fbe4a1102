"""The language model and the phrase lists that the streams of a decoder chose, by slot."""

from collections.abc import Callable, Sequence

import torch

from penstock.decoding.tensors.tensor_tree import copy_to_device
from penstock.model.bundle import Checkpoint
from penstock.model.config import ModelConfig
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.scoring.boosting.arena import NO_PHRASES, PhraseArena
from penstock.scoring.boosting.cache import PhraseCache
from penstock.scoring.fusion import Fusion, FusionStates
from penstock.scoring.ngram.io import load_ngram_lm, read_token_names
from penstock.scoring.wfst.words import WordBoosts
from penstock_common.options import WFST


class StreamFusion:
    """The fusion of all streams, and what each slot's stream uses of it."""

    def __init__(
        self, checkpoint: Checkpoint, tokenizer: Tokenizer, config: DecodingConfig, slots: int, device: str = "cpu"
    ):
        self._lm = None
        if config.lm:
            names = read_token_names(checkpoint.tokenizer_path)
            self._lm = load_ngram_lm(config.lm, names, device, kernels=config.kernels)
        self._phrases = PhraseCache(tokenizer, config.phrase_memory_mib * 2**20, device)
        self.fusion = Fusion(self._lm, self._phrases.automaton, _is_textless(checkpoint.config, device))
        """The scores for a search; only for batches in which it `is_used`."""
        self.word_boosts: WordBoosts | None = None
        """Boosts of words of the decoding graph, where there is one."""
        self._device = device
        self._lists = [NO_PHRASES] * slots
        self._weights = [0.0] * slots

    def open(self, slot: int, options: ResolvedOptions) -> None:
        """Stores a new stream's options and releases the phrase list of the slot's last stream.

        StreamError where there is no memory for the phrase list; the slot holds none then.
        """
        # Of the slot's last stream, whose END may never have come.
        self.close(slot)
        self._acquire(slot, options)
        if options.decoder != WFST:  # the graph has the language model
            self._weights[slot] = options.lm_weight

    def change(self, slot: int, options: ResolvedOptions, restart: Callable[[int], None]) -> None:
        """Replaces the phrase list of the slot's stream. StreamError where there is no memory for it.

        restart: called with the slot while both lists are in memory; takes the stream's search to the new one.
        """
        before, self._lists[slot] = self._lists[slot], NO_PHRASES
        try:
            self._acquire(slot, options)
            restart(slot)
        finally:
            # After the search has left the old list, whose states have scores until here; also where that failed.
            self._phrases.release(before)

    def _acquire(self, slot: int, options: ResolvedOptions) -> None:
        # A table has the boosts of a graph's words.
        has_table = options.decoder == WFST and self.word_boosts is not None
        if not (has_table and self.word_boosts is not None and self.word_boosts.open(slot, options.phrases)):
            self._lists[slot] = self._phrases.acquire(options.phrases)

    def close(self, slot: int) -> None:
        """Releases the phrase list of the slot's stream, if it has one."""
        if self.word_boosts is not None:
            self.word_boosts.close(slot)
        self._phrases.release(self._lists[slot])
        self._lists[slot], self._weights[slot] = NO_PHRASES, 0.0

    @property
    def phrases(self) -> PhraseArena:
        """The automaton of all phrase lists."""
        return self._phrases.automaton

    def has_phrases(self, slots: Sequence[int]) -> bool:
        """True where a stream in `slots` has a phrase list."""
        return any(self._lists[slot] != NO_PHRASES for slot in slots)

    def phrase_start(self, slot: int) -> int:
        """The state in which the slot's phrase list starts; NO_PHRASES without one."""
        return self._lists[slot]

    def is_used(self, slots: Sequence[int]) -> bool:
        """True where a stream in `slots` chose a language model or phrases."""
        return any(self._lists[slot] != NO_PHRASES or self._weights[slot] != 0.0 for slot in slots)

    def start_states(self, slots: Sequence[int]) -> FusionStates:
        """The states in which new streams in `slots` start; fields [B]."""
        device = torch.device(self._device)
        start = self._lm.start_state if self._lm is not None else 0
        return FusionStates(
            lm_states=torch.full((len(slots),), start, dtype=torch.int64, device=device),
            boost_states=copy_to_device([self._lists[slot] for slot in slots], torch.int64, device),
            lm_weights=copy_to_device([self._weights[slot] for slot in slots], torch.float32, device),
        )


def _is_textless(config: ModelConfig, device: str) -> torch.Tensor | None:
    """[V + 1] bool, True for labels of which language model and phrases know nothing; None without any."""
    if not config.textless_labels:
        return None
    is_textless = torch.zeros(config.vocabulary_size + 1, dtype=torch.bool)
    is_textless[list(config.textless_labels)] = True
    return is_textless.to(device)
