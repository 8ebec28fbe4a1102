"""A language for each stream through a real server: in one batch, named in information and results."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.recognizer import StreamingRecognizer
from penstock_client import Client, StreamOptions
from tests.helpers.golden import SIGNALS, golden_samples
from tests.helpers.recognition import recognize_alone
from trials.server.running import RunningServer, running_server

pytestmark = [pytest.mark.server, pytest.mark.nightly]
CONTEXT = (56, 3)
LANGUAGES = ("en-US", "de-DE", "auto")
DECODERS = ("greedy", "alsd", "aes")
STREAMS = 24


@pytest.fixture(scope="module")
def bundle(golden_bundle):
    return golden_bundle("prompt_hybrid")


@pytest.fixture(scope="module")
def language_server(bundle) -> Iterator[RunningServer]:
    settings = {"PENSTOCK_CONTEXT": "56,3", "PENSTOCK_LANGUAGE": "auto", "PENSTOCK_QUEUE_DELAY_MS": "20"}
    yield from running_server(bundle.directory, STREAMS, 30.0, settings)


def test_24_streams_at_once_equal_24_single_runs(bundle, language_server):
    """Three signals, languages and decoders beside each other."""
    recognizer = StreamingRecognizer(bundle.directory, CONTEXT, max_streams=1)

    def recognize(client: Client, number: int) -> tuple:
        samples, options = golden_samples(SIGNALS[number % 3]).numpy(), options_of(number)
        transcript = client.transcribe(samples, options=options, request_ms=500 + 100 * number)
        return transcript.text, transcript.tokens, transcript.timestamps, transcript.language

    with Client(language_server.url("grpc")) as client, ThreadPoolExecutor(STREAMS) as pool:
        assert client.server_info().languages == ("en-US", "en", "de-DE", "no", "auto")
        found = list(pool.map(lambda number: recognize(client, number), range(STREAMS)))
    for number, one in enumerate(found):
        samples, options = golden_samples(SIGNALS[number % 3]).numpy(), options_of(number)
        alone = recognize_alone(recognizer, samples, options=options.parameters())
        tokens = [token.id for token in alone.tokens], [token.timestamp for token in alone.tokens]
        assert one == (alone.text, *tokens, alone.results[-1].language)


def options_of(number: int) -> StreamOptions:
    language, decoder = LANGUAGES[number // 3 % 3], DECODERS[number // 9]
    return StreamOptions(decoder=decoder, language=None if language == "auto" else language)
