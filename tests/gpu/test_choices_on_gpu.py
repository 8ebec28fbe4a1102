"""Streams that choose decoder, language model and phrases find on a CUDA device the words that they find on the CPU.

One batch holds every choice, so all searches of the decoder stage run, by every driver and by kernels too.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.frontend.audio_file import read_audio
from penstock.graphs.select import missing_for_while_nodes
from penstock.kernels.capability import FUSED, TORCH, why_unavailable
from penstock.model.bundle import Checkpoint
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import StreamingRecognizer
from tests.helpers.decoding_graphs import write_text_lm
from tests.helpers.golden import golden_utterances

CONTEXT, REQUEST_SAMPLES = (70, 6), 4800
CHOICES = (
    {},
    {"lm_weight": 0.6},
    {"boosted_phrases": [["june eighteenth", 3.0], ["david", 2.0]]},
    {"lm_weight": 0.3, "boosted_phrases": ["nineteen sixty", "six"], "boost": 3.0},
    {"decoder": "alsd"},
    {"decoder": "alsd", "lm_weight": 0.5, "beam_size": 3, "n_best": 3},
    {"decoder": "alsd", "lm_weight": 0.2, "boosted_phrases": ["zero", "t r t f i"], "boost": 3.0},
    {"decoder": "aes", "beam_size": 2},
    {"decoder": "aes", "lm_weight": 0.4, "boosted_phrases": ["yes", "stop"]},
    {"decoder": "ctc"},
    {"decoder": "ctc_beam"},
    {"decoder": "ctc_beam", "lm_weight": 0.5, "boosted_phrases": ["zero", "t r t f i"], "boost": 3.0, "n_best": 2},
)
DRIVERS = ("no_graphs", "no_while_loops", "full_graph")


class Case(NamedTuple):
    """Input of a decoder, and the CPU's result."""

    model: str
    lm: str
    texts: list[str]


def recognize(model: str, decoding: DecodingConfig, device: str) -> list[str]:
    """The text of every golden utterance with every choice, all streams in one batch, 0.3 s at a time."""
    streams = [(read_audio(one.path, 16000), choice) for one in golden_utterances() for choice in CHOICES]
    recognizer = StreamingRecognizer(model, CONTEXT, len(streams), device, decoding=decoding, precision="float32")
    texts = ["" for _ in streams]
    for start in range(0, max(len(samples) for samples, _ in streams), REQUEST_SAMPLES):
        end = start + REQUEST_SAMPLES
        requests = [
            AudioRequest(i, samples[start:end], start == 0, end >= len(samples), choice if start == 0 else {})
            for i, (samples, choice) in enumerate(streams)
            if start < len(samples)
        ]
        for request, result in zip(requests, recognizer.process(requests), strict=True):
            assert isinstance(result, StreamResult), result
            texts[request.stream_id] = result.text
    return texts


@pytest.fixture(scope="module", params=["an4-rnnt-hybrid", "an4-tdt-hybrid"])
def case(request, tmp_path_factory) -> Case:
    model = Path(__file__).parents[2] / "models" / request.param
    sentences = ["seven two nine", "help start stop", "yes no go zero", *(one.text for one in golden_utterances())]
    lm = tmp_path_factory.mktemp("lm") / "words.arpa"
    write_text_lm(lm, Checkpoint(model).tokenizer_path, sentences * 2)
    texts = recognize(model, DecodingConfig(lm=str(lm), cuda_graphs="no_graphs"), "cpu")
    of_choices = [tuple(texts[i :: len(CHOICES)]) for i in range(len(CHOICES))]
    assert len(set(of_choices)) > 3, "choices make a difference"
    return Case(model, str(lm), texts)


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", [TORCH, FUSED])
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_choice_has_the_words_of_the_cpu(case, driver, kernels):
    obstacle = missing_for_while_nodes() if driver == "full_graph" else None
    obstacle = obstacle or (why_unavailable("cuda") if kernels == FUSED else None)
    if obstacle:
        pytest.skip(obstacle)
    decoding = DecodingConfig(lm=case.lm, capture_beams=True, cuda_graphs=driver, kernels=kernels)
    assert recognize(case.model, decoding, "cuda") == case.texts
