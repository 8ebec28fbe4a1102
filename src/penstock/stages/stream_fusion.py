"""The language model and the phrase lists of a decoder's streams: who chose what, and where each one starts."""

from collections.abc import Sequence

import torch

from penstock.checkpoint import Checkpoint
from penstock.decoding_config import DecodingConfig
from penstock.fusion.fusion import Fusion, FusionRows
from penstock.fusion.ngram_file import load_ngram_lm
from penstock.fusion.phrase_arena import NO_PHRASES
from penstock.fusion.phrase_tiers import PhraseTiers
from penstock.fusion.token_names import read_token_names
from penstock.stream_options import StreamOptions
from penstock.tokenizer import Tokenizer


class StreamFusion:
    """External scores by slot."""

    def __init__(
        self, checkpoint: Checkpoint, tokenizer: Tokenizer, config: DecodingConfig, slots: int, device: str = "cpu"
    ):
        names = read_token_names(checkpoint.tokenizer_path) if config.lm else None
        self._lm = load_ngram_lm(config.lm, names, device, kernels=config.kernels) if config.lm else None
        self._phrases = PhraseTiers(tokenizer, config.phrase_memory_mib * 2**20, device)
        self.fusions = tuple(Fusion(self._lm, boost) for boost in self._phrases.boosts)
        """What searches use: the last knows all that streams can choose, one before it is cheaper. See `needed_by`."""
        self._device = device
        self._lists = [NO_PHRASES] * slots
        self._weights = [0.0] * slots

    def open(self, slot: int, options: StreamOptions) -> None:
        """Notes a new stream's choice and gives back what the slot's last one held.

        StreamError where its phrase list has no room; the slot holds nothing then.
        """
        self.close(slot)
        self._lists[slot] = self._phrases.acquire(options.phrases)
        self._weights[slot] = options.lm_weight

    def close(self, slot: int) -> None:
        """Gives back what the slot's stream held; nothing where it held nothing."""
        self._phrases.release(self._lists[slot])
        self._lists[slot], self._weights[slot] = NO_PHRASES, 0.0

    def needed_by(self, slots: Sequence[int]) -> int:
        """How many of `fusions`, from the first, these streams need: the last of so many knows all that they chose.

        0 where none of them chose a language model or phrases.
        """
        return max(map(self._need, slots), default=0)

    def _need(self, slot: int) -> int:
        if self._lists[slot] != NO_PHRASES:
            return 1 + self._phrases.least_boost(self._lists[slot])
        return int(self._weights[slot] != 0.0)

    def start_rows(self, slots: Sequence[int]) -> FusionRows:
        """Where new streams in these slots start; fields [B]."""
        start = self._lm.start_state if self._lm is not None else 0
        return FusionRows(
            lm_states=torch.full((len(slots),), start, dtype=torch.int64, device=self._device),
            boost_states=torch.tensor([self._lists[slot] for slot in slots], dtype=torch.int64, device=self._device),
            lm_weights=torch.tensor([self._weights[slot] for slot in slots], dtype=torch.float32, device=self._device),
        )
