"""Phrase lists in the searches themselves: each stream decodes as it would alone, whatever lists come and go."""

import random

import pytest
import torch

from penstock.decoding.beam_search import BeamAlgorithm, BeamSearch
from penstock.decoding.beam_sizes import BeamSizes
from penstock.decoding.beam_state import BeamState
from penstock.decoding.greedy_state import GreedyState
from penstock.decoding.label_looping import LabelLooping
from penstock.decoding.networks import TransducerNetwork
from penstock.fusion.fusion import Fusion, FusionRows
from penstock.fusion.phrase_list import PhraseList
from penstock.fusion.phrase_store import PhraseStore
from tests import beam, decoding
from tests.decoding import random_streams
from tests.fusion.phrases import NumberTokenizer, as_list, random_boosts
from tests.random_models import random_checkpoint

CASES = (((), True), ((0, 2, 4), False))
"""Durations, and whether the form is dense: RNN-T and TDT, both forms."""
MEMORY = 2**22
SIZES = BeamSizes(2)


class Greedy:
    """Label-looping over slots, as the decoder stage runs it."""

    def __init__(self, network: TransducerNetwork, fusion: Fusion, slots: int):
        self._search, self.state = LabelLooping(network, max_symbols=2, fusion=fusion), GreedyState(network, slots)

    def open(self, slots: torch.Tensor, fusion: FusionRows) -> None:
        self.state.reset(slots, fusion)

    def decode(self, frame_rows, lengths, is_end, slots) -> list[list]:
        hyps, rows = self._search.decode(frame_rows, lengths, self.state.gather(slots))
        self.state.scatter(slots, rows)
        return [decoding.labels_of(hyps, row) for row in range(len(slots))]


class Alsd:
    """ALSD++ over slots."""

    algorithm = BeamAlgorithm.ALSD

    def __init__(self, network: TransducerNetwork, fusion: Fusion, slots: int):
        self._search = BeamSearch(network, self.algorithm, fusion, max_symbols=2)
        self.state = BeamState(network, slots, SIZES)

    def open(self, slots: torch.Tensor, fusion: FusionRows) -> None:
        self.state.reset(slots, None, fusion)

    def decode(self, frame_rows, lengths, is_end, slots) -> list[list]:
        update, rows = self._search.decode(frame_rows, lengths, is_end, self.state.gather(slots))
        self.state.scatter(slots, rows)
        best = self._search.n_best(rows)
        return [
            beam.labels_of(update.stable, row) + (beam.labels_of(best.tails, row, 0) if is_end[row] else [])
            for row in range(len(slots))
        ]


class Aes(Alsd):
    """AES++ over slots."""

    algorithm = BeamAlgorithm.AES


SEARCHES = (Greedy, Alsd, Aes)


class Session:
    """Streams that start, hear frames and end, with their lists."""

    def __init__(self, kind: type, network: TransducerNetwork, is_dense: bool, slots: int = 64, memory: int = MEMORY):
        self._network = network
        self.store = PhraseStore(NumberTokenizer([label % 3 == 0 for label in range(network.blank)]), memory,
                                 is_dense=is_dense)  # fmt: skip
        self._search = kind(network, Fusion(boost=self.store.boost), slots)
        self.starts: dict[int, int] = {}
        self.found: dict[int, list] = {}

    def open(self, slots: list[int], lists: list[PhraseList]) -> None:
        starts = [self.store.acquire(phrases) for phrases in lists]
        self.starts.update(zip(slots, starts, strict=True))
        self.found.update((slot, []) for slot in slots)
        zeros = torch.zeros(len(slots), dtype=torch.int64)
        self._search.open(torch.tensor(slots), FusionRows(zeros, torch.tensor(starts), zeros.float()))

    def hear(self, frames: dict[int, torch.Tensor], ended: set[int] = frozenset()) -> None:
        """frames: slot -> [T, D]"""
        slots = list(frames)
        encoded = torch.nn.utils.rnn.pad_sequence(list(frames.values()), batch_first=True)
        lengths = torch.tensor([len(one) for one in frames.values()])
        is_end = torch.tensor([slot in ended for slot in slots])
        rows = self._network.project_encoder(encoded)
        for slot, labels in zip(slots, self._search.decode(rows, lengths, is_end, torch.tensor(slots)), strict=True):
            self.found[slot] += [label[:3] for label in labels]
        for slot in ended:
            self.store.release(self.starts.pop(slot))


