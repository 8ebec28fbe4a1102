"""Phrase lists in the searches: each stream decodes as it would alone, whatever lists are added and removed."""

import random

import pytest
import torch

from penstock.decoding.beam.memory import BeamStateStore
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch
from penstock.decoding.greedy.memory import GreedyStateStore
from penstock.decoding.greedy.search import LabelLooping
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.decoding.transducer.networks import open_network
from penstock.model.tokenizer import Tokenizer
from penstock.scoring.boosting.arena import NO_PHRASES
from penstock.scoring.boosting.cache import PhraseCache
from penstock.scoring.boosting.phrases import TokenPhrases, merge_phrases, tokenize_phrases
from penstock.scoring.fusion import Fusion, FusionStates
from tests.helpers import beam, decoding
from tests.helpers.decoding import random_streams
from tests.helpers.phrases import NumberTokenizer, as_list, random_boosts
from tests.helpers.random_models import random_checkpoint

DURATIONS = ((), (0, 2, 4))
"""RNN-T and TDT."""
MEMORY = 2**22
SIZES = BeamSizes(2)


class Greedy:
    """Label-looping over slots, as the decoder stage runs it."""

    def __init__(self, network: TransducerNetwork, fusion: Fusion, slots: int):
        self._search, self.state = LabelLooping(network, max_symbols=2, fusion=fusion), GreedyStateStore(network, slots)

    def open(self, slots: torch.Tensor, fusion: FusionStates) -> None:
        self.state.reset(slots, fusion)

    def decode(self, projected_frames, lengths, is_end, slots) -> list[list]:
        hyps, states = self._search.decode(projected_frames, lengths, self.state.gather(slots))
        self.state.scatter(slots, states)
        return [decoding.labels_of(hyps, row) for row in range(len(slots))]


class Alsd:
    """ALSD++ over slots."""

    algorithm = BeamAlgorithm.ALSD

    def __init__(self, network: TransducerNetwork, fusion: Fusion, slots: int):
        self._search = BeamSearch(network, self.algorithm, fusion, max_symbols=2)
        self.state = BeamStateStore(network, slots, SIZES)

    def open(self, slots: torch.Tensor, fusion: FusionStates) -> None:
        self.state.reset(slots, None, fusion)

    def decode(self, projected_frames, lengths, is_end, slots) -> list[list]:
        update, states = self._search.decode(projected_frames, lengths, is_end, self.state.gather(slots))
        self.state.scatter(slots, states)
        best = self._search.n_best(states)
        return [
            beam.labels_of(update.stable, row) + (beam.labels_of(best.unstable, row, 0) if is_end[row] else [])
            for row in range(len(slots))
        ]


class Aes(Alsd):
    """AES++ over slots."""

    algorithm = BeamAlgorithm.AES


SEARCHES = (Greedy, Alsd, Aes)


class Session:
    """Streams with phrase lists that start, decode frames and end."""

    def __init__(self, kind: type, network: TransducerNetwork, slots: int = 64, memory: int = MEMORY):
        self._network = network
        self.cache = PhraseCache(NumberTokenizer([label % 3 == 0 for label in range(network.blank)]), memory)
        self._search = kind(network, Fusion(boost=self.cache.automaton), slots)
        self.starts: dict[int, int] = {}
        self.found: dict[int, list] = {}

    def open(self, slots: list[int], lists: list[TokenPhrases]) -> None:
        starts = [self.cache.acquire(phrases) for phrases in lists]
        self.starts.update(zip(slots, starts, strict=True))
        self.found.update((slot, []) for slot in slots)
        zeros = torch.zeros(len(slots), dtype=torch.int64)
        self._search.open(torch.tensor(slots), FusionStates(zeros, torch.tensor(starts), zeros.float()))

    def decode_frames(self, frames: dict[int, torch.Tensor], ended: set[int] = frozenset()) -> None:
        """frames: slot -> [T, D]; ended: slots whose stream ends."""
        slots = list(frames)
        encoded = torch.nn.utils.rnn.pad_sequence(list(frames.values()), batch_first=True)
        lengths = torch.tensor([len(one) for one in frames.values()])
        is_end = torch.tensor([slot in ended for slot in slots])
        states = self._network.project_encoder(encoded)
        for slot, labels in zip(slots, self._search.decode(states, lengths, is_end, torch.tensor(slots)), strict=True):
            self.found[slot] += [label[:3] for label in labels]
        for slot in ended:
            self.cache.release(self.starts.pop(slot))


