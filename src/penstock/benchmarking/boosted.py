"""Label-looping in which every stream has a phrase list of its own: what boosting costs. Knows no clock."""

import random

import torch

from penstock.benchmarking.made_up_tokenizer import MadeUpTokenizer
from penstock.benchmarking.random_transducer import RandomTransducer
from penstock.checkpoint import Checkpoint
from penstock.decoding.greedy_state import GreedyRows, fresh_rows
from penstock.decoding.networks import TransducerNetwork
from penstock.decoding_config import DEFAULT_DECODING
from penstock.fusion.fusion import Fusion, FusionRows
from penstock.fusion.phrase_list import PhraseList
from penstock.fusion.phrase_tiers import PhraseTiers
from penstock.tokenizer import Tokenizer

PHRASES_PER_STREAM = 100
_BOOST = 1.0
_FAINT_BOOST = 0.001
"""For random weights: labels stay what they are without it, so that the same work is compared."""
_MEMORY_BYTES = DEFAULT_DECODING.phrase_memory_mib * 2**20


class BoostedStreams:
    """Phrase lists of made-up words for `streams` streams, all different."""

    def __init__(self, tokenizer: Tokenizer | MadeUpTokenizer, streams: int, device: str):
        """StreamError where the phrases of so many streams do not fit into a server's memory for them."""
        chance = random.Random(0)
        tiers = PhraseTiers(tokenizer, _MEMORY_BYTES, device)
        starts = [tiers.acquire(_phrases(tokenizer, chance)) for _ in range(streams)]
        self.fusions = [Fusion(boost=boost) for boost in tiers.boosts]
        self._needs = [tiers.least_boost(start) for start in starts]
        self._starts = torch.tensor(starts, device=device)

    def least_fusion(self, batch: int) -> int:
        """Index of the cheapest of `fusions` that knows the first `batch` streams' lists: what a server takes."""
        return max(self._needs[:batch])

    def start_rows(self, network: TransducerNetwork, batch: int) -> GreedyRows:
        """Fresh hypotheses of the first `batch` streams."""
        zeros = torch.zeros(batch, dtype=torch.int64, device=network.device)
        rows = FusionRows(zeros, self._starts[:batch].clone(), zeros.float())
        return fresh_rows(network, batch)._replace(fusion=rows)


def tokenizer_of(checkpoint: Checkpoint | RandomTransducer) -> Tokenizer | MadeUpTokenizer:
    """The checkpoint's own; a made-up one for random weights."""
    if isinstance(checkpoint, RandomTransducer):
        return MadeUpTokenizer(checkpoint.config.transducer.vocabulary_size)
    return Tokenizer(checkpoint.tokenizer_path)


def _phrases(tokenizer: Tokenizer | MadeUpTokenizer, chance: random.Random) -> PhraseList:
    texts: dict[str, None] = {}
    boost = _FAINT_BOOST if isinstance(tokenizer, MadeUpTokenizer) else _BOOST
    while len(texts) < PHRASES_PER_STREAM:
        tokens = chance.choices(range(tokenizer.size), k=chance.randint(3, 8))
        text = " ".join(tokenizer.decode(tokens).split())
        if text and tokenizer.unknown not in tokenizer.encode(text):
            texts[text] = None
    return PhraseList((text, boost) for text in texts)
