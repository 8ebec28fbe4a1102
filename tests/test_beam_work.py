"""What becomes of hypotheses that there are not."""

import torch

from penstock.decoding.beam_expansion import Limits
from penstock.decoding.beam_hyps import ABSENT, KEEP
from penstock.decoding.beam_search import BeamSearch
from penstock.decoding.beam_sizes import BeamSizes
from penstock.decoding.beam_work import choose
from tests.beam import make, start


def test_absent_hypotheses_take_no_column(tmp_path):
    """A stream of one empty hypothesis that a blank is forced on: of four places three stay without a label."""
    _, network = make(tmp_path, 2)
    search, rows = BeamSearch(network), start(network, 2, BeamSizes(4))
    frames = torch.randn(2, 3, network.joint_hidden, dtype=torch.float64)
    work = search._work(frames, torch.tensor([3, 3]), torch.tensor([True, True]), rows)
    work.mark_unfinished()
    expander, is_forced = search.search._expander, work.is_unfinished
    assert is_forced.tolist() == [[True, False, False, False]] * 2
    extension = choose(
        work, expander.rank(search.search.moves.score(work, is_forced), Limits(4, work.beam_sizes)), is_forced
    )
    assert (extension.scores > ABSENT).tolist() == is_forced.tolist()
    assert extension.labels.tolist() == [[network.blank, KEEP, KEEP, KEEP]] * 2
    assert extension.jumps.tolist() == [[1, 0, 0, 0]] * 2
    work.hyps.extend(extension)
    assert work.hyps.columns.tolist() == [128, 128]  # those of the tail
