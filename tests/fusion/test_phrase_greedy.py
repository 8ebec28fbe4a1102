"""A word that the model does not know is heard, and a stream beside it that did not ask for it is not touched."""

import torch

from penstock.fusion.fusion import Fusion, FusionRows
from penstock.fusion.phrase_boost import NO_PHRASES
from penstock.fusion.phrase_list import PhraseList
from penstock.fusion.phrase_store import PhraseStore
from penstock.tokenizer import Tokenizer


def acoustic_scores(tokenizer: Tokenizer, heard: str, meant: str, margin: float) -> torch.Tensor:
    """[U, V] log-probabilities: the tokens of `heard` are likeliest, those of `meant` lie `margin` behind."""
    heard_tokens, meant_tokens = tokenizer.encode(heard), tokenizer.encode(meant)
    assert len(heard_tokens) == len(meant_tokens)
    logits = torch.full((len(heard_tokens), tokenizer.size), -9.0)
    for row, (token, meant_token) in enumerate(zip(heard_tokens, meant_tokens, strict=True)):
        logits[row, meant_token] = -margin
        logits[row, token] = 0.0
    return logits.log_softmax(1)


def greedy(scores: torch.Tensor, fusion: Fusion, starts: list[int]) -> torch.Tensor:
    """[B, U] labels: at each step the best of acoustic score and boost. Every stream hears `scores` [U, V]."""
    rows = FusionRows(torch.zeros(len(starts), dtype=torch.int64), torch.tensor(starts), torch.zeros(len(starts)))
    labels = []
    for step in scores:
        labels.append((step + fusion.label_scores(rows)).argmax(1))
        _, rows = fusion.advance(rows, labels[-1])
    return torch.stack(labels, dim=1)


def test_an_unknown_word_is_heard_by_the_stream_that_asked_for_it(bundled_model):
    tokenizer = Tokenizer(bundled_model / "tokenizer.model")
    store = PhraseStore(tokenizer, 2**20)
    fusion = Fusion(boost=store.boost)
    scores = acoustic_scores(tokenizer, "pan stock seven", "pen stack seven", margin=1.0)
    asked = PhraseList([("pen stack", 1.5), ("pen sticks", 1.5)])
    starts = [
        store.acquire(asked),
        NO_PHRASES,
        store.acquire(PhraseList([("pen stack", 0.25)])),
        store.acquire(PhraseList([("pan stock", -1.5)])),
    ]
    texts = [tokenizer.decode(row.tolist()) for row in greedy(scores, fusion, starts)]
    assert texts[0] == "pen stack seven"
    assert texts[1] == "pan stock seven"
    assert texts[2] == "pan stock seven"  # too little to outweigh what was heard
    assert texts[3] != texts[1]
    assert texts[3].startswith("pan")  # the penalty comes with the last token
