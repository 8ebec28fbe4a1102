"""CTC beam search against NeMo's batched one (`beam_batch`) on the same log-probabilities: same hypotheses and scores.

NeMo merges equal hypotheses by the maximum of their probabilities, Penstock by the sum. NeMo's code must find what the
reference search finds with the maximum, and, with its maximum replaced by the sum, what Penstock finds.
"""

import inspect
import sys

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import torch
from nemo.collections.asr.parts.submodules import ctc_batched_beam_decoding
from nemo.collections.asr.parts.submodules.ctc_batched_beam_decoding import BatchedBeamCTCComputer
from nemo.collections.asr.parts.utils.batched_beam_decoding_utils import BatchedBeamHyps

from penstock.decoding.beam.search import BeamSearch
from penstock.decoding.sizes import BeamSizes
from penstock.scoring.fusion import Fusion
from tests.helpers.beam import Choices, TableAutomaton, labels_of, start
from tests.helpers.ctc import GivenLogProbs
from tests.helpers.oracle.nemo_fusion import NemoFusionModel
from tests.helpers.reference import ctc

pytestmark = pytest.mark.oracle
LABELS, UTTERANCES, LONGEST, WEIGHT, LABEL_BONUS = 12, 30, 40, 0.5, 0.75
SUM = (
    "new_scores = torch.max(scores_matrix, dim=-1, keepdim=False).values",
    "new_scores = torch.logsumexp(scores_matrix, dim=-1, keepdim=False)",
)
Found = list[tuple[tuple[int, ...], float]]


def utterances() -> list[torch.Tensor]:
    """Log-probabilities [T, V + 1] in which labels repeat and blank is likely."""
    generator, found = torch.Generator().manual_seed(1), []
    for length in torch.randint(1, LONGEST + 1, (UTTERANCES,), generator=generator).tolist():
        logits = 2.0 * torch.randn(length, LABELS + 1, generator=generator).double()
        kept = torch.where(torch.rand(length, generator=generator) < 0.6, torch.arange(length), 0).cummax(0).values
        logits = logits[kept] + 0.3 * torch.randn(length, LABELS + 1, generator=generator)
        logits[:, -1] += 1.0
        found.append(logits.log_softmax(dim=1))
    return found


def nemo(streams: list[torch.Tensor], beam_size: int, table: TableAutomaton | None, hyps: type) -> list[Found]:
    """All hypotheses of each utterance, best first, alone in its batch."""
    ctc_batched_beam_decoding.BatchedBeamHyps = hyps
    models = None if table is None else [NemoFusionModel(table)]
    computer = BatchedBeamCTCComputer(
        LABELS, beam_size, fusion_models=models, fusion_models_alpha=[WEIGHT], beam_threshold=1e9,
        beam_beta=WEIGHT * LABEL_BONUS if table else 0.0,
        allow_cuda_graphs=False,
    )  # fmt: skip
    found = []
    for stream in streams:
        result = computer.batched_beam_search_torch(stream.unsqueeze(0), torch.tensor([len(stream)]))
        (nbest,) = result.to_nbest_hyps_list(score_norm=False)
        found.append([(tuple(one.y_sequence.tolist()), float(one.score)) for one in nbest.n_best_hypotheses])
    return found


@pytest.fixture(autouse=True)
def keep_nemos_class(monkeypatch):
    monkeypatch.setattr(ctc_batched_beam_decoding, "BatchedBeamHyps", BatchedBeamHyps)


def summing() -> type:
    """NeMo's class with the sum in place of the maximum."""
    source = inspect.getsource(BatchedBeamHyps)
    assert SUM[0] in source
    names = dict(vars(sys.modules[BatchedBeamHyps.__module__]))
    exec(source.replace(*SUM), names)
    return names["BatchedBeamHyps"]


def penstock(streams: list[torch.Tensor], beam_size: int, table: TableAutomaton | None) -> list[Found]:
    """All hypotheses of each utterance, best first, in one batch; those with a blank after them stay apart."""
    head = GivenLogProbs(LABELS)
    search = BeamSearch(head, fusion=None if table is None else Fusion(table), label_bonus=LABEL_BONUS)
    choices = Choices(weights=[WEIGHT if table else 0.0] * len(streams))
    states = start(head, len(streams), BeamSizes(beam_size, 0), choices)
    lengths = torch.tensor([len(stream) for stream in streams])
    padded = torch.nn.utils.rnn.pad_sequence(streams, batch_first=True, padding_value=torch.nan)
    update, states = search.decode(padded, lengths, torch.ones(len(streams)).bool(), states)
    found: list[Found] = []
    for row in range(len(streams)):
        stable = [label.id for label in labels_of(update.stable, row)]
        final = table.final[states.context.fusion.lm_states[row]] * WEIGHT if table else torch.zeros(beam_size)
        scores = states.hypotheses.scores[row] + final
        live = scores.argsort(descending=True)[: int(states.hypotheses.is_live[row].sum())].tolist()
        ids = [tuple(stable + [label.id for label in labels_of(states.unstable, row, k)]) for k in live]
        found.append(list(zip(ids, scores[live].tolist(), strict=True)))
    return found


def assert_same(found: list[Found], expected: list[Found]) -> None:
    assert sum(len(one[0][0]) for one in expected) > UTTERANCES
    for one, other in zip(found, expected, strict=True):
        assert [ids for ids, _ in one] == [ids for ids, _ in other]
        assert [score for _, score in one] == pytest.approx([score for _, score in other], abs=1e-4)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("beam_size", [1, 2, 4, 16])
def test_with_the_sum_nemo_finds_what_penstock_finds(beam_size, is_fused):
    table, streams = TableAutomaton(3, vocabulary_size=LABELS) if is_fused else None, utterances()
    assert_same(penstock(streams, beam_size, table), nemo(streams, beam_size, table, summing()))


@pytest.mark.parametrize("beam_size", [1, 4, 16])
def test_nemo_finds_what_the_reference_finds_with_the_maximum(beam_size):
    streams = utterances()
    beams = [ctc.beam(stream, beam_size, combine=max) for stream in streams]
    expected = [[(prefix, score) for prefix, _, score, _ in beam] for beam in beams]
    assert_same(nemo(streams, beam_size, None, BatchedBeamHyps), expected)
