"""Monitors of a stream's audio and words: samples of another encoding, loud audio without words, words in a loop."""

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_common.audio.pcm import ENCODINGS, MISREAD, REPEATED, WORDLESS, RawFormat, Remarks
from penstock_common.samples import as_samples

_MAX_SECOND_BYTES = 1 << 17
_MAX_SECONDS, _MISREAD_SECONDS, _RIGHT_SECONDS = 30, 3, 8
"""Seconds that are judged, how many more of them must look wrong than right, and right than wrong to judge no more."""
_MIN_ROUGHNESS, _SMOOTHER = 0.25, 0.65
_SILENT_DB, _FULL_DB, _MAX_OTHER_DB, _MAX_LOUDER_DB = -45.0, -2.0, -8.0, 4.0
_NOISE_BITS, _MAX_FLOAT = 7.9, 1.5
_FRAME_S, _WINDOW_FRAMES = 0.02, 500
_MIN_LOUD_POWER = 10**-4.5
_FLOOR_PERCENT, _ABOVE_FLOOR, _BELOW_WORDS = 10, 10**0.9, 10**-0.6
_MIN_SHARE, _MIN_SHARE_BEFORE_WORDS = 0.3, 0.65
_MAX_AVERAGED_WORDS = 20
_MAX_PERIOD, _MAX_REPEATS = 3, 10


