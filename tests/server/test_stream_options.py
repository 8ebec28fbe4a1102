"""Decoder, language model and phrases per stream, through a real server over both protocols."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.frontend.audio_file import read_audio
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.recognizer import StreamingRecognizer
from penstock_client import Client, StreamError, StreamOptions
from tests.helpers.decoding_graphs import write_text_lm, write_word_loop
from tests.helpers.golden import golden_utterances
from trials.server.running import CONTEXT, RunningServer, running_server

pytestmark = pytest.mark.server

UTTERANCES = [utterance.path for utterance in golden_utterances()][:3]
REQUEST_SAMPLES = 4007
CHOICES = (
    StreamOptions(),
    StreamOptions(decoder="alsd", n_best=3),
    StreamOptions(decoder="aes", beam_size=2, lm_weight=0.4),
    StreamOptions(lm_weight=0.5, boosted_phrases=["rubout", ("go", -2.0)], boost=1.5),
    StreamOptions(decoder="alsd", lm_weight=0.3, boosted_phrases=["erase"], n_best=1),
    StreamOptions(decoder="ctc"),
    StreamOptions(decoder="ctc_beam", lm_weight=0.3, boosted_phrases=["erase"], n_best=2),
    StreamOptions(decoder="wfst", n_best=3),
    StreamOptions(decoder="wfst", lm_weight=0.5, boosted_phrases=["rubout", ("go", -2.0)], boost=1.5),
    StreamOptions(decoder="wfst", boosted_phrases=["six five", "one two"]),
)
SENTENCES = ["rubout g m e f three nine", "enter six five", "erase c q q f seven", "go", "one two three four", "yes"]


@pytest.fixture(scope="module", params=["an4-rnnt-hybrid", pytest.param("an4-tdt-hybrid", marks=pytest.mark.nightly)])
def model(request) -> Path:
    """Both kinds of Transducer."""
    return Path(__file__).parents[2] / "models" / request.param


@pytest.fixture(scope="module")
def protocol(model) -> str:
    """One for each model."""
    return {"an4-rnnt-hybrid": "http", "an4-tdt-hybrid": "grpc"}[model.name]


@pytest.fixture(scope="module")
def lm(model, tmp_path_factory) -> Path:
    """A small language model over the model's tokens."""
    return write_text_lm(tmp_path_factory.mktemp("lm") / "a.arpa", model / "tokenizer.model", SENTENCES * 4, order=3)


@pytest.fixture(scope="module")
def graph(model, tmp_path_factory) -> Path:
    """A decoding graph of the sentences' words, each equally likely."""
    words = dict.fromkeys(word for sentence in SENTENCES for word in sentence.split())
    return write_word_loop(tmp_path_factory.mktemp("graph") / "a.safetensors", model / "tokenizer.model", list(words))


@pytest.fixture(scope="module")
def lm_server(model, lm, graph) -> Iterator[RunningServer]:
    """A server with a language model and a decoding graph that streams can use."""
    settings = {"PENSTOCK_LM": str(lm), "PENSTOCK_BEAM_SIZE": "4", "PENSTOCK_GRAPH": str(graph)}
    yield from running_server(model, 16, 30.0, settings)


@pytest.fixture(scope="module")
def expected(model, lm, graph) -> list[list[tuple]]:
    """The results of this process for each choice and utterance."""
    decoding = DecodingConfig(lm=str(lm), graph=str(graph))
    recognizer = StreamingRecognizer(model, CONTEXT, max_streams=4, decoding=decoding)
    return [[_here(recognizer, path, choice) for path in UTTERANCES[:2]] for choice in CHOICES]


def _here(recognizer: StreamingRecognizer, path: Path, choice: StreamOptions) -> tuple:
    with recognizer.open_stream(options=choice.parameters()) as stream:
        result = stream.finish(read_audio(path, 16000))
        words = [tuple(word[:3]) for word in stream.words]
        return result.text, words, _alternatives(result), [w.confidence for w in stream.words]


def _alternatives(result) -> list[tuple]:
    return [(one.text, [(word.text, word.start_ms, word.end_ms) for word in one.words]) for one in result.alternatives]


def _there(client: Client, path: Path, choice: StreamOptions) -> tuple:
    samples = read_audio(path, 16000)
    with client.open_stream(options=choice) as stream:
        for start in range(0, len(samples), REQUEST_SAMPLES):
            stream.send(samples[start : start + REQUEST_SAMPLES])
        stream.finish()
        results = list(stream)
    words = [word for result in results for word in result.new_words]
    final = results[-1]
    places = [(word.text, word.start_ms, word.end_ms) for word in words]
    return final.text, places, _alternatives(final), [word.confidence for word in words]


def test_each_stream_is_decoded_with_its_options(lm_server, expected, protocol):
    def recognize(job: tuple[int, int]) -> tuple:
        choice, utterance = job
        with Client(lm_server.url(protocol), protocol=protocol) as client:
            return _there(client, UTTERANCES[utterance], CHOICES[choice])

    def be_rejected(_: int) -> None:
        with Client(lm_server.url(protocol), protocol=protocol) as client, pytest.raises(StreamError, match="'west'"):
            _there(client, UTTERANCES[0], StreamOptions(decoder="wfst", boosted_phrases=["go west"]))

    jobs = [(c, u) for u in range(2) for c in range(len(CHOICES))]
    with ThreadPoolExecutor(10) as pool, ThreadPoolExecutor(1) as beside:
        rejections = beside.map(be_rejected, range(5))
        for (choice, utterance), found in zip(jobs, pool.map(recognize, jobs), strict=True):
            wanted = expected[choice][utterance]
            assert found[:3] == wanted[:3], CHOICES[choice]
            assert found[3] == pytest.approx(wanted[3], abs=1e-3)
        assert len(list(rejections)) == 5
    assert len({str(one[:3]) for one in (choice[0] for choice in expected)}) > 1
