"""The language model and the phrase lists themselves in a captured search; lists that come later are seen."""

import random

import pytest
import torch

from penstock.decoding.captured_search import CapturedSearch
from penstock.decoding.greedy_state import fresh_rows
from penstock.decoding.label_looping import LabelLooping
from penstock.decoding.networks import TransducerNetwork
from penstock.fusion.fusion import Fusion, FusionRows
from penstock.fusion.ngram_file import load_ngram_lm
from penstock.fusion.phrase_store import PhraseStore
from penstock.fusion.token_names import TokenNames
from penstock.graphs.staged_driver import StagedDriver
from penstock.graphs.while_driver import WhileDriver
from tests.decoding import assert_same_labels, labels_of, random_streams
from tests.fake_capture import FakeBuilder, FakeCapture
from tests.fusion.phrases import NumberTokenizer, as_list, random_boosts
from tests.random_models import random_checkpoint
from tests.reference.ngram import write_random_arpa

DRIVERS = {"staged": lambda: StagedDriver(FakeCapture()), "while": lambda: WhileDriver(FakeBuilder())}


@pytest.mark.parametrize("is_dense", [False, True])
@pytest.mark.parametrize("driver", DRIVERS)
def test_captured_is_eager_with_lists_that_come_after_the_capture(tmp_path, driver, is_dense):
    network = TransducerNetwork(random_checkpoint(tmp_path, 1, durations=(0, 1, 2), blank_rate=0.5))
    pieces = ["<unk>", *(f"▁p{label}" for label in range(1, network.blank))]
    write_random_arpa(tmp_path / "lm.arpa", random.Random(1), pieces[1:], order=3, with_unknown=True)
    lm = load_ngram_lm(tmp_path / "lm.arpa", TokenNames(tuple(pieces), 0))
    store = PhraseStore(NumberTokenizer([False] * network.blank), 2**22, is_dense=is_dense)
    search = LabelLooping(network, max_symbols=3, fusion=Fusion(lm, store.boost))
    captured = CapturedSearch(search, DRIVERS[driver](), max_batch=4, frames=5)
    chance = random.Random(2)
    starts = [0, *(store.acquire(as_list(random_boosts(chance, network.blank))) for _ in range(2))]
    fusion = FusionRows(torch.full((3,), lm.start_state), torch.tensor(starts), torch.tensor([0.0, 0.6, 0.3]))
    frame_rows = network.project_encoder(torch.stack(random_streams(3, (17, 17, 17))))
    lengths, rows = torch.tensor([17, 9, 16]), fresh_rows(network, 3)
    plain, *found = [
        [labels_of(one.decode(frame_rows, lengths, chosen)[0], row) for row in range(3)]
        for one, chosen in (
            (search, rows), (search, rows._replace(fusion=fusion)), (captured, rows._replace(fusion=fusion)),
        )
    ]  # fmt: skip
    assert_same_labels(found[1], found[0])
    assert found[0][0] == plain[0]
    assert all(one != other for one, other in zip(found[0][1:], plain[1:], strict=True))
