"""Random calls on real sockets: each ends with a status of docs/gateway.md, and a neighbour's words are unchanged."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc
import numpy as np
import pytest

from gateway.tests.helpers.fake_streams import speech
from gateway.tests.helpers.random_audio import recordings, spoiled
from gateway.tests.helpers.random_tests import CheckedStreams, check_log, make_cases
from gateway.tests.helpers.riva_client import audio, client, configuration, finals, pieces
from penstock_gateway.limits import MAX_MESSAGE_BYTES
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.service import SERVICE

Code = grpc.StatusCode
ANSWERS = {Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.RESOURCE_EXHAUSTED}
METHODS = (*["StreamingRecognize"] * 3, "Recognize", "GetRivaSpeechRecognitionConfig", "Transcribe")
TEXTS = (
    "", "en-US", "en", "de-DE", "fake-asr", "none", "x" * 3000, "é\0\n", "-1", "30.5", "nan", "1e999", "true", "alsd",
)  # fmt: skip
NUMBERS = (-(2**31), -1, 0, 1, 2, 3, 9, 200, 500, 8000, 16_000, 96_001, 2**31 - 1)
KEYS = (
    "decoder", "beam_size", "lm_weight", "ilm_alpha", "language_tags", "endpoint_silence_ms", "endpoint_longest_s",
    "stop_history", "start_history", "neural_vad.onset", "enable_vad_endpointing", "beam", "",
)  # fmt: skip


@pytest.fixture
def streams():
    return CheckedStreams()


@dataclass
class Call:
    """A client's messages and when it stops."""

    method: str
    messages: list[bytes]
    cancelled_after: int | None = None
    """Messages; None: the client waits for the end."""
    timeout_s: float = 60.0


def random_fields(rng: random.Random) -> dict:
    """Fields of a RecognitionConfig, some of them wrong."""
    makers = {
        "encoding": lambda: rng.choice((0, 1, 2, 3, 4, 20, 999)),
        "sample_rate_hertz": lambda: rng.choice(NUMBERS),
        "language_code": lambda: rng.choice(TEXTS),
        "max_alternatives": lambda: rng.choice(NUMBERS),
        "profanity_filter": lambda: True,
        "audio_channel_count": lambda: rng.choice((-1, 0, 1, 2, 8, 9)),
        "enable_word_time_offsets": lambda: True,
        "enable_automatic_punctuation": lambda: True,
        "enable_separate_recognition_per_channel": lambda: True,
        "model": lambda: rng.choice(TEXTS),
        "verbatim_transcripts": lambda: False,
        "diarization_config": lambda: {"enable_speaker_diarization": rng.random() < 0.2},
        "speech_contexts": lambda: [
            {"phrases": rng.choices(TEXTS, k=rng.randrange(4)), "boost": rng.choice((-1e38, -20, 0, 9, float("nan")))}
            for _ in range(rng.randrange(3))
        ],
        "custom_configuration": lambda: {
            rng.choice(KEYS): rng.choice((*TEXTS, *map(str, NUMBERS))) for _ in range(rng.randrange(3))
        },
        "endpointing_config": lambda: {
            name: rng.choice(NUMBERS) for name in rng.sample(("start_history", "stop_history", "stop_history_eou"), 2)
        },
    }
    names = rng.sample(sorted(makers), rng.choice((0, 0, 0, 1, 1, 2, 4)))
    return {name: makers[name]() for name in names}


def random_audio(rng: random.Random) -> bytes:
    """Bytes of a message."""
    kind = rng.random()
    if kind < 0.5:
        return (speech(rng.random() / 5, rng.random(), 0.1) * 32767).astype("<i2").tobytes()[: rng.randrange(20_000)]
    if kind < 0.7:
        return rng.randbytes(rng.choice((0, 1, 2, 3, 4, 5, 100, 4001, 70_000)))
    if kind < 0.73:
        return bytes(MAX_MESSAGE_BYTES + rng.randrange(-50, 50))
    if kind < 0.77:
        return spoiled(rng.choice(recordings()), rng)
    return np.full(rng.randrange(3000), rng.choice((0, 127, 255)), np.uint8).tobytes()


