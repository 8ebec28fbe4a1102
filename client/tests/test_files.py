"""Files to a server with an offline model, over both protocols: polled until their last result."""

import asyncio
import io
import re
import threading

import numpy as np
import pytest

from client.tests.helpers.fake_offline import SEGMENT, STEP, OfflineRecognizer, whole
from client.tests.helpers.fake_servers import eventually
from client.tests.helpers.fakes import RejectionError
from penstock_client import AsyncClient, Client, ConnectionOptions, FilesOnlyError, StreamClosedError
from penstock_client.cli.output import AudioName, PlainReport, Streamed

pytestmark = pytest.mark.usefixtures("one_row_per_request")

SAMPLES = 3 * SEGMENT + 1000


@pytest.fixture
def recognizer():
    return OfflineRecognizer()


@pytest.fixture
def noise():
    return np.random.default_rng(0).normal(0, 0.1, SAMPLES).astype(np.float32)


def texts(transcript):
    return [(segment.text, segment.tokens) for segment in transcript.segments]


def test_a_file_is_polled_until_its_last_result(client, recognizer, noise):
    progress = []
    transcript = client.transcribe(noise, on_progress=lambda each: progress.append(each.audio_processed_s))
    assert texts(transcript) == whole(SAMPLES)
    assert transcript.is_complete and transcript.audio_processed_s == SAMPLES / 16_000
    assert [request.is_end for request in recognizer.requests].count(True) == 1
    polls = recognizer.requests[-(-(-SAMPLES // STEP) - 1) :]
    assert not any(request.is_start or request.is_end or request.samples.size for request in polls)
    assert progress == sorted(progress)
    assert not recognizer.received and not recognizer.cancelled


@pytest.mark.parametrize("samples", [0, 100, STEP])
def test_a_short_file_may_need_no_poll(client, recognizer, samples):
    transcript = client.transcribe(np.full(samples, 0.1, np.float32))
    assert texts(transcript) == whole(samples) and transcript.is_complete
    assert len(recognizer.requests) == (samples > 0), "the fake takes one without samples for a probe"


@pytest.mark.parametrize("polls", [0, 1, 3])
def test_cancel_drops_the_work_on_the_server(client, recognizer, noise, polls):
    may_answer, is_reached = threading.Event(), threading.Event()

    def hold(request):
        if recognizer.work or request.is_end:
            held.append(request)
            if len(held) == polls + 1:
                is_reached.set()
                may_answer.wait(60)

    held = []
    recognizer.before_answer = hold
    with client.open_stream() as stream:
        stream.finish(noise)
        assert is_reached.wait(60)
        stream.cancel()
        may_answer.set()
        with pytest.raises(StreamClosedError):
            list(stream)
    eventually(lambda: len(recognizer.cancelled) == 1)
    assert not recognizer.received


def fail_once(recognizer, message, at, wire=None, when=lambda: True):
    """The reply to this request is an error, or the connection is cut, once `when` is true."""

    def answer(request):
        if len(recognizer.requests) == at:
            recognizer.work.clear()
            recognizer.received.clear()
            eventually(when)
            if wire is not None:
                wire.cut()
            raise RejectionError(message, 500)

    recognizer.before_answer = answer


@pytest.mark.parametrize("at", [2, 4, 6, 7])
def test_an_interrupted_file_is_sent_again_whole(url, protocol, wire, recognizer, noise, at):
    """Nothing that was received is repeated, wherever the connection was lost, also after endpoints."""
    options = ConnectionOptions(reconnect_s=60, connect_retry_s=60)
    received = []
    fail_once(recognizer, "lost", at + 1, wire, lambda: received)  # a stream without a result does not reconnect
    with Client(url, protocol, timeout_s=60, connection_options=options) as client:
        transcript = client.transcribe(noise, on_progress=received.append)
    assert texts(transcript) == whole(SAMPLES) and transcript.is_complete
    assert transcript.tokens == [token for _, count in whole(SAMPLES) for token in range(count)]
    assert [request.is_start for request in recognizer.requests].count(True) == 2
    again = recognizer.requests[[request.is_start for request in recognizer.requests].index(True, 1) :]
    assert np.array_equal(np.concatenate([request.samples for request in again]), noise)


def test_live_audio_is_rejected_by_name(run, url, protocol, audio_file, noise, recognizer):
    with Client(url, protocol, timeout_s=60, align=False) as client, pytest.raises(FilesOnlyError, match="'fake'"):
        client.transcribe(noise, realtime=True)

    async def scenario():
        async with AsyncClient(url, protocol, timeout_s=60) as client:
            await client.transcribe(noise, realtime=True)

    with pytest.raises(FilesOnlyError, match="accepted: files"):
        asyncio.run(scenario())
    for arguments in ((audio_file, "--simulate-realtime"), ("--microphone",)):
        status, out, errors = run(*arguments)
        assert (status, out) == (1, "")
        assert "error: FILES_ONLY: " in errors and "live audio is not accepted by model 'fake'" in errors
    assert not recognizer.requests


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("interim", [False, True])
def test_the_command_shows_the_share_of_a_file_on_a_terminal(client, noise, interim, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out, notes, name = Screen(), Screen(), AudioName("a.wav", audio_s=SAMPLES / 16_000)
    report = PlainReport(out, notes, names=False, interim=interim, word_times=False)
    transcript = client.transcribe(noise, on_progress=lambda each: report.progress(name, each, []))
    report.finish(name, Streamed(transcript, SAMPLES / 16_000, 1.0))
    shown = (out if interim else notes).getvalue()
    shares = [int(share) for share in re.findall(r"a\.wav: (\d+)% of 2 s", shown)]
    assert shares == sorted(shares) and len(shares) > 3
    assert out.getvalue().endswith(f"{transcript.text}\n")
