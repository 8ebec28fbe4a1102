"""Searches over the 13,087 labels of a multilingual model: the same results, and memory that grows with labels only."""

import random
from itertools import accumulate
from math import prod

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from benchmarks import random_models, systems
from benchmarks.random_models import RNNT, TDT, RandomTransducer, SyntheticTokenizer, TransducerSizes
from benchmarks.systems import FAINT_BOOST, BoostedStreams, FusedStreams, GivenLmStreams
from penstock.decoding.beam.memory import fresh_states as fresh_beams
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch
from penstock.decoding.greedy.memory import fresh_states
from penstock.decoding.greedy.search import LabelLooping
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.transducer.networks import open_network
from penstock.kernels.capability import TORCH
from penstock.model.config import AttentionContext, CtcConfig, EncoderConfig, FeatureConfig, ModelConfig
from penstock.pipeline.memory.server_memory import server_memory
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.scoring.ngram.estimation.build import build_lm
from penstock.scoring.ngram.io import TokenNames, find_labels
from penstock.scoring.ngram.lm import NgramLm
from penstock.scoring.ngram.tables import build_tables
from tests.helpers.decoding import assert_same_labels, decode_by_reference, decode_in_chunks, decode_whole

LABELS, STREAMS, FRAMES, BEAM = 13_087, 3, 14, 4
CONTEXT = AttentionContext(56, 6)
ENCODER = EncoderConfig(80, 1, 16, 2, 16, 3, True, True, False, 8, 4, (CONTEXT,))
FEATURES = FeatureConfig(16000, 400, 160, 512, 80, 0.97, 2**-24)


class LargestTensor(TorchDispatchMode):
    """Remembers the most numbers that a result had."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        tensors = (value for value in tree_iter(found) if isinstance(value, torch.Tensor))
        self.numbers = max([self.numbers, *(tensor.numel() for tensor in tensors)])
        return found


def make(kind: str, seed: int = 0) -> RandomTransducer:
    """A tiny network that starts with a label in half of the frames."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_models, "_BISECTIONS", 0)
        source = RandomTransducer(kind, TransducerSizes(16, 12, LABELS), seed)
    network = open_network(source)
    scores = network.score(network.project_encoder(source.frames(1, 100))[0], network.start(1).projected)
    source._tensors["joint.output.bias"][LABELS] += (scores.labels.amax(dim=1) - scores.blank).median()
    return source


class LmStreams(GivenLmStreams):
    """A language model of synthetic text over the model's labels, whose ranks are distributed as in Zipf's law."""

    def __init__(self, source: RandomTransducer, streams: int, device: str):
        size = source.config.transducer.vocabulary_size
        generator, tokenizer = random.Random(0), SyntheticTokenizer(size)
        weights = list(accumulate(1 / rank for rank in range(1, size)))
        sentences = [generator.choices(range(1, size), cum_weights=weights, k=20) for _ in range(100)]
        names = TokenNames(tuple(tokenizer.piece(label).replace(" ", "\u2581") for label in range(size)), 0)
        arpa = build_lm(sentences, names, 4).arpa
        lm = NgramLm(build_tables(arpa, find_labels(arpa.words, names), size), device, TORCH)
        super().__init__(lm, streams, FAINT_BOOST, device)


@pytest.fixture(scope="module")
def source() -> RandomTransducer:
    return make(RNNT)


@pytest.fixture(scope="module")
def fused(source) -> dict[str, FusedStreams]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(systems, "PHRASES_PER_STREAM", 20)
        return {"lm": LmStreams(source, STREAMS, "cpu"), "boosted": BoostedStreams(source, STREAMS, "cpu")}


@pytest.mark.parametrize("kind", [RNNT, TDT])
def test_label_looping_is_frame_by_frame_search(kind):
    source = make(kind, seed=1)
    network = open_network(source)
    search, streams = LabelLooping(network), list(source.frames(STREAMS, FRAMES))
    assert search.window_encoder_frames == 4
    expected = decode_by_reference(source, streams)
    assert sum(map(len, expected)) > 3
    assert_same_labels(decode_whole(network, search, streams), expected)
    assert_same_labels(decode_in_chunks(network, search, streams, random.Random(0)), expected)
    assert_same_labels(decode_whole(network, LabelLooping(network, window_encoder_frames=8), streams), expected)


