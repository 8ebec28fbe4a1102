"""The toy world's parts, and a run of tiny sizes from end to end."""

import dataclasses
from itertools import product

import numpy as np
import pytest
import torch

from penstock.decoding.networks import open_network
from penstock.model.config import TransducerConfig
from recipes.training.standard_head import StandardHead
from scripts import toy_world, toy_world_search
from scripts.toy_world import Sizes
from scripts.toy_world_data import D_ENCODED, WORDS, Language, Sounds, make_world
from scripts.toy_world_search import (
    SubtractedLm,
    edit_distance,
    model_checkpoint,
    ngram_lm,
    rnnt_ilm,
    tune,
)

TINY = Sizes(
    written=60, spoken=20, tuning=3, test=4, hidden=6, joint=5, ilm_steps=2, adapt_steps=2, head_steps=3, mwer_steps=2,
    batch=4,
)  # fmt: skip


def test_the_next_word_depends_on_two_words():
    random = np.random.default_rng(0)
    sentences = Language(random).sentences(3000, random)
    assert {len(sentence) for sentence in sentences} == set(range(4, 13))
    following: dict[tuple[int, int], dict[int, int]] = {}
    for sentence in sentences:
        for a, b, c in zip(sentence, sentence[1:], sentence[2:], strict=False):
            counts = following.setdefault((a, b), {})
            counts[c] = counts.get(c, 0) + 1
    frequent = [counts for counts in following.values() if sum(counts.values()) >= 20]
    shares = [max(counts.values()) / sum(counts.values()) for counts in frequent]
    assert np.mean(shares) > 0.4  # of 40 words


def test_a_world_repeats_with_its_seed_and_speech_has_frames():
    def world(seed: int):
        random = np.random.default_rng(seed)
        return make_world(Sounds(random), random, written=5, spoken=4, tuning=3, test=2)

    first, again, other = world(1), world(1), world(2)
    assert first.written == again.written != other.written
    assert (len(first.written), len(first.spoken), len(first.tuning), len(first.test)) == (5, 4, 3, 2)
    for a, b in zip(first.spoken, again.spoken, strict=True):
        assert torch.equal(a.frames, b.frames)
        assert 2 * len(a.labels) <= len(a.frames) <= 5 * len(a.labels)
        assert a.frames.shape[1] == D_ENCODED
        assert a.reference == " ".join(f"w{label}" for label in a.labels)


@pytest.mark.parametrize(
    ("reference", "found", "edits"),
    [
        ([], [], 0),
        ([1, 2], [], 2),
        ([], [3], 1),
        ([1, 2, 3], [1, 3], 1),
        ([1, 2, 3], [1, 4, 3], 1),
        ([1, 2], [2, 1], 2),
    ],
)
def test_word_errors(reference, found, edits):
    assert edit_distance(reference, found) == edits


@pytest.fixture(scope="module")
def rnnt() -> StandardHead:
    torch.manual_seed(3)
    return StandardHead(TransducerConfig(WORDS, 6, 1, 5, "tanh", ()), D_ENCODED).eval()


def test_the_subtracted_model_is_both_models(rnnt):
    random = np.random.default_rng(4)
    sentences = Language(random).sentences(300, random)
    lm, ilm = ngram_lm(sentences), rnnt_ilm(rnnt)
    automaton = SubtractedLm(lm, ilm, 0.6)
    network = open_network(model_checkpoint(rnnt))
    frame = network.project_encoder(torch.zeros(1, 1, D_ENCODED))[0]
    state, lm_state = torch.tensor([automaton.start_state]), torch.tensor([lm.start_state])
    history: list[int] = []
    for label in sentences[0][:6]:
        prediction = network.start(1)
        for last in history[-3:]:
            prediction = network.predict(torch.tensor([last]), prediction.state)
        with torch.inference_mode():
            own = torch.log_softmax(network.score(frame, prediction.projected).labels, dim=1)
        expected = lm.score_all(lm_state).scores - 0.6 * own
        scored = automaton.score_all(state)
        torch.testing.assert_close(scored.scores, expected, atol=1e-4, rtol=0)
        one = torch.tensor([label])
        taken = automaton.advance(state, one)
        torch.testing.assert_close(taken.scores, expected[:, label], atol=1e-4, rtol=0)
        assert torch.equal(scored.next_states(one), taken.next_states)
        state, lm_state, history = taken.next_states, lm.advance(lm_state, one).next_states, [*history, label]
    torch.testing.assert_close(automaton.final_scores(state), lm.final_scores(lm_state))


def test_the_best_weights_are_chosen(rnnt, monkeypatch):
    asked = []

    def measured(head, utterances, decoding):
        asked.append((decoding.lm, decoding.lm_weight, decoding.strategy.blank_scoring))
        return abs(decoding.lm_weight - 0.5) + (decoding.lm == "worse") + (decoding.strategy.blank_scoring != BEST)

    from penstock.scoring.fusion_rules import BlankScoring

    BEST = BlankScoring.LABELS_ONLY  # noqa: N806
    monkeypatch.setattr(toy_world_search, "word_error_rate", measured)
    share, decoding = tune(rnnt, [], {0.3: "worse", 0.6: "better"})
    assert (share, decoding.lm, decoding.lm_weight, decoding.strategy.blank_scoring) == (0.6, "better", 0.5, BEST)
    assert set(asked) == set(product(("worse", "better"), toy_world_search.LM_WEIGHTS, BlankScoring))
    assert tune(rnnt, [], {0.3: "better"}, [BlankScoring.BLANK_TOO])[1].strategy.blank_scoring is not BEST


def test_a_tiny_run_from_end_to_end(capsys, monkeypatch):
    monkeypatch.setattr(toy_world_search, "LM_WEIGHTS", (0.3,))
    monkeypatch.setattr(toy_world, "ILM_SHARES", (0.5,))
    toy_world.main(["--seed", "5", "--mwer", "--adapt"], TINY)
    out = capsys.readouterr().out
    table = [line for line in out.splitlines() if line.startswith("| ")]
    rows = {name.strip(): (float(wer), float(ratio)) for name, wer, ratio in (r.split("|")[1:4] for r in table[2:])}
    assert len(rows) == 25
    assert all(wer >= 0 for wer, _ in rows.values())
    assert rows["eq. 4"][1] == 1
    claims = [line for line in out.splitlines() if line.startswith(("holds: ", "FAILS: "))]
    assert len(claims) == 11
    assert "seed 5; " in out


def test_a_claim_is_the_ratio_of_two_rows():
    report = toy_world.Report()
    report.rows = {"a": 4.0, "b": 5.0}
    assert report.bar("a / b", "a", "b", 0.8) == "holds: a / b: 0.800, at most 0.8"
    assert report.bar("b / a", "b", "a", 1.2) == "FAILS: b / a: 1.250, at most 1.2"
    assert report.bar("b / a", "b", "a", 1.2, is_minimum=True) == "holds: b / a: 1.250, at least 1.2"


def test_sizes_are_those_of_the_documented_figures():
    assert dataclasses.astuple(Sizes())[:4] == (30_000, 600, 400, 1000)
