"""`asr_batch`: many streams in one request, through a real server."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from penstock import StreamingRecognizer
from penstock.frontend.audio_file import read_audio
from penstock_client.batched.rows import Row
from tests.helpers.batch_schedule import Transcript, add_reply, cut_into_rows, shuffle_rows, split
from tests.helpers.golden import golden_utterances
from trials.server.raw_stream import LISTED, BatchedConnection, inputs_of
from trials.server.running import CONTEXT, RunningServer

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[2]
SEGMENT_END = 16_000
START, END, FINALIZE = 1, 2, 4
SILENCE = np.zeros(1600, np.float32)


@pytest.fixture(scope="module")
def signals() -> list[np.ndarray]:
    return [read_audio(utterance.path, 16000)[:40_000] for utterance in golden_utterances()[:4]]


@pytest.fixture(scope="module")
def expected(bundled_model, signals) -> list[Transcript]:
    """Each signal in two segments."""
    recognizer = StreamingRecognizer(bundled_model, context=CONTEXT, max_streams=1)
    found = []
    for samples in signals:
        stream = recognizer.open_stream()
        finals = [stream.finalize(samples[:SEGMENT_END]), stream.finish(samples[SEGMENT_END:])]
        words, tokens = ([tuple(one[:n]) for one in some] for n, some in ((3, stream.words), (2, stream.tokens)))
        found.append(Transcript(words, tokens, [(result.segment, result.text) for result in finals]))
    return found


def test_random_schedules_with_many_requests_in_flight(server: RunningServer, signals, expected):
    """All audio is sent at once, so requests of a stream share batches in every stage."""
    chance = random.Random(1)
    streams = [cut_into_rows(i, samples, (SEGMENT_END,), chance) for i, samples in enumerate(signals, start=1)]
    requests = list(split(shuffle_rows(streams, chance), chance, 8))
    transcripts: dict[int, Transcript] = {}
    with BatchedConnection(server.url("grpc"), "schedule") as connection:
        for rows in requests:
            connection.send(rows, chance.random() < 0.5)
        for rows in requests:
            add_reply(transcripts, rows, connection.receive().as_numpy)
    assert [transcripts[number] for number in range(1, len(signals) + 1)] == expected


def test_direct_streams_faster_than_real_time_are_processed_in_order(server: RunningServer, signals, expected):
    """Twenty requests of each of four streams are in flight on one gRPC stream."""
    replies: list = []
    parts = [
        [*np.array_split(samples[:SEGMENT_END], 8), *np.array_split(samples[SEGMENT_END:], 12)] for samples in signals
    ]
    with triton_grpc.InferenceServerClient(server.url("grpc")) as client:
        client.start_stream(lambda result, error: replies.append(error or result))
        for step in range(20):
            for number, pieces in enumerate(parts):
                client.async_stream_infer(
                    "asr", inputs_of({"AUDIO": pieces[step][None]}), request_id=str(number),
                    sequence_id=f"fast-{number}", sequence_start=step == 0, sequence_end=step == 19,
                    parameters={"finalize": True} if step == 7 else None,
                )  # fmt: skip
        client.stop_stream()  # waits for the replies
    found = [Transcript() for _ in signals]
    for reply in replies:
        assert not isinstance(reply, InferenceServerException), reply
        transcript, output = found[int(reply.get_response().id)], reply.as_numpy
        words, tokens = (list(zip(*(output(name)[0].tolist() for name in names), strict=True)) for names in LISTED[:2])
        transcript.words += [(word.decode(), start, end) for word, start, end in words]
        transcript.tokens += tokens
        if output("IS_FINAL").item():
            transcript.finals.append((output("SEGMENT").item(), output("TEXT").item().decode()))
    assert found == expected


def test_bad_rows_are_rejected_alone(server: RunningServer, signals, expected):
    samples = signals[0]
    nan, loud = np.full(10, np.nan, np.float32), np.full(10, 3.0, np.float32)
    with BatchedConnection(server.url("grpc"), "bad-rows") as connection:
        rows = [
            Row(1, samples[:SEGMENT_END], START | FINALIZE), Row(2, SILENCE, 0), Row(1, SILENCE, START),
            Row(3, nan, START), Row(0, SILENCE, START), Row(1, loud, 0), Row(4, SILENCE, START, '{"decoder": "best"}'),
            Row(5, np.zeros(480_001, np.float32), START), Row(6, SILENCE, 9), Row(7, SILENCE, START | END),
            Row(7, SILENCE, END), Row(1, samples[SEGMENT_END:], END),
        ]  # fmt: skip
        reply = connection.ask(rows)
    codes = [text.decode().split(":")[0] for text in reply.as_numpy("ERRORS")[0]]
    assert dict(zip(reply.as_numpy("ERROR_ROWS")[0].tolist(), codes, strict=True)) == {
        1: "STREAM_NOT_OPEN", 2: "REQUEST_INVALID", 3: "AUDIO_INVALID", 4: "REQUEST_INVALID", 5: "AUDIO_INVALID",
        6: "OPTION_INVALID", 7: "AUDIO_INVALID", 8: "REQUEST_INVALID", 10: "STREAM_NOT_OPEN",
    }  # fmt: skip
    texts = dict(zip(reply.as_numpy("ROW")[0].tolist(), reply.as_numpy("TEXT")[0].tolist(), strict=True))
    assert [texts[row].decode() for row in (0, 11)] == [text for _, text in expected[0].finals]
    assert texts.keys() == {0, 9, 11}


def test_the_example_without_our_client(server: RunningServer):
    command = [sys.executable, ROOT / "client" / "examples" / "batch_request.py", server.url("grpc")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[[0, 1]] [[True, True]]\n"