def test_small_vocabularies_keep_the_window():
    network = open_network(RandomTransducer(RNNT, TransducerSizes(16, 12, 128)))
    assert LabelLooping(network).window_encoder_frames == 8


@pytest.mark.parametrize("name", ["lm", "boosted"])
def test_scores_of_all_labels_are_those_of_single_labels(source, fused, name):
    """From start states, then from the states after labels that have transitions of their own."""
    streams = fused[name]
    states, labels = streams.start(1), torch.arange(LABELS)
    for _ in range(3):
        scores = streams.fusion.score_all(states).scores[0]
        repeated = type(states)(*(field.expand(LABELS) for field in states))
        singly, after = streams.fusion.advance(repeated, labels)
        torch.testing.assert_close(scores, singly, rtol=0, atol=1e-6)
        assert scores.isfinite().all() and scores.unique().numel() > 1
        longest = (after.lm_states + after.boost_states)[1:].argmax() + 1  # contexts are numbered by length
        states = type(states)(*(field[longest : longest + 1] for field in after))


@pytest.mark.parametrize("algorithm", BeamAlgorithm)
@torch.inference_mode()
def test_beams_in_chunks_are_those_of_whole_streams(source, algorithm):
    network = open_network(source)
    projected = network.project_encoder(source.frames(STREAMS, FRAMES))
    found = []
    for sizes in ([FRAMES], [5, 2, 7]):
        search, states = BeamSearch(network, algorithm), fresh_beams(network, STREAMS, BeamSizes(BEAM))
        for number, part in enumerate(projected.split(sizes, dim=1)):
            is_end = torch.full((STREAMS,), number == len(sizes) - 1)
            _, states = search.decode(part, torch.full((STREAMS,), part.shape[1]), is_end, states)
        found.append(states.hypotheses)
    assert torch.equal(found[0].hashes, found[1].hashes)
    torch.testing.assert_close(found[0].scores, found[1].scores, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [None, "lm", "boosted"])
@torch.inference_mode()
def test_a_step_takes_no_more_than_stated(source, fused, name):
    network, fusion = open_network(source), fused[name].fusion if name else None
    frames, lengths = source.frames(STREAMS, CONTEXT.chunk_encoder_frames), torch.full((STREAMS,), 7)
    greedy = fresh_states(network, STREAMS)
    if name:
        greedy = greedy._replace(fusion=fused[name].start(STREAMS))
    with LargestTensor() as largest:
        LabelLooping(network, fusion=fusion).decode(network.project_encoder(frames), lengths, greedy)
        for algorithm in BeamAlgorithm:
            beams = fresh_beams(network, STREAMS, BeamSizes(BEAM))
            search = BeamSearch(network, algorithm, fusion)
            search.decode(network.project_encoder(frames), lengths, lengths == 7, beams)
    config = ModelConfig(FEATURES, ENCODER, source.config.transducer)
    stated = server_memory(config, CONTEXT, DecodingConfig(beam_size=BEAM), STREAMS).step
    # Boosting's blocks fill up the last one.
    assert BEAM * STREAMS * LABELS <= largest.numbers <= 7 * STREAMS * (LABELS + 128)
    assert 4 * 4 * largest.numbers <= stated, "room for several tensors of this size"


def test_weights_are_those_that_are_stored(source):
    transducer = source.config.transducer
    config = ModelConfig(FEATURES, ENCODER, transducer)
    memory = server_memory(config, CONTEXT, DecodingConfig(), 8)
    ctc = server_memory(ModelConfig(FEATURES, ENCODER, None, CtcConfig(LABELS)), CONTEXT, DecodingConfig(), 8)
    stored = open_network(source).lstm.label_gates.numel()
    embedding = (LABELS + 1) * transducer.predictor_hidden
    heads = sum(prod(tensor.shape) for tensor in source.tensors().values())
    ctc_head = (ENCODER.d_model + 1) * (LABELS + 1)
    assert memory.weights - (ctc.weights - 4 * ctc_head) == 4 * (heads - embedding + stored)
    assert memory.total > memory.at_start > memory.weights
