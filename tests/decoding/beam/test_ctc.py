"""CTC beam search: every label sequence's probability where the beam holds all, and the reference where it does not."""

import random

import pytest
import torch

from penstock.decoding.beam.captured_search import CapturedBeamSearch
from penstock.decoding.beam.memory import BeamStateStore
from penstock.decoding.beam.search import BeamSearch
from penstock.decoding.ctc import CtcHead
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.tensors.tensor_tree import leaves
from penstock.graphs.no_while_loops import NoWhileLoopsDriver
from penstock.graphs.program import EagerDriver, While
from penstock.scoring.fusion import Fusion
from tests.helpers.beam import (
    Choices,
    TableAutomaton,
    assert_same_beam,
    labels_of,
    search_in_chunks,
    search_whole,
    start,
)
from tests.helpers.ctc import GivenLogProbs
from tests.helpers.decoding import random_streams
from tests.helpers.fake_capture import FakeCapture
from tests.helpers.random_models import random_ctc_checkpoint
from tests.helpers.reference import ctc

LENGTHS = (22, 9, 0, 15)
SIZES = BeamSizes(4, carried_encoder_frames=0)
SCORE_ERROR, LABEL_BONUS = 1e-9, 0.75
WEIGHTS = [0.25, 0.0, 0.125, 0.5]


@pytest.fixture(scope="module")
def head(tmp_path_factory) -> CtcHead:
    return CtcHead(random_ctc_checkpoint(tmp_path_factory.mktemp("ctc"), 3), dtype=torch.float64)


