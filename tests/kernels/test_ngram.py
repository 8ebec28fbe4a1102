"""Transitions of a back-off model: PyTorch reference == dictionaries, kernel == reference to the bit."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.kernels.contracts import NgramArcs
from penstock.kernels.ngram import FusedNgramLookup
from penstock.scoring.ngram.lm import take_arcs
from tests.helpers.kernel_inputs import generator, on_device, random_arcs
from tests.helpers.ngram_golden import SCORED, golden_lm

# labels V, states S, order
SHAPES = [(1, 1, 1), (5, 1, 3), (7, 12, 2), (64, 30, 3), (65, 16, 6), (300, 4, 4)]


def every_query(labels: int, states: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each state with each label, [S, V]."""
    return torch.arange(states).unsqueeze(1).expand(-1, labels), torch.arange(labels).expand(states, -1)


def plain_arc(arcs: NgramArcs, order: int, state: int, label: int) -> tuple[float, int]:
    """By dictionaries, one state after the other."""
    vocabulary = len(arcs.root_scores)
    penalty = 0.0
    for _ in range(order - 1):
        own = range(int(arcs.arc_starts[state]), int(arcs.arc_starts[state + 1]))
        by_label = {int(arcs.arc_keys[i]) - state * vocabulary: i for i in own}
        if label in by_label:
            place = by_label[label]
            return penalty + float(arcs.arc_scores[place]), int(arcs.arc_states[place])
        penalty += float(arcs.backoff_scores[state])
        state = int(arcs.backoff_states[state])
    return penalty + float(arcs.root_scores[label]), int(arcs.root_states[label])


def assert_kernel_is_reference(arcs: NgramArcs, order: int, states, labels, device: str) -> None:
    expected = take_arcs(arcs, order, states, labels)
    actual = FusedNgramLookup(on_device(arcs, device), order)(states.to(device), labels.to(device))
    for ours, theirs in zip(actual, expected, strict=True):
        assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("seed", range(4))
def test_reference_is_the_dictionary(seed):
    labels, states, order = SHAPES[seed]
    arcs = random_arcs(seed, labels, states, order)
    query_states, query_labels = every_query(labels, states)
    scores, next_states = take_arcs(arcs, order, query_states, query_labels)
    for state in range(states):
        for label in range(labels):
            score, next_state = plain_arc(arcs, order, state, label)
            assert scores[state, label].item() == pytest.approx(score, abs=1e-5)
            assert next_states[state, label] == next_state


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_kernel_is_the_reference(kernel_device, seed):
    labels, states, order = SHAPES[seed]
    arcs = random_arcs(seed, labels, states, order)
    assert_kernel_is_reference(arcs, order, *every_query(labels, states), kernel_device)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(labels=st.integers(1, 90), states=st.integers(1, 50), order=st.integers(1, 7), seed=st.integers(0, 1000))
def test_kernel_on_any_model(kernel_device, labels, states, order, seed):
    draw = generator(seed)
    queries = 1 + seed % 150
    query_states = torch.randint(states, (queries,), generator=draw)
    query_labels = torch.randint(labels, (queries,), generator=draw)
    assert_kernel_is_reference(
        random_arcs(seed, labels, states, order), order, query_states, query_labels, kernel_device
    )


def test_longer_arrays_and_impossible_labels(kernel_device):
    """Entries after the arcs are ignored, and -inf stays -inf."""
    arcs = random_arcs(3, 64, 30, 3)
    longer = arcs._replace(
        arc_keys=torch.cat([arcs.arc_keys[:-1], torch.full((40,), 30 * 64)]),
        arc_scores=torch.cat([arcs.arc_scores[:-1], torch.full((40,), 99.0)]),
        arc_states=torch.cat([arcs.arc_states[:-1], torch.full((40,), -1)]),
        root_scores=arcs.root_scores.clone().fill_(-torch.inf),
    )
    states, labels = every_query(64, 30)
    assert_kernel_is_reference(longer, 3, states, labels, kernel_device)
    assert take_arcs(longer, 3, states, labels)[0][0].isneginf().all()
    assert take_arcs(longer, 3, states[:0], labels[:0])[0].shape == (0, 64)


def random_queries(lm) -> tuple[torch.Tensor, torch.Tensor]:
    """Half of the labels have an arc from the state."""
    draw = generator(0)
    states = torch.randint(lm.state_count, (400,), generator=draw)
    labels = torch.randint(lm.vocabulary_size, (400,), generator=draw)
    arcs = torch.randint(len(lm.arcs.arc_keys) - 1, (200,), generator=draw) if len(lm.arcs.arc_keys) > 1 else None
    if arcs is not None:
        states[:200] = lm.arcs.arc_keys[arcs] // lm.vocabulary_size
        labels[:200] = lm.arcs.arc_keys[arcs] % lm.vocabulary_size
    return states, labels


@pytest.mark.parametrize("name", SCORED)
def test_kernel_is_the_language_model(kernel_device, name):
    lm = golden_lm(name)
    assert_kernel_is_reference(lm.arcs, lm.order, *random_queries(lm), kernel_device)


def test_order_0_is_rejected():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        FusedNgramLookup(random_arcs(0, 3, 3, 2), 0)
