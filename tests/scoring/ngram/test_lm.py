"""The automaton scores as KenLM and, on any pruning, as a dictionary; all its methods agree."""

import random

import pytest
import torch

from penstock.scoring.ngram.io import TokenNames, load_ngram_lm
from penstock.scoring.ngram.lm import NgramLm
from tests.helpers.ngram_golden import GOLDEN, NAMES, SCORED, arpa_path, golden_lm, to_labels
from tests.helpers.reference.ngram import NgramReference, write_random_arpa

LN10 = 2.302585092994046
PIECES = ("<unk>", "▁a", "b", "c", "▁d", "e", "unseen1", "unseen2")
SMALL = TokenNames(PIECES, 0)


def walk(lm: NgramLm, labels: list[int]) -> list[float]:
    """Scores of each label and of `</s>`."""
    state = torch.tensor(lm.start_state)
    scores = []
    for label in labels:
        arcs = lm.advance(state, torch.tensor(label))
        scores.append(arcs.scores.item())
        state = arcs.next_states
    return [*scores, lm.final_scores(state).item()]


def random_lm(tmp_path, seed: int) -> tuple[NgramLm, NgramReference]:
    """Any order, with and without `<unk>`, contexts and suffixes missing."""
    chance = random.Random(seed)
    path = tmp_path / f"{seed}.arpa"
    write_random_arpa(path, chance, list(PIECES[1:6]), order=1 + seed % 6, with_unknown=seed % 4 > 0)
    return load_ngram_lm(path, SMALL), NgramReference.read(path)


@pytest.mark.parametrize("name", SCORED)
def test_sentences_score_as_with_kenlm(name):
    lm = golden_lm(name)
    for entry in GOLDEN["scores"][name]:
        wanted = [log10 * LN10 for log10 in entry["log10"]]
        assert walk(lm, to_labels(entry["tokens"])) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("seed", range(24))
def test_any_pruning_scores_as_the_dictionary(tmp_path, seed):
    lm, reference = random_lm(tmp_path, seed)
    chance = random.Random(seed + 1000)
    for _ in range(30):
        labels = [chance.randrange(len(PIECES)) for _ in range(chance.randrange(14))]
        wanted = reference.score_sentence([PIECES[label] for label in labels])
        assert walk(lm, labels) == pytest.approx([score * LN10 for score in wanted], abs=2e-4)


@pytest.mark.parametrize("seed", range(12))
def test_score_all_equals_advance_bit_for_bit(tmp_path, seed):
    lm, _ = random_lm(tmp_path, seed)
    states = torch.arange(lm.state_count)
    every = lm.advance(states.unsqueeze(1).expand(-1, len(PIECES)), torch.arange(len(PIECES)).expand(len(states), -1))
    assert torch.equal(lm.score_all(states).scores, every.scores)
    assert ((every.next_states >= 0) & (every.next_states < lm.state_count)).all()
    assert every.scores.dtype == torch.float32
    assert every.next_states.dtype == torch.int64


@pytest.mark.parametrize("name", ["1", "3", "6_pruned"])
def test_shapes_and_other_rows_do_not_matter(name):
    lm, draw = golden_lm(name), torch.Generator().manual_seed(0)
    states = torch.randint(lm.state_count, (3, 4, 5), generator=draw)
    labels = torch.randint(lm.vocabulary_size, (3, 4, 5), generator=draw)
    together = lm.advance(states, labels)
    for place in [(0, 0, 0), (2, 3, 4), (1, 2, 3)]:
        alone = lm.advance(states[place], labels[place])
        assert torch.equal(together.scores[place], alone.scores)
        assert torch.equal(together.next_states[place], alone.next_states)
    assert lm.final_scores(states).shape == states.shape
    assert lm.score_all(states.flatten()).scores.shape == (60, lm.vocabulary_size)
    assert lm.score_all(states.flatten()[:0]).scores.shape == (0, lm.vocabulary_size)
    assert lm.advance(states[:0], labels[:0]).scores.shape == (0, 4, 5)


@pytest.mark.parametrize("name", ["3", "5"])
def test_scores_follow_a_path_of_states(name):
    lm = golden_lm(name)
    state = torch.tensor([lm.start_state])
    reference = NgramReference.read(arpa_path(name))
    history = ["<s>"]
    for label in to_labels(["▁a", "▁x", "▁b", "i", "j", "▁c", "▁d"]):
        wanted = [reference.score(tuple(history), piece) * LN10 for piece in NAMES.pieces]
        assert lm.score_all(state).scores[0].tolist() == pytest.approx(wanted, abs=1e-4)
        assert lm.final_scores(state).item() == pytest.approx(reference.score(tuple(history), "</s>") * LN10, abs=1e-4)
        state = lm.advance(state, torch.tensor([label])).next_states
        history.append(NAMES.pieces[label])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["1", "3", "6_pruned"])
def test_the_device_scores_as_the_host_without_synchronizing(name):
    host, device = golden_lm(name), load_ngram_lm(arpa_path(name), NAMES, "cuda")
    draw = torch.Generator().manual_seed(0)
    states = torch.randint(host.state_count, (200,), generator=draw)
    labels = torch.randint(host.vocabulary_size, (200,), generator=draw)
    there_states, there_labels = states.cuda(), labels.cuda()
    device.score_all(there_states), device.advance(there_states, there_labels)
    torch.cuda.set_sync_debug_mode("error")
    try:
        dense, arcs = device.score_all(there_states).scores, device.advance(there_states, there_labels)
        final = device.final_scores(there_states)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(dense.cpu(), host.score_all(states).scores, rtol=0, atol=1e-5)
    torch.testing.assert_close(arcs.scores.cpu(), host.advance(states, labels).scores, rtol=0, atol=1e-5)
    assert torch.equal(arcs.next_states.cpu(), host.advance(states, labels).next_states)
    assert torch.equal(final.cpu(), host.final_scores(states))