def repeating_streams(seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[torch.Tensor]:
    """Frames that are often almost the one before, so that labels repeat and no two paths have the same score."""
    chance, found = torch.Generator().manual_seed(seed), []
    for frames, others in zip(random_streams(seed, lengths), random_streams(seed + 100, lengths), strict=True):
        places = torch.where(torch.rand(len(frames), generator=chance) < 0.6, torch.arange(len(frames)), 0)
        kept = places.cummax(0).values if len(frames) else places
        found.append(frames[kept] + 0.05 * others)
    return found


def prefixes(found: list) -> list[tuple[int, ...]]:
    return [tuple(label.id for label in one.labels) for one in found]


@pytest.mark.parametrize(("frames", "labels"), [(3, 2), (5, 1), (2, 4)])
def test_a_beam_that_holds_all_hypotheses_has_the_probability_of_every_label_sequence(frames, labels):
    generator = torch.Generator().manual_seed(frames)
    log_probs = torch.randn(frames, labels + 1, generator=generator).double().log_softmax(dim=1)
    head = GivenLogProbs(labels)
    (found,) = search_whole(head, BeamSearch(head), [log_probs], BeamSizes(32, 0))
    expected = ctc.exhaustive(log_probs)
    assert set(prefixes(found)) == {prefix for prefix in expected if expected[prefix] > -torch.inf}
    for one, prefix in zip(found, prefixes(found), strict=True):
        assert one.score == pytest.approx(expected[prefix], abs=SCORE_ERROR)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert sum(torch.tensor([one.score for one in found]).exp()) == pytest.approx(1.0)


@pytest.mark.parametrize("beam_size", [1, 2, 4, 8])
@pytest.mark.parametrize("is_fused", [False, True])
def test_the_beam_is_that_of_the_reference(head, beam_size, is_fused):
    table, streams = TableAutomaton(2), repeating_streams(beam_size)
    fusion, weight = (Fusion(table), 0.5) if is_fused else (Fusion(), 0.0)
    search, sizes = BeamSearch(head, fusion=fusion, label_bonus=LABEL_BONUS), BeamSizes(beam_size, 0)
    lengths = torch.tensor(LENGTHS)
    encoded = torch.nn.utils.rnn.pad_sequence(streams, batch_first=True, padding_value=torch.nan)
    states = start(head, len(streams), sizes, Choices(weights=[weight] * len(streams)))
    projected = head.project_encoder(encoded)
    update, states = search.decode(projected, lengths, torch.ones(4).bool(), states)
    for row, stream in enumerate(streams):
        plain = table.plain(weight) if is_fused else None
        expected = ctc.beam(projected[row, : len(stream)], beam_size, plain, label_bonus=LABEL_BONUS)
        hypotheses, stable = states.hypotheses, labels_of(update.stable, row)
        live = hypotheses.scores[row].argsort(descending=True)[: int(hypotheses.is_live[row].sum())]
        found = [tuple(label.id for label in [*stable, *labels_of(states.unstable, row, int(k))]) for k in live]
        assert found == [prefix for prefix, *_ in expected]
        assert hypotheses.last_labels[row, live].tolist() == [last for _, last, *_ in expected]
        for field, place in ((hypotheses.scores, 2), (hypotheses.external_scores, 3)):
            values = torch.tensor([one[place] for one in expected], dtype=torch.float64)
            torch.testing.assert_close(field[row, live], values, rtol=0, atol=SCORE_ERROR)


def test_beam_1_is_greedy_search(head):
    streams = repeating_streams(7, (40, 5))
    found = search_whole(head, BeamSearch(head), streams, BeamSizes(1, 0))
    for stream, beam in zip(streams, found, strict=True):
        expected = ctc.greedy(head.log_probs(stream.unsqueeze(0))[0])
        assert [label[:2] for label in beam[0].labels] == [label[:2] for label in expected]
        assert {label.duration for label in beam[0].labels} == {1}


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("max_frames", [1, 2, 5])
def test_chunks_equal_the_whole(head, max_frames, is_fused):
    streams, choices = repeating_streams(1), Choices(weights=WEIGHTS if is_fused else None)
    search = BeamSearch(head, fusion=Fusion(TableAutomaton(1)) if is_fused else None)
    whole = search_whole(head, search, streams, SIZES, choices)
    assert sum(len(beam[0].labels) for beam in whole) > 5
    states = start(head, len(streams), SIZES, choices)
    chunked = search_in_chunks(head, search, streams, states, random.Random(1), max_frames)
    for found, expected in zip(chunked.n_best, whole, strict=True):
        assert_same_beam(found, expected)
    assert chunked.states.forced_blanks.tolist() == [0] * len(streams)
    for counts, partial in zip(chunked.stable, chunked.partial, strict=True):
        for count, now, later in zip(counts, partial, partial[1:], strict=False):
            assert now[:count] == later[:count]


def test_mixed_choices_in_a_batch_are_each_alone(head):
    streams, wanted, table = repeating_streams(2), [1, 8, 3, 2], Fusion(TableAutomaton(1))
    search = BeamSearch(head, fusion=table)
    together = search_whole(head, search, streams, BeamSizes(8, 0), Choices(wanted, WEIGHTS))
    for row, (stream, beam_size) in enumerate(zip(streams, wanted, strict=True)):
        alone = search if WEIGHTS[row] else BeamSearch(head, fusion=None)
        (expected,) = search_whole(head, alone, [stream], BeamSizes(beam_size, 0), Choices(weights=[WEIGHTS[row]]))
        assert len(together[row]) <= beam_size
        if WEIGHTS[row]:  # without it, the automaton's final score of weight 0 adds nothing either
            assert_same_beam(together[row], expected)
        else:
            assert prefixes(together[row]) == prefixes(expected)


def test_labels_that_the_language_model_does_not_score_get_no_bonus(head):
    streams, are_neutral = repeating_streams(5), torch.ones(head.vocabulary_size + 1, dtype=torch.bool)
    search = BeamSearch(head, fusion=Fusion(TableAutomaton(1), is_neutral=are_neutral), label_bonus=LABEL_BONUS)
    found = search_whole(head, search, streams, SIZES, Choices(weights=WEIGHTS))
    expected = search_whole(head, BeamSearch(head), streams, SIZES, Choices())
    assert [prefixes(beam) for beam in found] == [prefixes(beam) for beam in expected]


def test_a_phrase_is_preferred(head):
    """A bonus for one label, as a phrase gives, puts it into the best hypothesis."""
    table = TableAutomaton(1)
    table.scores, table.final = torch.zeros_like(table.scores), torch.zeros_like(table.final)
    (stream,) = repeating_streams(3, (20,))
    (plain,) = search_whole(head, BeamSearch(head), [stream], SIZES)
    missing = next(label for label in range(48) if label not in prefixes(plain)[0])
    table.scores[:, missing] = 20.0
    search = BeamSearch(head, fusion=Fusion(boost=table))
    (boosted,) = search_whole(head, search, [stream], SIZES)
    assert missing in prefixes(boosted)[0]
    assert boosted[0].score - boosted[0].acoustic == pytest.approx(20.0 * prefixes(boosted)[0].count(missing))


@pytest.mark.parametrize("driver", [EagerDriver(), NoWhileLoopsDriver(FakeCapture())], ids=["eager", "graphs"])
def test_a_prepared_search_equals_the_eager_one(head, driver):
    """Chunks longer than the prepared ones, batches of all buckets, and streams that end at different times."""
    fusion = Fusion(TableAutomaton(1))
    search = BeamSearch(head, fusion=fusion)
    captured = CapturedBeamSearch(search, driver, 4, 3, SIZES)
    for count in (1, 3, 4):
        streams = repeating_streams(count, LENGTHS[:count])
        choices = Choices(weights=WEIGHTS[:count])
        whole = search_whole(head, search, streams, SIZES, choices)
        states = start(head, count, SIZES, choices)
        chunked = search_in_chunks(head, captured, streams, states, random.Random(count), 7)
        for found, expected in zip(chunked.n_best, whole, strict=True):
            assert_same_beam(found, expected)


def test_a_chunk_is_steps_without_loops(head):
    search = BeamSearch(head)
    captured: list = []

    class Recording(EagerDriver):
        def prepare(self, program):
            captured.append(program)
            return super().prepare(program)

    CapturedBeamSearch(search, Recording(), 2, 7, SIZES)
    assert captured and not any(isinstance(item, While) for program in captured for item in program.body)


def test_states_in_slots(head):
    store = BeamStateStore(head, 3, SIZES)
    (stream,) = repeating_streams(1, (12,))
    slots = torch.tensor([1])
    projected = head.project_encoder(stream.unsqueeze(0))
    search = BeamSearch(head)
    _, states = search.decode(projected, torch.tensor([12]), torch.tensor([False]), store.gather(slots))
    store.scatter(slots, states)
    for stored, new in zip(leaves(store.gather(slots)), leaves(states), strict=True):
        assert torch.equal(stored, new)
    store.reset(slots)
    for stored, fresh in zip(leaves(store.gather(slots)), leaves(start(head, 1, SIZES)), strict=True):
        assert torch.equal(stored, fresh)
