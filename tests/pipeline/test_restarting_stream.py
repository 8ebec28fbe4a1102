"""The requests of a stream of the library that restarts at its endpoints, against a recognizer that is played."""

import numpy as np
import pytest

from penstock.endpointing.rules import EndpointRules
from penstock.endpointing.segment_frames import SegmentFrames
from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.restarting_stream import RestartingStream
from penstock.pipeline.results.results import StreamResult, folded
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import Stream

RATE_HZ, FRAME_SAMPLES = 16_000, 1280
VIRTUAL_SAMPLES = 1120  # of the last hop of a chunk
NO_LABEL = np.zeros(1, np.int64)


class SilentRecognizer:
    """Hears nothing, and ends segments by its rules."""

    def __init__(self, rules: EndpointRules, chunk_frames: int):
        self._segment = SegmentFrames(1, 80.0)
        self._segment.open(0, rules)
        self._chunk_frames = chunk_frames
        self._received = self._start = self._frames = 0

    def answer(self, request: AudioRequest) -> StreamResult:
        self._received += len(request.samples)
        entries = []
        while self._received >= self._start + (self._frames + self._chunk_frames) * FRAME_SAMPLES:
            self._frames += self._chunk_frames
            if self._segment.add(np.array([0]), self._chunk_frames, NO_LABEL, NO_LABEL)[0]:
                self._segment.begin(np.array([0]))
                entries.append(self._result(True))
        if request.finalize:
            self._start, self._frames = self._received, 0
            self._segment.begin(np.array([0]))
        return folded([*entries, self._result(request.finalize)])

    def _result(self, is_final: bool) -> StreamResult:
        processed = self._start + max(0, self._frames * FRAME_SAMPLES - VIRTUAL_SAMPLES)
        return StreamResult(0, "", is_final, processed / RATE_HZ, (), ())


@pytest.mark.parametrize("no_speech_ms", [200, 330, 400, 480, 800])
@pytest.mark.parametrize("chunk_frames", [1, 2, 7, 14])
def test_a_stream_without_words_goes_on_behind_each_endpoint(chunk_frames, no_speech_ms):
    recognizer = SilentRecognizer(EndpointRules(no_speech_ms=no_speech_ms), chunk_frames)
    stream = RestartingStream("a", {}, RATE_HZ, chunk_frames * FRAME_SAMPLES)
    stream.add(np.zeros(3 * RATE_HZ, np.float32))
    sent = requests = 0
    while stream.has_request:
        request = stream.next_request()
        sent, requests = sent + len(request.samples), requests + 1
        assert requests < 300, "it repeats itself"
        stream.take(recognizer.answer(request))
    # Half of a segment is sent again at the most, and with it the chunk in which the endpoint was.
    assert 3 * RATE_HZ <= sent <= 3 * (3 * RATE_HZ + chunk_frames * FRAME_SAMPLES)


def test_a_start_that_was_rejected_can_be_tried_again():
    class FullRecognizer:
        def __init__(self) -> None:
            self.received: list[AudioRequest] = []

        def restarting_stream(self, stream_id, options, segments):
            return RestartingStream(stream_id, options, RATE_HZ, 8000)

        def check_samples(self, samples):
            pass

        def process(self, requests):
            self.received += requests
            if len(self.received) == 1:
                return [StreamError(ErrorCode.STREAM_LIMIT, "full")]
            return [StreamResult(0, "", False, 0.0, (), ())]

    recognizer = FullRecognizer()
    stream = Stream(recognizer, "a", {"endpoint_silence_ms": 800})
    with pytest.raises(StreamError, match="full"):
        stream.push(np.zeros(20_000))
    stream.push(np.ones(10_000))
    starts = [(request.is_start, request.options, len(request.samples)) for request in recognizer.received]
    assert starts == [
        (True, {"endpoint_silence_ms": 800}, 8000),
        (True, {"endpoint_silence_ms": 800}, 8000),
        (False, {}, 2000),
    ]
    assert all(request.samples.all() for request in recognizer.received[1:])
