"""A fake of the package sounddevice with one microphone, which plays samples at full speed."""

import threading
from types import ModuleType

import numpy as np


class FakeSounddevice(ModuleType):
    """Put it into `sys.modules`. The device is unplugged once it has played everything."""

    class PortAudioError(Exception):
        """The error class of the package."""

    def __init__(self, samples, rate_hz=16_000, names=("desk microphone",)):
        super().__init__("sounddevice")
        self.samples = samples
        self.rate_hz = rate_hz
        self.names = names
        self.open_streams = 0

    def check_input_settings(self, device, channels, samplerate):
        self._check_device(device)
        if samplerate != self.rate_hz:
            raise self.PortAudioError("Invalid sample rate [PaErrorCode -9997]")

    def query_devices(self, device, kind):
        assert kind == "input"
        self._check_device(device)
        return {"name": self.names[0], "default_samplerate": float(self.rate_hz)}

    def InputStream(self, **settings):  # noqa: N802
        return _InputStream(self, **settings)

    def _check_device(self, device):
        if not self.names:
            raise self.PortAudioError("Error querying device -1")
        if device is not None and not any(str(device) in name for name in self.names):
            raise ValueError(f"No input device matching {device!r}")


class _InputStream:
    def __init__(self, package, *, samplerate, blocksize, device, channels, dtype, callback, finished_callback):
        package.check_input_settings(device, channels, samplerate)
        assert (channels, dtype) == (1, "float32")
        self._package = package
        self._block_samples = blocksize
        self._callback = callback
        self._finished = finished_callback
        self._player = threading.Thread(target=self._play)
        package.open_streams += 1

    def start(self):
        self._player.start()

    def close(self):
        self._player.join()
        self._package.open_streams -= 1

    def _play(self):
        memory = np.empty((self._block_samples, 1), np.float32)  # reused for each block
        for start in range(0, self._package.samples.size, self._block_samples):
            block = self._package.samples[start : start + self._block_samples]
            memory[: block.size, 0] = block
            self._callback(memory[: block.size], block.size, None, None)
        memory[:] = np.nan
        self._finished()
