"""Live microphone input in blocks of samples. Requires the extra `mic` (the package sounddevice)."""

import queue
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_common.audio.live_resampler import LiveResampler
from penstock_common.errors import MicrophoneError, one_line
from penstock_common.samples import SAMPLE_RATE_HZ


class Microphone:
    """Iterates over blocks [n] of mono samples at 16 kHz, float32, until `stop` or until the device is unplugged.

    `device` is sounddevice's: a number or a part of a name; None is the system's default. A device without 16 kHz
    records at its own rate and is resampled. Use as a context manager: it records inside it. Raises MicrophoneError
    if the package or the device is missing.
    """

    def __init__(self, device: int | str | None = None, block_ms: float = 100):
        self._sounddevice = _load()
        self._device = device
        self._block_ms = block_ms
        self._blocks: queue.SimpleQueue[npt.NDArray[np.float32] | None] = queue.SimpleQueue()
        self._stream: Any = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'default' if self._device is None else self._device}>"

    def stop(self) -> None:
        """Ends the iteration after the blocks recorded so far."""
        self._blocks.put(None)

    def __iter__(self) -> Iterator[npt.NDArray[np.float32]]:
        while (block := self._blocks.get()) is not None:
            yield block

    def __enter__(self) -> "Microphone":
        try:
            self._stream = self._open()
            self._stream.start()
        except (self._sounddevice.PortAudioError, ValueError) as error:
            self._close()
            named = "the microphone" if self._device is None else f"microphone {self._device!r}"
            raise MicrophoneError(f"{named} cannot be used: {one_line(error)}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _open(self) -> Any:
        rate_hz = self._rate_hz()
        resampler = None if rate_hz == SAMPLE_RATE_HZ else LiveResampler(rate_hz, SAMPLE_RATE_HZ)

        def enqueue(block: npt.NDArray[np.float32], frames: int, time: object, status: object) -> None:
            samples = block[:, 0].copy()  # [n, 1]; the library reuses the memory
            self._blocks.put(samples if resampler is None else resampler.resample_chunk(samples))

        def finish() -> None:
            if resampler is not None:
                self._blocks.put(resampler.resample_chunk(np.zeros(0, np.float32), last=True))
            self.stop()

        return self._sounddevice.InputStream(
            samplerate=rate_hz,
            blocksize=max(1, round(self._block_ms * rate_hz / 1000)),
            device=self._device,
            channels=1,
            dtype="float32",
            callback=enqueue,
            finished_callback=finish,
        )

    def _rate_hz(self) -> int:
        """16 kHz if the device supports it, else its own rate."""
        try:
            self._sounddevice.check_input_settings(self._device, channels=1, samplerate=SAMPLE_RATE_HZ)
        except self._sounddevice.PortAudioError:
            rate_hz: float = self._sounddevice.query_devices(self._device, "input")["default_samplerate"]
            return round(rate_hz)
        return SAMPLE_RATE_HZ

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _load() -> ModuleType:
    try:
        import sounddevice
    except ImportError as error:
        raise MicrophoneError("the microphone needs the package sounddevice: pip install sounddevice") from error
    except OSError as error:  # the package is installed, PortAudio is not
        raise MicrophoneError(f"the microphone needs the library PortAudio: {one_line(error)}") from error
    package: ModuleType = sounddevice  # it has no types
    return package
