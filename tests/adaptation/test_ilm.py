"""The internal language model: its likelihood and names against the formulas, training, and sampling."""

import math
from itertools import pairwise

import pytest
import torch

from penstock.adaptation import ilm as ilm_module
from penstock.adaptation.ilm import (
    MAX_LABELS,
    IlmTraining,
    InternalLm,
    divided,
    every_tenth_held_out,
    perplexity,
    sample_sentences,
    train_ilm,
)

VOCABULARY, HIDDEN, LAYERS = 6, 8, 2


@pytest.fixture
def ilm() -> InternalLm:
    torch.manual_seed(5)
    return InternalLm(VOCABULARY, HIDDEN, LAYERS)


def cycle(first: int, length: int, step: int = 1) -> list[int]:
    return [(first + step * place) % VOCABULARY for place in range(length)]


UP = [cycle(first, 3 + first, 1) for first in range(VOCABULARY)] * 4
DOWN = [cycle(first, 3 + first, -1) for first in range(VOCABULARY)] * 4


def by_formula(tensors: dict[str, torch.Tensor], sentence: list[int]) -> list[torch.Tensor]:
    """Log-probabilities [V] before and after each label, one LSTM gate at a time (input, forget, cell, output)."""
    hidden = torch.zeros(LAYERS, HIDDEN, dtype=torch.float64)
    cell = torch.zeros(LAYERS, HIDDEN, dtype=torch.float64)
    tensors = {name.removeprefix("predictor."): tensor.double() for name, tensor in tensors.items()}
    found = []
    for label in [VOCABULARY, *sentence]:
        x = tensors["embedding.weight"][label]
        for layer in range(LAYERS):
            own = {n.rsplit(".", 1)[1]: t for n, t in tensors.items() if n.startswith(f"lstm.{layer}.")}
            gates = own["input_weight"] @ x + own["input_bias"] + own["hidden_weight"] @ hidden[layer]
            i, f, g, o = (gates + own["hidden_bias"]).chunk(4)
            cell[layer] = f.sigmoid() * cell[layer] + i.sigmoid() * g.tanh()
            hidden[layer] = x = o.sigmoid() * cell[layer].tanh()
        found.append((tensors["output.weight"] @ x + tensors["output.bias"]).log_softmax(0))
    return found


def test_likelihood_is_the_formula_of_the_bundles_tensors(ilm):
    labels = torch.tensor([[1, 4, 0, 5], [3, 2, 0, 0]])
    rows = ilm(labels).detach()
    assert rows.shape == (2, 5, VOCABULARY)
    for row, sentence in enumerate(([1, 4, 0, 5], [3, 2])):
        expected = torch.stack(by_formula(ilm.tensors(), sentence))
        torch.testing.assert_close(rows[row, : len(expected)].double(), expected, atol=1e-6, rtol=0)
    losses = ilm.label_losses(labels, torch.tensor([4, 2])).detach()
    expected = [-rows[0, u, y] for u, y in enumerate([1, 4, 0, 5])] + [-rows[1, u, y] for u, y in enumerate([3, 2])]
    torch.testing.assert_close(losses, torch.stack(expected), atol=1e-6, rtol=0)
    assert perplexity(ilm, [[1, 4, 0, 5], [3, 2], []]) == pytest.approx(math.exp(float(losses.mean())), rel=1e-6)


def test_the_probability_of_a_sentence_is_the_product_of_its_labels(ilm):
    labels = torch.randint(ilm.vocabulary_size, (3, 6))
    counts = torch.tensor([6, 2, 0])
    losses = ilm.label_losses(labels, counts).double()
    expected = torch.stack([-losses[:6].sum(), -losses[6:].sum(), torch.zeros((), dtype=torch.float64)])
    found = ilm.log_probability(labels, counts)
    assert found.dtype == torch.float64 and torch.allclose(found, expected, atol=1e-5)
    assert torch.equal(ilm.log_probability(labels[:, :0], counts * 0), torch.zeros(3, dtype=torch.float64))