class EncodingMonitor:
    """Finds raw audio that is noise as it is declared, and smooth in another encoding, or whose bytes are noise.

    Judges seconds that are not silent, until it is sure, at most 30. Audio is smooth as far as two samples predict the
    next one.
    """

    def __init__(self, raw: RawFormat):
        self.remarks = Remarks()
        self._raw = raw
        unit = 4 * raw.channels
        second_bytes = min(raw.sample_rate_hz * raw.channels * ENCODINGS[raw.encoding][0], _MAX_SECOND_BYTES)
        self._second_bytes = max(unit, second_bytes // unit * unit)
        self._pending = bytearray()
        self._left, self._wrong, self._right = _MAX_SECONDS, 0, 0

    def add(self, data: bytes) -> None:
        """Takes the next bytes."""
        if self._left:
            self._pending += data
        while self._left and len(self._pending) >= self._second_bytes:
            second = bytes(self._pending[: self._second_bytes])
            del self._pending[: self._second_bytes]
            self._judge(second)

    def _judge(self, second: bytes) -> None:
        declared = self._raw.encoding
        roughness, level_db = self._measure(declared, second)
        if level_db < _SILENT_DB:
            return
        smoother: list[tuple[float, str]] = []
        is_rough = roughness > _MIN_ROUGHNESS
        is_noise = is_rough and min(_entropy_bits(second[::2]), _entropy_bits(second[1::2])) > _NOISE_BITS
        if is_rough and level_db < _FULL_DB:
            names = [name for name in ENCODINGS if name != declared and (name != "f32le" or declared == "s16le")]
            others = [(*self._measure(name, second), name) for name in names]
            max_db = min(_MAX_OTHER_DB, level_db + _MAX_LOUDER_DB)
            smoother = [(each[0], each[2]) for each in others if each[0] < _SMOOTHER * roughness and each[1] < max_db]
        step = 1 if is_noise or smoother else -1
        self._left, self._wrong, self._right = self._left - 1, max(0, self._wrong + step), max(0, self._right - step)
        if self._wrong == _MISREAD_SECONDS:
            self.remarks.note(f"{MISREAD}_{min(smoother)[1]}" if smoother else MISREAD, 0.0)
            self._left = 0
        elif self._right == _RIGHT_SECONDS:
            self._left = 0
        if not self._left:
            self._pending.clear()

    def _measure(self, encoding: str, data: bytes) -> tuple[float, float]:
        """The share of the power that two samples do not predict of the next one, and the level in dB of full scale."""
        with np.errstate(invalid="ignore"):
            samples = ENCODINGS[encoding][1](data)
            if not max(samples.max(), -samples.min()) < _MAX_FLOAT:  # NaN, too
                return 1.0, 0.0
        counts = (len(samples) - lag * self._raw.channels for lag in range(3))
        power, one, two = (float(np.einsum("n,n", samples[-count:], samples[:count])) / count for count in counts)
        if power < 1e-9:
            return 0.0, -90.0
        first = (one / power) ** 2
        second = ((two / power - first) / (1 - first)) ** 2 if first < 1 - 1e-6 else 1.0
        return max(0.0, (1 - first) * (1 - second)), 10 * float(np.log10(power))


def _entropy_bits(data: bytes) -> float:
    shares = np.bincount(np.frombuffer(data, np.uint8)) / len(data)
    return -float((shares * np.log2(shares + 1e-12)).sum())


class SpeechMonitor:
    """Finds 10 s of a stream that are loud without a word, and words more than ten times in a row.

    A frame of 20 ms is loud 9 dB above the quiet frames of the 10 s, above -45 dBFS, and at most 6 dB below the words
    of the stream; 30 % of the frames must be loud, before the first word 65 %.
    """

    def __init__(self, sample_rate_hz: int):
        self.remarks = Remarks()
        self._frame_samples = round(sample_rate_hz * _FRAME_S)
        self._new: list[npt.NDArray[Any]] = []
        self._new_samples = 0
        """Samples whose power is not computed yet."""
        self._powers = np.zeros(0, np.float32)
        self._begin = 0
        """The first frame of `_powers`."""
        self._done = 0
        """The first frame behind the text so far, and behind what is judged."""
        self._text = ""
        self._word_power, self._words = 0.0, 0
        self._recent: deque[tuple[str, float]] = deque(maxlen=_MAX_PERIOD * (_MAX_REPEATS + 1))
        self._repeats = [0] * (_MAX_PERIOD + 1)

    def add(self, samples: npt.NDArray[Any]) -> None:
        """Takes the next samples [n], float32 or int16, always the same, which the caller does not change."""
        self._new.append(samples)
        self._new_samples += len(samples)
        if self._new_samples * _FRAME_S >= self._frame_samples:  # a whole second at once costs a tenth
            self._compute_powers()

    def _compute_powers(self) -> None:
        """Computes the power of each whole frame so far."""
        if not self._new:
            return
        samples, size = np.concatenate(self._new), self._frame_samples
        frames = as_samples(samples[: len(samples) // size * size]).reshape(-1, size)
        self._powers = np.concatenate((self._powers, np.einsum("fn,fn->f", frames, frames) / np.float32(size)))
        rest = samples[frames.size :].copy()
        self._new, self._new_samples = [rest], len(rest)

    def note(self, words: Iterable[Any], processed_s: float, text: str, is_final: bool) -> None:
        """Takes a result: the words that it completes, up to where it covers the audio, and its segment's text.

        words: with `text`, and `start_ms` and `end_ms` from the stream's start.
        """
        words = list(words)
        if words:  # they may be in the newest second
            self._compute_powers()
        for word in words:
            begin, end = (round(ms / 1000 / _FRAME_S) for ms in (word.start_ms, word.end_ms))
            self._judge(begin)
            powers = self._powers[max(0, begin - self._begin) : max(0, end - self._begin)]
            if len(powers):
                self._words = min(self._words + 1, _MAX_AVERAGED_WORDS)
                self._word_power += (float(np.add.reduce(powers)) / len(powers) - self._word_power) / self._words
            self._done = max(self._done, end)
            self._count(word.text.lower(), word.start_ms / 1000)
        processed = int(processed_s / _FRAME_S)
        if not is_final and text != self._text:  # of a word that is not completed
            self._done = max(self._done, processed)
        self._text = "" if is_final else text
        self._judge(processed)
        past = min(max(0, self._done - _WINDOW_FRAMES - self._begin), len(self._powers))
        self._powers, self._begin = self._powers[past:], self._begin + past

    def _judge(self, end: int) -> None:
        end = min(end, self._begin + len(self._powers))
        while end - self._done >= _WINDOW_FRAMES:
            window = self._powers[self._done - self._begin :][:_WINDOW_FRAMES]
            floor = float(np.percentile(window, _FLOOR_PERCENT)) * _ABOVE_FLOOR
            share = (window > max(floor, _MIN_LOUD_POWER, self._word_power * _BELOW_WORDS)).mean()
            if share >= (_MIN_SHARE if self._words else _MIN_SHARE_BEFORE_WORDS):
                self.remarks.note(WORDLESS, self._done * _FRAME_S, _WINDOW_FRAMES * _FRAME_S)
            self._done += _WINDOW_FRAMES

    def _count(self, text: str, start_s: float) -> None:
        self._recent.append((text, start_s))
        for period in range(1, _MAX_PERIOD + 1):
            is_same = len(self._recent) > period and self._recent[-1 - period][0] == text
            self._repeats[period] = self._repeats[period] + 1 if is_same else 0
            if self._repeats[period] == period * _MAX_REPEATS:
                self.remarks.note(REPEATED, self._recent[-period * (_MAX_REPEATS + 1)][1])