def network_of(tmp_path, durations) -> TransducerNetwork:
    checkpoint = random_checkpoint(tmp_path, 1, durations=durations, blank_rate=0.3)
    return open_network(checkpoint, dtype=torch.float64)


def lists_of(network: TransducerNetwork, number: int, seed: int = 0, max_phrases: int = 40) -> list[TokenPhrases]:
    generator = random.Random(seed)
    return [as_list(random_boosts(generator, network.blank, max_phrases)) for _ in range(number)]


@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("kind", SEARCHES)
def test_64_streams_with_64_lists_decode_as_each_alone(tmp_path, kind, durations):
    network = network_of(tmp_path, durations)
    lists, streams = lists_of(network, 64, max_phrases=15), random_streams(1, (10,) * 4) * 16
    together = Session(kind, network)
    together.open(list(range(64)), lists)
    for chunk in (slice(0, 4), slice(4, 10)):
        ended = set(range(64)) if chunk.stop == 10 else set()
        together.decode_frames({slot: frames[chunk] for slot, frames in enumerate(streams)}, ended)
    assert len({tuple(found) for found in together.found.values()}) > 8
    alone = Session(kind, network, slots=1)
    for slot in range(0, 64, 9):  # all of them: pipeline/test_stream_fusion.py
        alone.open([0], [lists[slot]])
        alone.decode_frames({0: streams[slot]}, {0})
        assert alone.found[0] == together.found[slot]


@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("kind", SEARCHES)
def test_adding_and_removing_lists_changes_no_other_stream(tmp_path, kind, durations):
    network = network_of(tmp_path, durations)
    lists, guests = lists_of(network, 2), lists_of(network, 6, seed=1, max_phrases=100)
    streams, guest_frames = random_streams(2, (12, 12)), random_streams(3, (2,))[0]
    memory = 120_000  # little, so that pages are given to one list after another
    quiet, busy = (Session(kind, network, slots=3, memory=memory) for _ in range(2))
    for session in (quiet, busy):
        session.open([0, 1], lists)
    come, places = iter(guests), set()
    for start in range(0, 12, 2):
        frames = {slot: stream[start : start + 2] for slot, stream in enumerate(streams)}
        ended = {0, 1} if start == 10 else set()
        quiet.decode_frames(frames, ended)
        busy.open([2], [next(come)])
        places.add(busy.starts[2])
        busy.decode_frames({2: guest_frames} | frames, ended | {2})
    assert len(places) < 6
    assert [quiet.found[slot] for slot in (0, 1)] == [busy.found[slot] for slot in (0, 1)]
    assert len(quiet.found[0]) > 3


@pytest.mark.parametrize("kind", [Greedy, Alsd])
def test_a_thousand_phrases_per_stream(tmp_path, kind):
    network = network_of(tmp_path, ())
    generator, streams = random.Random(0), random_streams(4, (12, 12))
    lists = []
    for _ in streams:
        phrases: set[tuple[int, ...]] = set()
        while len(phrases) < 1000:
            phrases.add(tuple(generator.choices(range(network.blank), k=generator.randint(2, 5))))
        lists.append(as_list(dict.fromkeys(sorted(phrases), 1.0)))
    together = Session(kind, network)
    together.open([0, 1], lists)
    together.decode_frames(dict(enumerate(streams)), {0, 1})
    for slot, phrases in enumerate(lists):
        alone = Session(kind, network, slots=1)
        alone.open([0], [phrases])
        alone.decode_frames({0: streams[slot]}, {0})
        assert alone.found[0] == together.found[slot]
    plain = Session(kind, network, slots=1)
    plain.open([0], [()])
    plain.decode_frames({0: streams[0]}, {0})
    assert plain.found[0] != together.found[0]


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
