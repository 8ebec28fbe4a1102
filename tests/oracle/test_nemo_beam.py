"""Beam search against NeMo's `malsd_batch` and `maes_batch` on the same encoder output: same best labels, same score.

NeMo differs in ways that are faults or choices of its own. Each is switched on in the reference search, which must then
find what NeMo finds, or fixed in NeMo, which must then find what is found here:

- TDT: the place in the list of durations is taken for the duration: switch `durations_are_places`
- TDT: a blank forced by max_symbols moves by its best duration: switch `forced_blank_takes_its_duration`
- AES: the flags of hypotheses that still expand are kept by place while the beam is sorted, so that some leave a
  frame without their blank: one line fixed
- RNN-T: eq. 3 is not applied to blanks that are forced by AES: fixed
"""

import inspect
import random
import sys

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import torch
from nemo.collections.asr.parts.submodules.rnnt_maes_batched_computer import ModifiedAESBatchedRNNTComputer
from nemo.collections.asr.parts.submodules.rnnt_malsd_batched_computer import ModifiedALSDBatchedRNNTComputer
from nemo.collections.asr.parts.submodules.tdt_malsd_batched_computer import ModifiedALSDBatchedTDTComputer

from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch
from penstock.decoding.sizes import AesLimits, BeamSizes
from penstock.decoding.transducer.networks import open_network
from penstock.scoring import fusion
from penstock.scoring.fusion import Fusion
from tests.helpers.beam import Choices, TableAutomaton, reference, search_whole
from tests.helpers.oracle.models import MODEL_NAMES, OracleModel, long_speech, oracle_model
from tests.helpers.oracle.nemo_fusion import NemoFusionModel

pytestmark = pytest.mark.oracle

UTTERANCES, LONGEST = 40, 60
MIN_SHARE = 0.99
AES_LIMITS = {
    "maes_num_steps": AesLimits().expansions_per_frame,
    "maes_expansion_beta": AesLimits().extra_labels,
    "maes_expansion_gamma": AesLimits().margin,
}


def is_rnnt(name: str) -> bool:
    return not name.startswith("tdt")


RNNT = [name for name in MODEL_NAMES if is_rnnt(name)]
_utterances: dict[str, list[torch.Tensor]] = {}


def utterances_of(one: OracleModel) -> list[torch.Tensor]:
    """Encoder output of speech, cut into utterances of 1 .. LONGEST frames."""
    if one.name not in _utterances:
        encoded = one.encode_mel(one.mel(long_speech(90.0)), one.contexts[0])
        chance = random.Random(1)
        lengths = [chance.randint(1, LONGEST) for _ in range(UTTERANCES)]
        starts = [chance.randint(0, len(encoded) - length) for length in lengths]
        _utterances[one.name] = [encoded[at : at + length] for at, length in zip(starts, lengths, strict=True)]
    return _utterances[one.name]


def silent_end(one: OracleModel) -> TableAutomaton:
    """A language model in which ending costs nothing: NeMo never adds what ending adds."""
    table = TableAutomaton(3, vocabulary_size=one.checkpoint.config.transducer.vocabulary_size)
    table.final.zero_()
    return table


def nemo_search(one: OracleModel, computer, utterances: list[torch.Tensor]) -> list[tuple[list[int], float]]:
    """Best labels and their score; scores not divided by the length."""
    lengths = torch.tensor([len(utterance) for utterance in utterances])
    with torch.no_grad():
        hyps, _ = computer(torch.nn.utils.rnn.pad_sequence(utterances, batch_first=True), lengths)
    best = hyps.to_hyps_list(score_norm=True)
    return [(hypothesis.y_sequence.tolist(), hypothesis.score) for hypothesis in best]


def nemo_alsd(one: OracleModel, beam_size: int, **fusion: object):
    common = {
        "decoder": one.model.decoder, "joint": one.model.joint, "blank_index": one.model.decoder.blank_idx,
        "beam_size": beam_size, "max_symbols_per_step": one.checkpoint.config.transducer.max_symbols,
        "allow_cuda_graphs": False,
    }  # fmt: skip
    if is_rnnt(one.name):
        return ModifiedALSDBatchedRNNTComputer(**common, **fusion)
    durations = list(one.checkpoint.config.transducer.tdt_durations)
    return ModifiedALSDBatchedTDTComputer(durations=durations, **common, **fusion)


_AES_FLAGS = (
    "to_update = torch.logical_and(to_update, last_labels_wb != self._blank_index)",
    "to_update = torch.logical_and(to_update.gather(1, hyp_indices), last_labels_wb != self._blank_index)",
)
_AES_FORCED_BLANK = (
    "batched_hyps.scores + logps[..., -1]",
    "batched_hyps.scores + logps[..., -1] * (1 + self.ngram_lm_alpha)",
)