def test_tensors_are_the_bundles_and_return_unchanged(ilm):
    tensors = ilm.tensors()
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "predictor.embedding.weight": (VOCABULARY + 1, HIDDEN),
        "predictor.output.weight": (VOCABULARY, HIDDEN),
        "predictor.output.bias": (VOCABULARY,),
    } | {
        f"predictor.lstm.{layer}.{name}": (4 * HIDDEN, *((HIDDEN,) if name.endswith("weight") else ()))
        for layer in range(LAYERS)
        for name in ("input_weight", "hidden_weight", "input_bias", "hidden_bias")
    }
    copy = InternalLm.from_tensors(tensors | {"blank.output.weight": torch.zeros(1)}).tensors()
    assert copy.keys() == tensors.keys()
    assert all(torch.equal(copy[name], tensor) for name, tensor in tensors.items())


def test_training_lowers_the_held_out_perplexity_and_repeats(ilm):
    config = IlmTraining(steps=60, batch_sentences=16, peak_learning_rate=3e-2, seed=3)
    start, reports = ilm.tensors(), []
    trained = train_ilm(ilm, UP, UP[:6], config, report=lambda *point: reports.append(point))
    assert trained.before > 5
    assert trained.after < 2  # the first label is one of six, every other one certain: 6 ** (1 / 5.5) = 1.39
    assert trained.after == min(value for _, value in reports) == pytest.approx(perplexity(ilm, UP[:6]))
    assert [step for step, _ in reports] == list(range(3, 61, 3))
    again = InternalLm.from_tensors(start)
    assert train_ilm(again, UP, UP[:6], config) == pytest.approx(trained, rel=1e-3)


def test_the_best_step_is_kept_and_the_start_where_none_is_better(ilm):
    start = ilm.tensors()
    trained = train_ilm(ilm, UP, DOWN[:6], IlmTraining(steps=200, batch_sentences=16, peak_learning_rate=3e-2))
    assert 0 <= trained.best_step < 200  # what it learns makes the reverse unlikely
    assert trained.after <= trained.before
    other = InternalLm.from_tensors(start)
    diverged = train_ilm(other, UP, UP[:6], IlmTraining(steps=4, peak_learning_rate=math.nan))
    assert diverged.best_step == 0
    assert all(torch.equal(tensor, start[name]) for name, tensor in other.tensors().items())


def test_samples_follow_the_model(ilm):
    train_ilm(ilm, UP, UP[:6], IlmTraining(steps=200, batch_sentences=16, peak_learning_rate=3e-2))
    found = sample_sentences(ilm, [4, 1, 7] * 20, seed=2)
    assert [len(sentence) for sentence in found] == [4, 1, 7] * 20
    assert found == sample_sentences(ilm, [4, 1, 7] * 20, seed=2)
    assert len({tuple(sentence) for sentence in found}) > 6
    steps = [(b - a) % VOCABULARY for sentence in found for a, b in pairwise(sentence)]
    assert steps.count(1) > 0.9 * len(steps)


@pytest.mark.parametrize(("count", "held_out"), [(1, [0]), (6, [5]), (10, [9]), (29, [9, 19])])
def test_every_tenth_sentence_is_held_out(count, held_out):
    sentences = [[number] for number in range(count)]
    rest, apart = every_tenth_held_out(sentences)
    assert apart == [[number] for number in held_out]
    assert rest == [sentence for sentence in sentences if sentence not in apart]


def test_long_sentences_are_divided(ilm, monkeypatch):
    long = cycle(0, 2 * MAX_LABELS + 3)
    assert [len(part) for part in divided([long, [], [1]])] == [MAX_LABELS, MAX_LABELS, 3, 1]
    assert [label for part in divided([long]) for label in part] == long
    parts = [perplexity(ilm, [part]) for part in divided([long])]
    mean = sum(math.log(p) * n for p, n in zip(parts, (MAX_LABELS, MAX_LABELS, 3), strict=True)) / len(long)
    assert perplexity(ilm, [long]) == pytest.approx(math.exp(mean), rel=1e-5)
    monkeypatch.setattr(ilm_module, "_SAMPLED_AT_ONCE", 1)
    assert [len(sentence) for sentence in sample_sentences(ilm, [2, MAX_LABELS + 9], seed=0)] == [2, MAX_LABELS]
    with pytest.raises(ValueError, match="no sentences with labels"):
        divided([[]])
