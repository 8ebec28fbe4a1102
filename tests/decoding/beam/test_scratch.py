"""Absent hypotheses in a step."""

import torch

from penstock.decoding.beam.expansion import Limits
from penstock.decoding.beam.hyps import ABSENT, KEEP
from penstock.decoding.beam.scratch import select_best
from penstock.decoding.beam.search import BeamSearch
from penstock.decoding.sizes import BeamSizes
from tests.helpers.beam import make, start


def test_absent_hypotheses_take_no_column(tmp_path):
    """A blank is forced on a beam of one empty hypothesis: the three absent ones stay without a label."""
    _, network = make(tmp_path, 2)
    search, states = BeamSearch(network), start(network, 2, BeamSizes(4))
    frames = torch.randn(2, 3, network.frame_width, dtype=torch.float64)
    scratch = search._scratch(frames, torch.tensor([3, 3]), torch.tensor([True, True]), states)
    scratch.mark_unfinished()
    expander, is_forced = search.algorithm._expander, scratch.is_unfinished
    assert is_forced.tolist() == [[True, False, False, False]] * 2
    scores = search.algorithm.operations.score(scratch, is_forced)
    extension = select_best(scratch, expander.rank(scores, Limits(4, scratch.beam_sizes)), is_forced)
    assert (extension.scores > ABSENT).tolist() == is_forced.tolist()
    assert extension.labels.tolist() == [[network.blank, KEEP, KEEP, KEEP]] * 2
    assert extension.jumps.tolist() == [[1, 0, 0, 0]] * 2
    scratch.hyps.extend(extension)
    assert scratch.hyps.columns.tolist() == [128, 128]  # room for unstable labels
