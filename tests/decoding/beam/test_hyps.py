"""BatchedBeamHyps against lists: random extensions, merging, back-trace."""

import random

import pytest
import torch

from penstock.decoding.beam.hyps import ABSENT, KEEP, BatchedBeamHyps, Extension, Hypotheses, TimedLabels, TokenLists

BLANK = 5


def empty(batch: int, beam_size: int, spare_columns: int) -> BatchedBeamHyps:
    whole = torch.zeros(batch, beam_size, dtype=torch.int64)
    scores = torch.full((batch, beam_size), ABSENT, dtype=torch.float64)
    scores[:, 0] = 0.0
    rows = Hypotheses(scores, torch.zeros_like(scores), whole, whole, whole + KEEP, whole, whole)
    nothing = torch.zeros(batch, beam_size, 0, dtype=torch.int64)
    tokens = TimedLabels(nothing, nothing, nothing, nothing.float(), nothing.float())
    return BatchedBeamHyps(rows, TokenLists(tokens, whole), spare_columns, BLANK)


def extension(parents, labels, jumps, scores) -> Extension:
    parents, labels, jumps = (torch.tensor(t) for t in (parents, labels, jumps))
    scores = torch.tensor(scores, dtype=torch.float64)
    return Extension(parents, labels, jumps, scores, scores * 0.1, scores * 0.2, scores * 0.3)


@pytest.mark.parametrize("seed", range(3))
def test_random_extensions(seed):
    chance, batch, beam_size = random.Random(seed), 2, 3
    hyps, plain = empty(batch, beam_size, 1), [[[] for _ in range(beam_size)] for _ in range(batch)]
    frames = [[0] * beam_size for _ in range(batch)]
    for step in range(25):
        if step % 4 == 0:
            hyps.grow()
        draw = [[(chance.randrange(3), chance.randint(KEEP, BLANK)) for _ in range(beam_size)] for _ in range(batch)]
        jumps = [[0 if label == KEEP else max(chance.randint(0, 2), label == BLANK) for _, label in r] for r in draw]
        parents, labels = ([[pair[i] for pair in row] for row in draw] for i in (0, 1))
        while int(hyps.columns.max()) + 1 >= hyps.max_columns:
            hyps.grow()
        hyps.extend(extension(parents, labels, jumps, [[-1.0] * beam_size] * batch))
        plain = [
            [
                plain[b][p] + ([(label, frames[b][p], jumps[b][k])] if 0 <= label < BLANK else [])
                for k, (p, label) in enumerate(draw[b])
            ]
            for b in range(batch)
        ]
        frames = [[frames[b][p] + jumps[b][k] for k, (p, _) in enumerate(draw[b])] for b in range(batch)]
    assert hyps.beam.next_frames.tolist() == frames
    tokens, lengths = hyps.trace_back(int(hyps.stored_lengths.max()))
    columns = zip(*(field.flatten(0, 1).tolist() for field in tokens[:3]), strict=True)
    found = [list(zip(*rows, strict=True)) for rows in columns]
    expected = [hypothesis for row in plain for hypothesis in row]
    assert [row[:n] for row, n in zip(found, lengths.flatten().tolist(), strict=True)] == expected
    assert hyps.beam.lengths.flatten().tolist() == [len(hypothesis) for hypothesis in expected]
    texts = [tuple(label for label, _, _ in hypothesis) for hypothesis in expected]
    hashes = hyps.beam.hashes.flatten().tolist()
    assert len(set(zip(texts, hashes, strict=True))) == len(set(texts)) == len(set(hashes))


def test_equal_hypotheses_are_merged_into_the_best():
    hyps = empty(1, 4, 4)
    hyps.extend(extension([[0, 0, 0, 0]], [[3, 3, 2, BLANK]], [[1, 1, 1, 1]], [[-2.0, -1.0, -3.0, -4.0]]))
    hyps.merge()
    total = torch.logaddexp(torch.tensor(-2.0), torch.tensor(-1.0))
    torch.testing.assert_close(hyps.beam.scores[0].float(), torch.tensor([ABSENT, total, -3.0, -4.0]))


def test_hypotheses_at_different_frames_are_not_merged():
    """The hypotheses' futures differ: the same labels, but other encoder frames to come."""
    hyps = empty(1, 3, 4)
    hyps.extend(extension([[0, 0, 0]], [[3, 3, 3]], [[1, 2, 2]], [[-1.0, -2.0, -2.0]]))
    hyps.merge()
    assert (hyps.beam.scores > ABSENT).tolist() == [[True, True, False]]


def test_absent_hypotheses_stay_absent():
    hyps = empty(2, 3, 2)
    hyps.merge()
    assert (hyps.beam.scores > ABSENT).sum(dim=1).tolist() == [1, 1]