def network_of(tmp_path, durations) -> TransducerNetwork:
    checkpoint = random_checkpoint(tmp_path, 1, durations=durations, blank_rate=0.3)
    return TransducerNetwork(checkpoint, dtype=torch.float64)


def lists_of(network: TransducerNetwork, number: int, seed: int = 0, most: int = 40) -> list[PhraseList]:
    chance = random.Random(seed)
    return [as_list(random_boosts(chance, network.blank, most)) for _ in range(number)]


@pytest.mark.parametrize(("durations", "is_dense"), CASES)
@pytest.mark.parametrize("kind", SEARCHES)
def test_64_streams_with_64_lists_decode_as_each_alone(tmp_path, kind, durations, is_dense):
    network = network_of(tmp_path, durations)
    lists, streams = lists_of(network, 64, most=15), random_streams(1, (10,) * 4) * 16
    together = Session(kind, network, is_dense)
    together.open(list(range(64)), lists)
    for chunk in (slice(0, 4), slice(4, 10)):
        ended = set(range(64)) if chunk.stop == 10 else set()
        together.hear({slot: frames[chunk] for slot, frames in enumerate(streams)}, ended)
    assert len({tuple(found) for found in together.found.values()}) > 8
    alone = Session(kind, network, is_dense, slots=1)
    for slot in range(0, 64, 9):  # all of them: test_stream_phrases.py
        alone.open([0], [lists[slot]])
        alone.hear({0: streams[slot]}, {0})
        assert alone.found[0] == together.found[slot]


@pytest.mark.parametrize(("durations", "is_dense"), CASES)
@pytest.mark.parametrize("kind", SEARCHES)
def test_lists_that_come_and_go_change_nothing_for_others(tmp_path, kind, durations, is_dense):
    network = network_of(tmp_path, durations)
    lists, guests = lists_of(network, 2), lists_of(network, 6, seed=1, most=100)
    streams, guest_frames = random_streams(2, (12, 12)), random_streams(3, (2,))[0]
    memory = 600_000 if is_dense else 120_000  # little, so that pages are given to one list after another
    quiet, busy = (Session(kind, network, is_dense, slots=3, memory=memory) for _ in range(2))
    for session in (quiet, busy):
        session.open([0, 1], lists)
    come, places = iter(guests), set()
    for start in range(0, 12, 2):
        frames = {slot: stream[start : start + 2] for slot, stream in enumerate(streams)}
        ended = {0, 1} if start == 10 else set()
        quiet.hear(frames, ended)
        busy.open([2], [next(come)])
        places.add(busy.starts[2])
        busy.hear({2: guest_frames} | frames, ended | {2})
    assert len(places) < 6
    assert [quiet.found[slot] for slot in (0, 1)] == [busy.found[slot] for slot in (0, 1)]
    assert len(quiet.found[0]) > 3


@pytest.mark.parametrize(("kind", "is_dense"), [(Greedy, False), (Greedy, True), (Alsd, True)])
def test_a_thousand_phrases_a_stream(tmp_path, kind, is_dense):
    network = network_of(tmp_path, ())
    chance, streams = random.Random(0), random_streams(4, (12, 12))
    lists = []
    for _ in streams:
        phrases: set[tuple[int, ...]] = set()
        while len(phrases) < 1000:
            phrases.add(tuple(chance.choices(range(network.blank), k=chance.randint(2, 5))))
        lists.append(as_list(dict.fromkeys(sorted(phrases), 1.0)))
    together = Session(kind, network, is_dense)
    together.open([0, 1], lists)
    together.hear(dict(enumerate(streams)), {0, 1})
    for slot, phrases in enumerate(lists):
        alone = Session(kind, network, is_dense, slots=1)
        alone.open([0], [phrases])
        alone.hear({0: streams[slot]}, {0})
        assert alone.found[0] == together.found[slot]
    plain = Session(kind, network, is_dense, slots=1)
    plain.open([0], [PhraseList([])])
    plain.hear({0: streams[0]}, {0})
    assert plain.found[0] != together.found[0]
