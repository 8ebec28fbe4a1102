"""Audio that is streamed block by block, with segments that end where they are told to; the transcript as it grows."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from penstock_client.pacing import Pacer
from penstock_client.protocol import SAMPLE_RATE_HZ, Result
from penstock_client.recording import Recording
from penstock_client.segment_ends import SegmentEnds
from penstock_client.stream import Stream
from penstock_client.transcript import Transcript

Progress = Callable[[Transcript, Sequence[Result]], None]
"""Gets the transcript and the results, one or more, by which it has just grown."""


def dictate(
    stream: Stream,
    blocks: Iterable[npt.NDArray[np.float32]],
    on_progress: Progress,
    ends: SegmentEnds | None = None,
    is_asked_to_end: Callable[[], bool] = lambda: False,
) -> float:
    """Streams blocks [n] until they end, or until Ctrl-C, and waits for the final text; returns the seconds of audio.

    `is_asked_to_end` is asked with each block whether the segment ends behind it. A second Ctrl-C is the caller's.
    Raises ClientError.
    """
    samples, ends = 0, ends or SegmentEnds()
    try:
        for block in blocks:
            if is_asked_to_end():
                ends.end_now()
            ends.send(stream, block)
            samples += block.size
            if results := stream.poll():
                on_progress(stream.transcript, results)
    except KeyboardInterrupt:
        pass  # the way to say that it is over
    stream.finish()
    _await_the_rest(stream, on_progress)
    return samples / SAMPLE_RATE_HZ


def play(stream: Stream, recording: Recording, pacer: Pacer | None, on_progress: Progress, ends: SegmentEnds) -> None:
    """Streams a recording, with a pacer at the pace at which it was spoken, to its final text. Raises ClientError."""
    for chunk in recording:
        while pacer and (wait_s := pacer.remaining_s(chunk.end_samples)) > 0:
            if results := stream.poll(wait_s):
                on_progress(stream.transcript, results)
        ends.send(stream, chunk.samples, chunk.is_last)
        if results := stream.poll():
            on_progress(stream.transcript, results)
    _await_the_rest(stream, on_progress)


def _await_the_rest(stream: Stream, on_progress: Progress) -> None:
    for result in stream:
        on_progress(stream.transcript, [result])
