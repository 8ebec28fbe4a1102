"""KServe through a gateway before a real server: each response equals that of a direct stream, output for output."""

import itertools
import json
import random
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from penstock.frontend.audio_file import read_audio
from penstock_gateway.kserve.outputs import DATATYPES
from tests.helpers.golden import golden_utterances
from tests.helpers.server.gateway import Addresses, running_gateway
from tests.helpers.server.running import RunningServer

pytestmark = pytest.mark.server
LIBRARIES = {"grpc": triton_grpc, "http": triton_http}
SAMPLES = np.concatenate([read_audio(utterance.path, 16_000) for utterance in golden_utterances()])
CHOICES = (
    {},
    {"decoder": "alsd", "n_best": 3, "boosted_phrases": '["seven", ["nine", 1.5]]'},
    {"endpoint_silence_ms": 300, "endpoint_state": "carry"},
    {"decoder": "aes", "n_best": 2, "endpoint_silence_ms": 400, "endpoint_longest_s": 5},
)
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def gateway(server: RunningServer) -> Iterator[Addresses]:
    with running_gateway(server, "--endpoint-silence-ms", "800", "--endpoint-state", "reset") as addresses:
        yield addresses


def infer(library, client, name: str, samples: np.ndarray, **more) -> dict[str, np.ndarray]:
    audio = library.InferInput("AUDIO", [1, len(samples)], "FP32")
    audio.set_data_from_numpy(samples[None])
    outputs = [library.InferRequestedOutput(name) for name in DATATYPES]
    reply = client.infer("asr", [audio], outputs=outputs, sequence_id=name, **more)
    return {name: reply.as_numpy(name) for name in DATATYPES}


def play(protocol: str, url: str, options: dict, seed: int) -> list[dict[str, np.ndarray]]:
    """The responses to a stream of random requests, one after the other."""
    chance, library, name = random.Random(seed), LIBRARIES[protocol], f"play-{next(_NUMBERS)}"
    found, start = [], 0
    with library.InferenceServerClient(url) as client:
        while start < len(SAMPLES):
            part = SAMPLES[start : start + chance.choice([0, 1, 1600, 8960, 16_000, 40_000, 200_000])]
            parameters = options if not found else {"finalize": True} if chance.random() < 0.1 else {}
            start += len(part)
            found.append(
                infer(
                    library, client, name, part, sequence_start=not found, sequence_end=start == len(SAMPLES),
                    parameters=parameters,
                )
            )  # fmt: skip
    return found


def comparable(response: dict[str, np.ndarray], near: Callable = list) -> dict[str, tuple]:
    """The outputs; `near` is applied to confidences and scores, whose last digits depend on the batch."""
    found = {name: (array.dtype.kind, array.shape, array.tolist()) for name, array in response.items()}
    for name in ("WORD_CONFIDENCE", "ALTERNATIVE_SCORES"):
        found[name] = (response[name].shape, near(response[name][0].tolist()))
    words = [word for text in response["ALTERNATIVE_WORDS"][0] for word in json.loads(text)]
    found["ALTERNATIVE_WORDS"] = ([word[:3] for word in words], near([word[3] for word in words]))
    return found


@pytest.mark.parametrize("options", CHOICES)
@pytest.mark.parametrize("protocol", LIBRARIES)
def test_responses_are_those_of_a_direct_stream(server: RunningServer, gateway: Addresses, protocol: str, options):
    for seed in range(3):
        direct = play(protocol, server.url(protocol), options, seed)
        through = play(protocol, getattr(gateway, protocol), options, seed)
        for expected, found in zip(direct, through, strict=True):
            assert comparable(found) == comparable(expected, partial(pytest.approx, abs=1e-3))
