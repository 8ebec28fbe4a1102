"""A boosted phrase wins in the stream that has it. Streams beside each other: pipeline/stream_decoders."""

import torch

from penstock.model.tokenizer import Tokenizer
from penstock.scoring.boosting.arena import NO_PHRASES
from penstock.scoring.boosting.cache import PhraseCache
from penstock.scoring.boosting.phrases import merge_phrases, tokenize_phrases
from penstock.scoring.fusion import Fusion, FusionStates


def acoustic_scores(tokenizer: Tokenizer, best: str, second: str, margin: float) -> torch.Tensor:
    """[U, V] log-probabilities: the tokens of `best` are likeliest, those of `second` are `margin` lower."""
    best_tokens, second_tokens = tokenizer.encode(best), tokenizer.encode(second)
    assert len(best_tokens) == len(second_tokens)
    logits = torch.full((len(best_tokens), tokenizer.size), -9.0)
    for row, (token, second_token) in enumerate(zip(best_tokens, second_tokens, strict=True)):
        logits[row, second_token] = -margin
        logits[row, token] = 0.0
    return logits.log_softmax(1)


def greedy(scores: torch.Tensor, fusion: Fusion, starts: list[int]) -> torch.Tensor:
    """[B, U] labels: at each step the best of acoustic score and boost. All streams have `scores` [U, V]."""
    states = FusionStates(torch.zeros(len(starts), dtype=torch.int64), torch.tensor(starts), torch.zeros(len(starts)))
    labels = []
    for step in scores:
        labels.append((step + fusion.score_all(states).scores).argmax(1))
        _, states = fusion.advance(states, labels[-1])
    return torch.stack(labels, dim=1)


def test_a_boosted_word_wins_in_its_own_stream_only(bundled_model):
    tokenizer = Tokenizer(bundled_model / "tokenizer.model")
    cache = PhraseCache(tokenizer, 2**20)
    fusion = Fusion(boost=cache.automaton)
    scores = acoustic_scores(tokenizer, "pan stock seven", "pen stack seven", margin=1.0)
    boosted = tokenize_phrases(merge_phrases([("pen stack", 1.5), ("pen sticks", 1.5)]), tokenizer)
    starts = [
        cache.acquire(boosted),
        NO_PHRASES,
        cache.acquire(tokenize_phrases(merge_phrases([("pen stack", 0.25)]), tokenizer)),
        cache.acquire(tokenize_phrases(merge_phrases([("pan stock", -1.5)]), tokenizer)),
    ]
    texts = [tokenizer.decode(row.tolist()) for row in greedy(scores, fusion, starts)]
    assert texts[0] == "pen stack seven"
    assert texts[1] == "pan stock seven"
    assert texts[2] == "pan stock seven"  # too little to outweigh the acoustic scores
    assert texts[3] != texts[1]
    assert texts[3].startswith("pan")  # the penalty comes with the last token
