"""Shared parts of transducer networks: choices of a batch, internal language models' weights, and jumps in time."""

import pytest
import torch

from penstock.decoding.transducer.interface import FrameAdvance
from penstock.decoding.transducer.networks import open_network
from penstock.model.config import TransducerConfig
from tests.helpers.decoding import DURATIONS
from tests.helpers.random_models import random_checkpoint
from tests.helpers.reference.greedy import GreedyReference


@pytest.mark.parametrize("seed", range(6))
def test_scores_after_some_labels(tmp_path, seed):
    checkpoint = random_checkpoint(tmp_path, seed, durations=DURATIONS[seed])
    network = open_network(checkpoint)
    reference = GreedyReference(checkpoint.config.transducer, checkpoint.tensors())
    blank = network.blank
    encoded = torch.randn(3, 16, generator=torch.Generator().manual_seed(seed))
    projected, state = network.start(1)
    plain, plain_state = reference.predict(blank, reference.start())
    for label in (5, 0, 47):
        scores = network.score(network.project_encoder(encoded[None])[0], projected)
        logits = torch.stack([reference.joint(frame, plain) for frame in encoded])
        expected = [logits[:, : blank + 1].log_softmax(1), logits[:, blank + 1 :].log_softmax(1)]
        torch.testing.assert_close(torch.cat([scores.labels, scores.blank[:, None]], 1), expected[0])
        if DURATIONS[seed]:
            torch.testing.assert_close(scores.durations, expected[1])
        else:
            assert scores.durations is None
        projected, state = network.predict(torch.tensor([label]), state)
        plain, plain_state = reference.predict(label, plain_state)


def test_predicting_in_a_batch_is_predicting_alone(tmp_path):
    network = open_network(random_checkpoint(tmp_path, 1))
    labels = torch.tensor([3, 9, 1])
    together = network.predict(labels, network.start(3).state)
    for row, label in enumerate(labels):
        alone = network.predict(label[None], network.start(1).state)
        torch.testing.assert_close(together.projected[row], alone.projected[0])
        for both, single in zip(together.state, alone.state, strict=True):
            torch.testing.assert_close(both[row], single[0])


@pytest.mark.parametrize(
    ("durations", "chosen", "after_label", "after_blank"),
    [
        ((), None, 0, 1),
        ((0, 1, 2), 0, 0, 1),
        ((0, 1, 2), 2, 2, 2),
        ((0, 2, 4), 1, 2, 2),
        ((0, 2, 4), 2, 4, 4),
        ((1, 0, 3), 0, 1, 1),
        ((1, 0, 3), 1, 0, 1),
        ((7,), 0, 7, 7),
    ],
)
def test_frames(durations, chosen, after_label, after_blank):
    advance = FrameAdvance(TransducerConfig(5, 4, 1, 4, "relu", durations))
    duration = None if chosen is None else torch.tensor([chosen, chosen])
    frames = advance(duration, torch.tensor([False, True]))
    assert frames.tolist() == [after_label, after_blank]
    assert frames.dtype == torch.int64
