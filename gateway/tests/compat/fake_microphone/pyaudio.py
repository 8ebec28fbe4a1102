"""A microphone without a device, for `transcribe_mic.py`: the WAV file of PENSTOCK_MICROPHONE in real time.

Has the part of PyAudio that `riva.client.audio_io` uses. When the file has ended, silence follows.
"""

import os
import threading
import wave

paInt16, paContinue = 8, 0  # noqa: N816 - PyAudio's names


class PyAudio:
    """The only device, 0."""

    def get_default_input_device_info(self):
        return {"index": 0, "name": "WAV file", "maxInputChannels": 1}

    def open(self, *, rate, frames_per_buffer, stream_callback, **_):
        return _Stream(rate, frames_per_buffer, stream_callback)

    def terminate(self):
        pass


class _Stream:
    def __init__(self, rate, frames, callback):
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, args=(rate, frames, callback), daemon=True)
        self._thread.start()

    def _play(self, rate, frames, callback):
        with wave.open(os.environ["PENSTOCK_MICROPHONE"]) as recording:
            assert recording.getframerate() == rate and recording.getnchannels() == 1
            while not self._stop.wait(frames / rate):
                data = recording.readframes(frames)
                callback(data + bytes(2 * frames - len(data)), frames, {}, 0)

    def stop_stream(self):
        self._stop.set()

    def close(self):
        self._thread.join()
