"""A model that has only a CTC head, from a `.nemo` of EncDecCTCModelBPE to words through a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.frontend.audio_file import read_audio
from penstock.model.nemo.importer import import_nemo
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.recognizer import StreamingRecognizer
from penstock_client import Client, StreamOptions
from tests.helpers.decoding_graphs import write_word_loop
from tests.helpers.golden import golden_case, golden_utterances
from tests.helpers.nemo_files import write_ctc_nemo
from trials.server.running import RunningServer, running_server

pytestmark = [pytest.mark.server, pytest.mark.nightly]

CHOICES = (
    StreamOptions(),
    StreamOptions(decoder="ctc"),
    StreamOptions(decoder="ctc_beam", n_best=2),
    StreamOptions(decoder="wfst", n_best=4),
    StreamOptions(decoder="wfst", boosted_phrases=["bad", "a bed"]),
)
"""The first one's decoder is the model's default."""
REQUEST_SAMPLES = 8000


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("ctc")
    import_nemo(write_ctc_nemo(directory / "ctc.nemo"), directory / "bundle")
    return directory / "bundle"


@pytest.fixture(scope="module")
def graph(model) -> Path:
    words = ("a", "be", "bed", "bad", "dad")
    return write_word_loop(model.parent / "words.safetensors", model / "tokenizer.model", words)


@pytest.fixture(scope="module")
def ctc_server(model, graph) -> Iterator[RunningServer]:
    left, right = golden_case("rnnt_hybrid").contexts[0]
    yield from running_server(model, 8, 30.0, {"PENSTOCK_GRAPH": str(graph), "PENSTOCK_CONTEXT": f"{left},{right}"})


def test_ctc_decoders_give_what_this_process_gives(ctc_server, model, graph):
    samples = read_audio(golden_utterances()[4].path, 16000)
    recognizer = StreamingRecognizer(
        model, golden_case("rnnt_hybrid").contexts[0], max_streams=1, decoding=DecodingConfig(graph=str(graph))
    )
    texts = []
    for choice in CHOICES:
        with recognizer.open_stream(options=choice.parameters()) as stream:
            expected = stream.finish(samples)
        with Client(ctc_server.url("grpc")) as client, client.open_stream(options=choice) as stream:
            for start in range(0, len(samples), REQUEST_SAMPLES):
                stream.send(samples[start : start + REQUEST_SAMPLES])
            stream.finish()
            *_, final = stream
        assert (final.text, [one.text for one in final.alternatives]) == (
            expected.text,
            [one.text for one in expected.alternatives],
        )
        texts.append(final.text)
    assert all(texts) and texts[0] == texts[1] and len(set(texts)) > 2