def fixed(kind: type, *changes: tuple[str, str]) -> type:
    """NeMo's class with some expressions replaced."""
    source = inspect.getsource(kind)
    for faulty, right in changes:
        assert faulty in source
        source = source.replace(faulty, right)
    names = dict(vars(sys.modules[kind.__module__]))
    exec(source, names)
    return names[kind.__name__]


def nemo_aes(one: OracleModel, beam_size: int, kind: type = ModifiedAESBatchedRNNTComputer, **fusion: object):
    return kind(
        decoder=one.model.decoder, joint=one.model.joint, blank_index=one.model.decoder.blank_idx, beam_size=beam_size,
        allow_cuda_graphs=False, **AES_LIMITS, **fusion,
    )  # fmt: skip


def share_of_same(found, expected) -> float:
    assert sum(len(labels) for labels, _ in expected) > UTTERANCES
    same = [a[0] == b[0] and abs(a[1] - b[1]) < 1e-3 for a, b in zip(found, expected, strict=True)]
    return sum(same) / len(same)


def search(one: OracleModel, utterances, beam_size: int, algorithm=BeamAlgorithm.ALSD, choices=None, **options: object):
    """Without what ending adds: NeMo adds nothing."""
    network = open_network(one.checkpoint)
    beam_search = BeamSearch(network, algorithm, **options)
    found = search_whole(network, beam_search, utterances, BeamSizes(beam_size), choices)
    return [([label.id for label in beam[0].labels], beam[0].score) for beam in found]


def search_by_reference(one: OracleModel, utterances, beam_size: int, **options: object):
    plain, found = reference(one.checkpoint, beam_size, **options), []
    for utterance in utterances:
        beam = plain.alsd(utterance)
        best = max(beam, key=lambda hypothesis: hypothesis.score / (len(hypothesis.labels) + 1))
        found.append((list(best.ids), best.score))
    return found


@pytest.mark.parametrize("beam_size", [1, 2, 4, 8])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_alsd(name, beam_size):
    one = oracle_model(name)
    utterances = utterances_of(one)
    expected = nemo_search(one, nemo_alsd(one, beam_size), utterances)
    durations = one.checkpoint.config.transducer.tdt_durations
    if durations == tuple(range(len(durations))):
        assert share_of_same(search(one, utterances, beam_size), expected) >= MIN_SHARE
    else:
        faulty = search_by_reference(
            one, utterances, beam_size, durations_are_places=True, forced_blank_takes_its_duration=True
        )
        assert share_of_same(faulty, expected) >= MIN_SHARE


@pytest.mark.parametrize("beam_size", [1, 2, 4, 8])
@pytest.mark.parametrize("name", RNNT)
def test_aes(name, beam_size):
    one = oracle_model(name)
    utterances = utterances_of(one)
    found = search(one, utterances, beam_size, BeamAlgorithm.AES)
    right = nemo_search(one, nemo_aes(one, beam_size, fixed(ModifiedAESBatchedRNNTComputer, _AES_FLAGS)), utterances)
    assert share_of_same(found, right) >= MIN_SHARE
    faulty = share_of_same(found, nemo_search(one, nemo_aes(one, beam_size), utterances))
    print(f"{name}, beam {beam_size}: {faulty:.3f} with NeMo's code unchanged")


NEMO_FUSION = {"blank_lm_score_mode": "lm_weighted_full", "pruning_mode": "late"}


@pytest.mark.parametrize("name", ["rnnt_hybrid", "rnnt_batch_norm", "tdt_hybrid"])
def test_alsd_with_a_language_model(name, monkeypatch):
    monkeypatch.setattr(fusion, "MIN_LABEL_PROBABILITY", 1e-2)
    one = oracle_model(name)
    utterances, table, weight = utterances_of(one), silent_end(one), 0.4
    nemo = nemo_alsd(one, 4, fusion_models=[NemoFusionModel(table)], fusion_models_alpha=[weight], **NEMO_FUSION)
    found = search(one, utterances, 4, choices=Choices(weights=[weight] * len(utterances)), fusion=Fusion(table))
    assert share_of_same(found, nemo_search(one, nemo, utterances)) >= MIN_SHARE


def test_aes_with_a_language_model():
    one = oracle_model("rnnt_hybrid")
    utterances, table, weight = utterances_of(one), silent_end(one), 0.4
    kind = fixed(ModifiedAESBatchedRNNTComputer, _AES_FLAGS, _AES_FORCED_BLANK)
    nemo = nemo_aes(one, 4, kind, ngram_lm_model=NemoFusionModel(table), ngram_lm_alpha=weight, **NEMO_FUSION)
    choices = Choices(weights=[weight] * len(utterances))
    found = search(one, utterances, 4, BeamAlgorithm.AES, choices, fusion=Fusion(table))
    assert share_of_same(found, nemo_search(one, nemo, utterances)) >= MIN_SHARE
