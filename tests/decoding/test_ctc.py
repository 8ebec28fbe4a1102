"""Greedy CTC search equals the reference, for any chunking and any batch."""

import random

import pytest
import torch

from penstock.decoding.ctc import CtcHead, CtcStates, CtcStateStore, CtcTokens, decode_greedily, fresh_states
from penstock.errors import CheckpointError
from tests.helpers.random_models import random_checkpoint, random_ctc_checkpoint
from tests.helpers.reference import ctc
from tests.helpers.reference.greedy import Label

LENGTHS = (40, 1, 23, 0, 40)


@pytest.fixture(scope="module")
def head(tmp_path_factory) -> CtcHead:
    return CtcHead(random_ctc_checkpoint(tmp_path_factory.mktemp("ctc"), 1))


def utterances(head: CtcHead, seed: int = 1) -> list[torch.Tensor]:
    """Log-probabilities [T, V + 1] in which a frame is often like the one before, so that labels repeat."""
    generator, found = torch.Generator().manual_seed(seed), []
    for length in LENGTHS:
        frames = torch.randn(length, 16, generator=generator)
        kept = torch.where(torch.rand(length, generator=generator) < 0.6, torch.arange(length), 0).cummax(0).values
        found.append(head.log_probs(frames[kept].unsqueeze(0))[0])
    return found


def tokens_of(tokens: CtcTokens, row: int) -> list[Label]:
    *fields, lengths = tokens
    return [Label(*values) for values in zip(*(f[row, : lengths[row]].tolist() for f in fields), strict=True)]


def decode(rows: list[torch.Tensor], chunks: list[list[int]], head: CtcHead) -> list[list[Label]]:
    """Decodes the utterances together; chunks: for each chunk the frames of each row. Padding is noise."""
    states, at = fresh_states(head, len(rows)), [0] * len(rows)
    found: list[list[Label]] = [[] for _ in rows]
    for lengths in chunks:
        batch = torch.randn(len(rows), max(lengths), head.vocabulary_size + 1)
        for row, (log_probs, length) in enumerate(zip(rows, lengths, strict=True)):
            batch[row, :length] = log_probs[at[row] : at[row] + length]
            at[row] += length
        update, states = decode_greedily(batch, torch.tensor(lengths), states)
        for row, labels in enumerate(found):
            labels += tokens_of(update.closed, row)
    assert at == [len(row) for row in rows]
    return [labels + tokens_of(update.open, row) for row, labels in enumerate(found)]


def expected(rows: list[torch.Tensor]) -> list[list[Label]]:
    return [ctc.greedy(row) for row in rows]


def test_whole_utterances_equal_the_reference(head):
    rows = utterances(head)
    found = decode(rows, [list(LENGTHS)], head)
    assert found == expected(rows)
    assert max(label.duration for labels in found for label in labels) > 1
    assert sum(map(len, found)) > 20


def test_chunks_of_any_sizes_equal_the_whole(head):
    rows, left, chance, chunks = utterances(head, 2), list(LENGTHS), random.Random(1), []
    while any(left):
        chunks.append([chance.randint(0, min(5, frames)) for frames in left])
        left = [frames - taken for frames, taken in zip(left, chunks[-1], strict=True)]
    assert decode(rows, chunks, head) == expected(rows)


def test_a_stream_without_frames_keeps_its_state(head):
    rows = utterances(head)
    _, states = decode_greedily(rows[0].unsqueeze(0), torch.tensor([40]), fresh_states(head, 1))
    update, after = decode_greedily(torch.randn(1, 3, 49), torch.tensor([0]), states)
    assert update.closed.lengths.tolist() == [0]
    assert all(torch.equal(a, b) for a, b in zip(states, after, strict=True))


def test_a_label_may_be_repeated_behind_a_blank_only():
    # labels a = 0, blank = 1: a a _ a
    log_probs = torch.tensor([[0.0, -9.0], [0.0, -9.0], [-9.0, 0.0], [0.0, -9.0]]).unsqueeze(0)
    states = CtcStates(torch.tensor([1]), torch.tensor([0]), torch.tensor([0.0]), torch.tensor([0]))
    update, after = decode_greedily(log_probs, torch.tensor([4]), states)
    assert tokens_of(update.closed, 0) == [Label(0, 0, 2, 0.0)]
    assert tokens_of(update.open, 0) == [Label(0, 3, 1, 0.0)]
    assert [int(field) for field in after] == [0, 3, 0, 4]


def test_states_in_slots(head):
    store = CtcStateStore(head, 3)
    slots, fresh = torch.tensor([2, 0]), fresh_states(head, 2)
    store.scatter(slots, CtcStates(*(torch.full_like(field, 5) for field in fresh)))
    assert [field.tolist() for field in store.gather(torch.arange(3))][:2] == [[5, 48, 5], [5, 0, 5]]
    store.reset(slots)
    assert all(torch.equal(a, b) for a, b in zip(store.gather(slots), fresh, strict=True))
    assert store.bytes_per_slot == 3 * 8 + 4


def test_the_head_is_a_linear_layer_and_a_softmax(head, tmp_path):
    checkpoint = random_ctc_checkpoint(tmp_path, 1)
    tensors, frames = checkpoint.tensors("ctc."), torch.randn(2, 3, 16)
    logits = torch.einsum("btd,vd->btv", frames.double(), tensors["ctc.weight"].double()) + tensors["ctc.bias"]
    assert torch.allclose(head.log_probs(frames).double(), logits.log_softmax(-1), rtol=0, atol=1e-4)
    assert head.log_probs(frames[:, :0]).shape == (2, 0, head.blank + 1)


def test_a_model_without_a_ctc_head_is_rejected(tmp_path):
    with pytest.raises(CheckpointError, match="has no CTC head, only RNN-T"):
        CtcHead(random_checkpoint(tmp_path, 1))
