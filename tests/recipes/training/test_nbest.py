"""N-best lists of a head in training, and bands around them, on the bundled model and real speech."""

import dataclasses
from pathlib import Path

import pytest
import torch

from penstock.evaluation.errors import compare
from penstock.frontend.audio_file import read_audio
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext, IlmPair
from penstock.model.tokenizer import Tokenizer
from recipes.training.encoded import EncodedBatch, EncodedUtterance, FrozenEncoder, collate
from recipes.training.heads import FactorizedHead, StandardHead
from recipes.training.lattice import all_cells, band_cells
from recipes.training.mwer import NBestSearch, hypothesis_scores

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[3]
MODEL = ROOT / "models" / "an4-rnnt-hybrid"
"""Its head is in training here."""


@pytest.fixture(scope="module")
def speech() -> EncodedBatch:
    encoder = FrozenEncoder(Checkpoint(MODEL), AttentionContext(70, 6))
    paths = sorted((ROOT / "tests" / "data" / "an4" / "flac").glob("*.flac"))
    frames = encoder.encode([encoder.log_mel(read_audio(path, 16_000)) for path in paths])
    return collate([EncodedUtterance(rows, [], "") for rows in frames])


def _head() -> StandardHead:
    checkpoint = Checkpoint(MODEL)
    head = StandardHead(checkpoint.config.transducer, checkpoint.config.encoder.d_model)
    head.load_tensors(checkpoint.tensors(*head.prefixes))
    return head.eval()


def test_lists_are_ordered_and_their_sums_are_at_least_the_searchs_scores(speech):
    head = _head()
    lists = NBestSearch(Checkpoint(MODEL).config, head)(speech.encoded, speech.frame_counts)
    assert (lists.rows.diff() >= 0).all() and len(lists.best()) == len(speech.references)
    same = lists.rows.diff() == 0
    assert (lists.scores.diff()[same] <= 0).all()
    assert len(set(zip(lists.rows.tolist(), map(tuple, lists.label_lists()), strict=True))) == len(lists.rows)
    cells = all_cells(speech.frame_counts[lists.rows], lists.label_counts)
    with torch.no_grad():
        whole = head.log_probability(speech.encoded, lists.rows, lists.labels, cells)
    assert (whole >= lists.scores - 1e-4).all()
    torch.testing.assert_close(lists.scores, lists.acoustic_scores)


def test_a_band_of_four_frames_keeps_the_loss_with_a_third_of_the_points(speech):
    head = _head()
    lists = NBestSearch(Checkpoint(MODEL).config, head)(speech.encoded, speech.frame_counts)
    counts = speech.frame_counts[lists.rows], lists.label_counts
    whole, band = all_cells(*counts), band_cells(*counts, lists.times, 4, 4)
    with torch.no_grad():
        scores = [head.log_probability(speech.encoded, lists.rows, lists.labels, cells) for cells in (whole, band)]
    lost = scores[0] - scores[1]
    assert (lost >= -1e-9).all()
    assert lost.mean() <= 1e-3
    assert len(band.rows) <= 0.35 * len(whole.rows)


def _addresses(network) -> list[int]:
    """RunningGateway of all weights but packed ones."""
    parts = [network._lstm, *network._lstm._hidden_products, network._predictor_projection, network._output]
    tensors = [value for part in parts for value in vars(part).values() if isinstance(value, torch.Tensor)]
    return [tensor.data_ptr() for tensor in tensors if tensor.layout is torch.strided]


def test_the_search_uses_the_present_weights(speech):
    head, tokenizer = _head(), Tokenizer(Checkpoint(MODEL).tokenizer_path)
    search = NBestSearch(Checkpoint(MODEL).config, head, beam_size=2)
    first = search(speech.encoded, speech.frame_counts)
    addresses = _addresses(search._network)
    with torch.no_grad():
        head.joint["output"].bias[:-1] -= 50.0
    assert not any(search(speech.encoded, speech.frame_counts).best())
    with torch.no_grad():
        head.joint["output"].bias[:-1] += 50.0
    again = search(speech.encoded, speech.frame_counts)
    assert again.best() == first.best()
    assert any(compare("enter one oh four", tokenizer.decode(labels)).words.edits == 0 for labels in again.best())
    assert _addresses(search._network) == addresses and len(addresses) >= 6


def test_lists_of_a_factorized_head_are_ranked_by_equation_5(speech):
    checkpoint, pair = Checkpoint(MODEL), IlmPair(0.6, 0.6)
    config = dataclasses.replace(checkpoint.config.transducer, kind="factorized", joint_activation="tanh")
    torch.manual_seed(0)
    head = FactorizedHead(config, checkpoint.config.encoder.d_model).eval()
    lists = NBestSearch(checkpoint.config, head, 3, pair)(speech.encoded, speech.frame_counts)
    arguments = head, speech.encoded, speech.frame_counts, lists
    every_frame = speech.encoded.shape[1]
    with torch.no_grad():
        whole = hypothesis_scores(*arguments, pair, every_frame)
        without = hypothesis_scores(*arguments, pair._replace(beta=0.0), every_frame)
    assert (whole >= lists.scores - 1e-4).all()
    torch.testing.assert_close(lists.scores - lists.acoustic_scores, whole - without, atol=1e-4, rtol=1e-5)
