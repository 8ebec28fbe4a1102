"""Files through the three stages of an offline model in one process: results, order, and what ends them early."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch

from penstock import OfflineRecognizer
from penstock.errors import ErrorCode, StreamError
from penstock.frontend.window_mel import MelPieces
from penstock.model.bundle import Checkpoint
from penstock.pipeline.offline import encoder as window_encoder
from penstock.pipeline.offline import features as window_features
from penstock.pipeline.offline import jobs as window_jobs
from penstock.pipeline.offline.features import WindowLimits
from penstock.pipeline.options import windows
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.stages.audio_rows import AudioRequest, rows_of
from tests.helpers.golden import golden_samples
from tests.helpers.offline_models import offline_bundle
from tests.helpers.window_server import NO_SAMPLES, RATE_HZ, Upload, WindowServer

CASES = ("rnnt_hybrid", "tdt_hybrid")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Checkpoint]:
    folder = tmp_path_factory.mktemp("offline")
    return {case: offline_bundle(folder, case) for case in CASES}


@pytest.fixture(scope="module")
def checkpoint(checkpoints) -> Checkpoint:
    return checkpoints["rnnt_hybrid"]


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """49 s."""
    return np.concatenate([golden_samples(name).numpy() for name in ("medium", "short", "long")] * 10)


@pytest.fixture
def server(checkpoint) -> WindowServer:
    return WindowServer(checkpoint)


def expected(recognizer: OfflineRecognizer, upload: Upload) -> list[tuple]:
    (result,) = recognizer.transcribe([upload.samples], upload.options)
    return [(one.text, [t[:3] for t in one.tokens], [w[:3] for w in one.words]) for one in result.entries]


def is_freed(server: WindowServer) -> bool:
    """Nothing of any stream is left, once the stages have been called."""
    server.send("probe", start=True, end=True)
    encoder = server.encoder
    return (server.features._files, encoder._files, encoder._queue.jobs, server.table.live_streams) == ({}, {}, [], 0)


@pytest.mark.parametrize(
    ("case", "decoding"), zip(CASES, (DecodingConfig(), DecodingConfig(endpoint_silence_ms=200)), strict=True)
)
def test_files_side_by_side_have_the_library_s_results(checkpoints, speech, case, decoding, monkeypatch):
    """Files have several pieces and parts; a batch holds 20 s, and a call gives one part, or what is left of it."""
    monkeypatch.setattr(window_jobs, "batch_audio_s", lambda device: 20.0)
    monkeypatch.setattr(window_encoder, "MAX_CALL_PARTS", 1)
    monkeypatch.setattr(windows, "DECODED_CHUNKS", 5)
    server = WindowServer(checkpoints[case], decoding=decoding)
    files = {
        "long": Upload(speech),
        "exact piece": Upload(speech[: 20 * RATE_HZ]),
        "one frame more": Upload(speech[1000 : 1000 + 20 * RATE_HZ + 160]),
        "local": Upload(speech[5000 : 5000 + 32 * RATE_HZ], {"window": "long", "decoder": "alsd"}),
        "ctc": Upload(speech[: 7 * RATE_HZ], {"decoder": "ctc"}),
        **{f"short {size}": Upload(speech[7000 : 7000 + size]) for size in (160, 161, 1279, 22_000, 51_200)},
    }
    done = server.transcribe(files)
    recognizer = OfflineRecognizer(checkpoints[case].directory, decoding=decoding)
    for name, upload in files.items():
        assert not done[name].errors
        assert [tuple(segment) for segment in done[name].segments] == expected(recognizer, upload), name
        assert done[name].progress_s == sorted(done[name].progress_s)
        assert all(progress_s < len(upload.samples) / RATE_HZ for progress_s in done[name].progress_s[:-1])
    assert sum(len(tokens) for one in done.values() for _, tokens, _ in one.segments) > 50
    assert is_freed(server) and server.features.samples_held == 0


def test_short_files_do_not_wait_for_a_long_one(checkpoint, speech, monkeypatch):
    """Every yield takes a whole step, so that a call has a single turn."""
    monkeypatch.setattr(window_jobs, "STEP_S", 0.0)
    server = WindowServer(checkpoint)
    long = np.concatenate([speech] * 4)
    assert server.send("long", long[: 30 * RATE_HZ], start=True).audio_processed_s == 0
    for begin in range(30, 180, 30):
        server.send("long", long[begin * RATE_HZ : (begin + 30) * RATE_HZ], end=begin == 150)
    while not server.encoder._queue.jobs:
        server.poll("long")
    done = server.transcribe({name: Upload(speech[: 3 * RATE_HZ]) for name in "ab"}, 3 * RATE_HZ)
    assert list(done) == ["a", "b"]
    (before,) = server.poll("long")
    assert 0 < before.audio_processed_s < 180 and not before.is_final
    while not before.is_final:
        (before,) = server.poll("long")
    assert before.audio_processed_s == 180


def test_the_oldest_job_is_never_left_waiting(checkpoint, speech, monkeypatch):
    monkeypatch.setattr(window_jobs, "STEP_S", 0.0)
    server = WindowServer(checkpoint, max_streams=100)
    server.send("long", speech[: 30 * RATE_HZ], start=True, end=True)
    server.poll("long")
    worked = []
    for number in range(40):  # always a shorter one
        server.send(number, speech[:RATE_HZ], start=True, end=True)
        worked.append(server.encoder._queue.jobs[0].progress if server.encoder._queue.jobs else 1.0)
    assert len(set(worked)) > 5


def test_a_call_works_for_at_most_a_step(checkpoint, speech):
    """However long a file is, and however long its blocks take: here 0.04 to 0.1 s of a clock that only they move."""
    server, now_s, blocks = WindowServer(checkpoint), [0.0], []
    queue, run = server.encoder._queue, server.encoder._encoder.run

    def timed(mels, bands):
        steps = run(mels, bands)
        while True:
            blocks.append(0.04 + 0.02 * (len(blocks) % 4))
            now_s[0] += blocks[-1]
            try:
                yield next(steps)
            except StopIteration as finished:
                return finished.value

    queue._clock, server.encoder._encoder.run = lambda: now_s[0], timed
    server.send("long", speech[: 25 * RATE_HZ], start=True)
    server.send("long", speech[25 * RATE_HZ :], end=True)
    calls, reply = [], None
    while reply is None or not reply.is_final:
        before = now_s[0]
        (reply,) = server.poll("long")
        calls.append(now_s[0] - before)
    assert reply.audio_processed_s == len(speech) / RATE_HZ and len(blocks) > 20
    assert 0.15 < max(calls) <= window_jobs.STEP_S == 0.25


def test_a_probe_is_answered_at_once(server, speech):
    server.send("long", speech[: 30 * RATE_HZ], start=True)
    reply = server.send("probe", start=True, end=True)
    assert (reply.is_final, reply.audio_processed_s, reply.text) == (True, 0.0, "")
    assert server.table.live_streams == 1


@pytest.mark.parametrize("requests", [0, 1, 2, 8])
def test_a_second_end_frees_everything_at_once(server, speech, requests, monkeypatch):
    """Before the log-mel is complete, while the file is encoded, and while its frames leave."""
    monkeypatch.setattr(window_jobs, "STEP_S", 0.0)
    monkeypatch.setattr(window_jobs, "_OLDEST_TURNS", 1)
    server.send("a", speech[: 30 * RATE_HZ], start=True)
    server.send("a", speech[: 30 * RATE_HZ], end=True)
    for _ in range(requests):
        server.poll("a")
    reply = server.send("a", end=True)
    assert (reply.is_final, reply.audio_processed_s) == (True, 60.0)
    assert (server.encoder._files, server.encoder._queue.jobs) == ({}, [])
    assert is_freed(server)
    (late,) = server.poll("a")
    assert late.code is ErrorCode.STREAM_NOT_OPEN and "was cancelled" in late.message
    assert server.table.ended_streams == 1


def test_a_stream_that_starts_again_frees_its_work(server, speech, monkeypatch):
    monkeypatch.setattr(window_jobs, "STEP_S", 0.0)
    server.send("a", speech[: 20 * RATE_HZ], start=True, end=True)
    assert server.encoder._queue.jobs
    done = server.transcribe({"a": Upload(speech[: 2 * RATE_HZ])})
    assert done["a"].progress_s[-1] == 2.0
    assert is_freed(server)


@pytest.mark.parametrize("has_ended", [False, True])
def test_an_idle_stream_expires_and_frees_everything(server, speech, has_ended, monkeypatch):
    monkeypatch.setattr(window_jobs, "STEP_S", 0.0)
    server.send("a", speech[: 20 * RATE_HZ], start=True, end=has_ended)
    server.now_s += 29
    server.poll("a")  # keeps it open
    server.now_s += 29
    assert not is_freed(server)
    server.now_s += 2
    assert is_freed(server)
    (late,) = server.poll("a")
    assert late.code is ErrorCode.STREAM_NOT_OPEN and "expired" in late.message
    assert server.table.expired_streams == 1


def test_limits_end_a_stream_as_its_samples_arrive(checkpoint, speech):
    server = WindowServer(checkpoint, limits=WindowLimits(60 * RATE_HZ, 100 * RATE_HZ))
    server.send("good", speech[: 30 * RATE_HZ], start=True)
    server.send("long", speech[: 30 * RATE_HZ], start=True)
    server.send("long", speech[: 30 * RATE_HZ])
    full = server.send("another", speech[: 11 * RATE_HZ], start=True)
    assert (full.code, full.message) == (
        ErrorCode.AUDIO_MEMORY_FULL,
        "stream 'another': 101 s of audio of all streams; accepted: up to 100 s (--max-audio-s), so try again later",
    )
    too_long = server.send("long", speech[:1])
    assert too_long.code is ErrorCode.AUDIO_TOO_LONG
    assert "60.0001 s of audio; accepted: up to 1 min (--max-file-minutes)" in too_long.message
    assert server.features.samples_held == 30 * RATE_HZ
    assert server.poll("long")[0].code is ErrorCode.STREAM_NOT_OPEN
    server.send("another", speech[: 30 * RATE_HZ], start=True)
    server.send("another", speech[: 30 * RATE_HZ])
    full = server.send("good", speech[: 11 * RATE_HZ])
    assert full.code is ErrorCode.AUDIO_MEMORY_FULL
    assert server.features.samples_held == 60 * RATE_HZ
    reply = server.send("another", end=True)
    while not reply.is_final:
        (reply,) = server.poll("another")
    assert reply.audio_processed_s == 60


@pytest.mark.parametrize("options", [{}, {"window": "2.4,0.8,0.4"}], ids=["file", "live"])
def test_the_error_that_ends_a_stream_is_the_first_that_its_client_has(checkpoint, speech, options):
    """Requests before that are on the way when the encoder has dropped the stream."""
    server = WindowServer(checkpoint, limits=WindowLimits(60 * RATE_HZ, 40 * RATE_HZ))
    server.send("a", speech[: 30 * RATE_HZ], start=True, options=options)
    on_the_way = server.admit([rows_of([AudioRequest("a", speech[:100])])])
    wrong = server.send("a", np.zeros(41 * RATE_HZ, np.float32), end=True)  # closes it
    server.send("other", speech[:1000], start=True)
    ((before,),) = (list(found.values()) for found in server.finish(on_the_way))
    assert isinstance(wrong, StreamError) and not isinstance(before, StreamError) and not before.is_final
    while not server.send("other", end=True).is_final:
        pass
    assert is_freed(server) and server.table.count_free() == 12 and not server.ledger.failed_generations().any()


def test_a_file_longer_than_all_audio_may_be_is_too_long(checkpoint, speech):
    server = WindowServer(checkpoint, limits=WindowLimits(3600 * RATE_HZ, 40 * RATE_HZ))
    server.send("a", speech[: 30 * RATE_HZ], start=True)
    error = server.send("a", speech[: 11 * RATE_HZ])
    assert (error.code, error.message) == (
        ErrorCode.AUDIO_TOO_LONG,
        "stream 'a': 41 s of audio; accepted: up to 40 s (--max-audio-s)",
    )


def test_bad_requests_are_rejected_by_name_and_others_go_on(server, speech):
    part = speech[:RATE_HZ]
    for name in ("nan", "short", "never", "after", "good"):
        server.send(name, part[:100] if name == "short" else NO_SAMPLES if name == "never" else part, start=True)
    after = server.send("after", end=True)
    assert after.is_final
    server.send("again", np.tile(part, 25), start=True)
    server.send("again", end=True)
    found = server.call(
        AudioRequest("nan", np.full(9, np.nan, np.float32)),
        AudioRequest("short", part[:59], is_end=True),
        AudioRequest("never", NO_SAMPLES, is_end=True),
        AudioRequest("good", NO_SAMPLES, finalize=True),
        AudioRequest("again", part),
        AudioRequest("good", part, is_end=True),
        AudioRequest("window", part, True, True, {"window": "5,2,2"}),
        AudioRequest("after", NO_SAMPLES),
    )
    *rejected, unknown, closed = [reply for reply in found if isinstance(reply, StreamError)]
    assert [(error.code.name, error.message) for error in rejected] == [
        ("AUDIO_INVALID", "stream 'nan': 9 of 9 samples are not finite or beyond 2; expected float32 in -1 .. 1 (int16 "
         "divided by 32768)"),
        ("AUDIO_INVALID", "stream 'short': 159 samples; accepted: at least 160 (10 ms)"),
        ("AUDIO_INVALID", "stream 'never': 0 samples; accepted: at least 160 (10 ms)"),
        ("OPTION_INVALID", "stream 'good': finalize is not accepted for a file; accepted: the end of the stream"),
        ("REQUEST_INVALID", "stream 'again': 16000 samples after the end of the stream; accepted: empty requests, "
         "which poll"),
    ]  # fmt: skip
    assert unknown.code is ErrorCode.OPTION_INVALID and "5 s is no multiple of 80 ms" in unknown.message
    assert closed.code is ErrorCode.STREAM_NOT_OPEN
    assert found[5].is_final and found[5].audio_processed_s == 2.0
    assert server.poll("short")[0].code is server.poll("never")[0].code is ErrorCode.STREAM_NOT_OPEN
    assert not isinstance(server.send("nan", part, end=True), StreamError)  # unharmed


@pytest.mark.parametrize("failure", [RuntimeError("out of memory"), MemoryError()], ids=["torch", "Python"])
def test_a_job_that_fails_ends_its_streams_only(server, speech, monkeypatch, failure):
    monkeypatch.setattr(window_jobs, "batch_audio_s", lambda device: 4.0)
    server = WindowServer(server.checkpoint)
    right = torch.softmax
    failures = iter([failure])

    def fail_once(*args, **options):
        for failure in failures:
            raise failure
        return right(*args, **options)

    monkeypatch.setattr(torch, "softmax", fail_once)
    names = ("a", "b", "c")
    found = server.call(*(AudioRequest(name, speech[: 2 * RATE_HZ], True, True) for name in names))
    assert found[2].code is ErrorCode.STREAM_LOST and "an earlier stage lost" in found[2].message
    assert found[0].is_final and found[1].is_final  # of another job, longer than that of "c"
    assert is_freed(server)


def test_audio_that_cannot_be_taken_is_not_held(server, speech, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    server.send("a", speech[:RATE_HZ], start=True)
    monkeypatch.setattr(MelPieces, "_compute", fail)
    assert server.send("a", speech[:RATE_HZ]).code is ErrorCode.STREAM_LOST
    assert is_freed(server) and server.features.samples_held == 0


def test_frames_wait_while_the_decoder_is_behind(checkpoint, speech, monkeypatch):
    """All that has gone on to it could come in one batch."""
    monkeypatch.setattr(window_encoder, "MAX_CALL_PARTS", 1)
    server, names, passed = WindowServer(checkpoint), "abc", []

    def wait(tickets, encoded):
        passed.append(sum(map(len, encoded)))
        return [Mock(answers={0: None}) for _ in tickets]

    monkeypatch.setattr(server.decoder, "process_tickets", wait)
    for name in names:
        server.send(name, speech[: 25 * RATE_HZ], start=True, end=True)
    server.poll(*names)  # brings the last piece of log-mel, so that the work begins
    while server.encoder._queue.jobs:
        server.poll(*names)
    server.poll(*names)
    assert sum(passed) == 313 + 56  # 25 s, and whole chunks of what is left of 30 s
    server.now_s += 11.0  # Triton has dropped them
    server.poll(*names)
    assert sum(passed) > 313 + 56


def test_rows_of_a_batched_request(server, speech):
    """A poll has a result in any case, which says how far the work is; other rows without a new result have none."""
    window_rows = [AudioRequest(name, speech[: 25 * RATE_HZ], True) for name in "ab"]
    assert server.call(*window_rows, is_batched=True) == [None, None]
    ends = server.call(*(AudioRequest(name, NO_SAMPLES, is_end=True) for name in "ab"), is_batched=True)
    while not all(one.is_final for one in ends):
        ends = server.call(*(AudioRequest(name, NO_SAMPLES) for name in "ab"), is_batched=True)
        assert None not in ends
    assert [one.audio_processed_s for one in ends] == [25.0, 25.0]
    assert is_freed(server)


def test_a_call_passes_on_a_bounded_part_of_the_log_mel(checkpoint, speech, monkeypatch):
    monkeypatch.setattr(window_features, "MAX_CALL_MEL_FRAMES", 2000)
    server = WindowServer(checkpoint)
    files = {name: Upload(speech[: 45 * RATE_HZ]) for name in "abc"}
    done = server.transcribe(files, 45 * RATE_HZ // 2)
    assert [one.progress_s[-1] for one in done.values()] == [45.0] * 3
    assert len({tuple(map(str, one.segments)) for one in done.values()}) == 1