def random_message(rng: random.Random) -> bytes:
    """A later message of a stream."""
    if rng.random() < 0.01:
        return configuration()
    fields: dict = {}
    if rng.random() < 0.1:
        fields["runtime_config"] = {
            rng.choice(("force_eou", "force_eou", "other")): rng.choice(("true", "1", "0", "é"))
        }
    if rng.random() < 0.1:
        fields["id"] = {"value": rng.choice(TEXTS)}
    return audio(random_audio(rng), **fields)


def mutated(message: bytes, rng: random.Random) -> bytes:
    """The message, cut or with other bytes."""
    data = bytearray(message[: rng.randrange(len(message) + 1)] if rng.random() < 0.5 else message)
    for _ in range(rng.randrange(4) if data else 0):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def random_call(number: int) -> Call:
    """The call of this number."""
    rng = random.Random(number)
    method = rng.choice(METHODS)
    if method == "StreamingRecognize":
        messages = [configuration(interim=rng.random() < 0.5, **random_fields(rng))]
        messages += [random_message(rng) for _ in range(rng.choice((0, 1, 3, 10, 30)))]
        if rng.random() < 0.1:
            rng.shuffle(messages)
    elif method == "Recognize":
        config = riva.RecognitionConfig(**random_fields(rng))
        messages = [riva.RecognizeRequest(config=config, audio=random_audio(rng)).SerializeToString()]
    else:
        messages = [riva.RivaSpeechRecognitionConfigRequest(model_name=rng.choice(TEXTS)).SerializeToString()]
    share = rng.choice((0, 0, 0.1, 1))
    messages = [mutated(message, rng) if rng.random() < share else message for message in messages]
    call = Call(method, messages)
    if rng.random() < 0.2:
        call.cancelled_after = rng.randrange(len(messages) + 1)
    elif rng.random() < 0.1:
        call.timeout_s = rng.random() / 20
    return call


def run(call: Call, channel: grpc.Channel) -> Code:
    """The status of the call. It blocks."""
    path, started = f"/{SERVICE}/{call.method}", threading.Event()
    if call.method != "StreamingRecognize":
        answer = channel.unary_unary(path).future(call.messages[0], timeout=call.timeout_s)
        if call.cancelled_after is not None:
            answer.cancel()
        with contextlib.suppress(grpc.FutureCancelledError):
            answer.exception()
        return answer.code()

    def messages() -> Iterator[bytes]:
        started.wait()
        for sent, message in enumerate(call.messages):
            if sent == call.cancelled_after:
                answer.cancel()
            yield message
        if len(call.messages) == call.cancelled_after:
            answer.cancel()

    answer = channel.stream_stream(path)(messages(), timeout=call.timeout_s)
    started.set()
    with contextlib.suppress(grpc.RpcError):
        for _ in answer:
            pass
    return answer.code()


def accepted(call: Call) -> set[Code]:
    """The statuses that the call may end with."""
    codes = set(ANSWERS) if call.method in METHODS[:-1] else {Code.UNIMPLEMENTED}
    if call.cancelled_after is not None:
        codes.add(Code.CANCELLED)
    if call.timeout_s < 60:
        codes.add(Code.DEADLINE_EXCEEDED)
    return codes


async def send(gateway, numbers: Sequence[int]):
    """Makes the calls of these numbers; returns how often each status came."""
    sound = [configuration(), *pieces(speech(0.3, 1.0, 0.2))]
    async with client(gateway) as riva_client:

        async def one(number: int) -> Code:
            call = random_call(number)
            code = await asyncio.to_thread(run, call, riva_client.threaded_channel)
            assert code in accepted(call), code
            return code

        async def neighbour() -> None:
            assert await finals(riva_client.send_all(sound)) == ["w0 w1 w2 ", "w3 w4 "]

        return await make_cases(gateway, numbers, one, neighbour)


async def test_random_messages(gateway, caplog, capfd):
    statuses = await send(gateway, range(400))
    assert statuses.keys() >= {*ANSWERS, Code.UNIMPLEMENTED, Code.CANCELLED}
    check_log(caplog, capfd)
