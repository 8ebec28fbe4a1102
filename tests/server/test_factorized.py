"""A factorized transducer on a real server: streams of unlike weights in its batches, and errors by name."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.frontend.audio_file import read_audio
from penstock.model.config import FACTORIZED, IlmPair
from penstock.recognizer import StreamingRecognizer
from penstock_client import Client, StreamOptions
from tests.helpers.golden import golden_utterances
from tests.helpers.random_models import random_checkpoint
from trials.server.running import RunningServer, running_server

pytestmark = [pytest.mark.server, pytest.mark.nightly]

UTTERANCES = [utterance.path for utterance in golden_utterances()][:3]
CONTEXT = (4, 1)
REQUEST_SAMPLES = 4007
CHOICES = (
    StreamOptions(),
    StreamOptions(ilm_alpha=0.6, ilm_beta=0.6),
    StreamOptions(decoder="alsd", n_best=3),
    StreamOptions(decoder="alsd", n_best=3, ilm_alpha=1, ilm_beta=0),
    StreamOptions(decoder="alsd", n_best=2, ilm_beta=1.5),
    StreamOptions(decoder="aes", ilm_alpha=0, ilm_beta=0.8),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Random weights; beams weigh the internal language model by default, greedy search does not."""
    directory = tmp_path_factory.mktemp("factorized")
    return random_checkpoint(directory, 8, kind=FACTORIZED, blank_rate=0.6, beam_pair=IlmPair(0.6, 0.4)).directory


@pytest.fixture(scope="module")
def factorized_server(model) -> Iterator[RunningServer]:
    yield from running_server(model, 8, 30.0, {"PENSTOCK_CONTEXT": ",".join(map(str, CONTEXT))})


def _here(recognizer: StreamingRecognizer, path: Path, choice: StreamOptions) -> tuple:
    with recognizer.open_stream(options=choice.parameters()) as stream:
        result = stream.finish(read_audio(path, 16000))
        scores = [(one.score, one.acoustic_score) for one in result.alternatives]
        return result.text, [one.text for one in result.alternatives], scores


def _there(client: Client, path: Path, choice: StreamOptions) -> tuple:
    samples = read_audio(path, 16000)
    with client.open_stream(options=choice) as stream:
        for start in range(0, len(samples), REQUEST_SAMPLES):
            stream.send(samples[start : start + REQUEST_SAMPLES])
        stream.finish()
        final = list(stream)[-1]
    return final.text, [one.text for one in final.alternatives], [one.score for one in final.alternatives]


def test_streams_of_unlike_weights_share_batches(model, factorized_server):
    """Every second one over HTTP."""
    recognizer = StreamingRecognizer(model, CONTEXT, max_streams=1)
    jobs = [(utterance, choice) for utterance in UTTERANCES for choice in CHOICES]
    expected = [_here(recognizer, *job) for job in jobs]

    def recognize(number: int) -> tuple:
        protocol = ("grpc", "http")[number % 2]
        with Client(factorized_server.url(protocol), protocol=protocol) as client:
            return _there(client, *jobs[number])

    with ThreadPoolExecutor(len(CHOICES)) as pool:
        for found, wanted in zip(pool.map(recognize, range(len(jobs))), expected, strict=True):
            assert found[:2] == wanted[:2]
            assert found[2] == pytest.approx([score for score, _ in wanted[2]], abs=1e-2)
    assert len({text for text, *_ in expected[: len(CHOICES)]}) == len(CHOICES)
    for (_, choice), (_, texts, scores) in zip(jobs, expected, strict=True):
        for text, (score, acoustic) in zip(texts, scores, strict=True):
            assert (score < acoustic) == (choice.ilm_beta != 0 and text != "")
