"""Live audio that ends when its speaker says so: blocks as they come, the transcript as it grows."""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from penstock_client.protocol import SAMPLE_RATE_HZ
from penstock_client.stream import Stream
from penstock_client.transcript import Transcript


def dictate(
    stream: Stream, blocks: Iterable[npt.NDArray[np.float32]], on_progress: Callable[[Transcript], None]
) -> float:
    """Streams blocks [n] until they end, or until Ctrl-C, and waits for the final text; returns the seconds of audio.

    A second Ctrl-C is the caller's. Raises ClientError.
    """
    samples = 0
    try:
        for block in blocks:
            stream.send(block)
            samples += block.size
            if stream.poll():
                on_progress(stream.transcript)
    except KeyboardInterrupt:
        pass  # the way to say that it is over
    stream.finish()
    for _ in stream:
        on_progress(stream.transcript)
    return samples / SAMPLE_RATE_HZ
