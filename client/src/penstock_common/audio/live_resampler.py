"""Resampling of live audio: an output waits for at most 5 ms of input behind its time, at any rate."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

_DELAY_S, _KAISER_BETA = 0.005, 9.1
"""Kaiser (1974): a stop band of 90 dB, with a transition band of 590 Hz."""
_CUTOFF = 0.9625
"""The middle of the transition band, of half the lower rate: as with soxr's HQ, whose transition is narrower."""
_GROUP, _GROUPS = 16, 8
_BLOCK = _GROUP * _GROUPS
"""Outputs of one matrix product: 8 groups of 16. Its shape and its place do not depend on the parts in which the audio
arrives, so sums do not either, to their last bit."""
_PIECE = 16_384


class LiveResampler:
    """Resamples one channel as soxr's ResampleStream does, by a polyphase filter of linear phase.

    Output n is the signal at n / `out_rate_hz` seconds.
    """

    def __init__(self, in_rate_hz: int, out_rate_hz: int):
        self._in_hz, self._out_hz = in_rate_hz, out_rate_hz
        self._filter = _filter(in_rate_hz, out_rate_hz)
        self._held = np.zeros(self._filter.half - 1, np.float32)
        """The inputs that the block of the next output needs, as far as they are there."""
        self._inputs = self._outputs = 0

    def resample_chunk(self, samples: Samples, last: bool = False) -> Samples:
        """The next inputs [n] to the outputs that they complete; with `last` to all up to here, as if zeros followed.

        More inputs may follow these, too.
        """
        if len(samples) > _PIECE:  # bounds the memory of the windows
            parts = np.split(samples, range(_PIECE, len(samples), _PIECE))
            return np.concatenate([self.resample_chunk(each, last and each is parts[-1]) for each in parts])
        self._inputs += len(samples)
        end = (self._inputs - self._filter.lag) * self._out_hz // self._in_hz + 1
        if last:
            end = (2 * self._inputs * self._out_hz + self._in_hz) // (2 * self._in_hz)
        if end <= self._outputs:
            self._held = np.concatenate((self._held, samples))
            return np.zeros(0, np.float32)
        begin, stop = self._outputs // _BLOCK * _BLOCK, -(-end // _BLOCK) * _BLOCK
        origin, known = self._input_at(begin), len(self._held) + len(samples)
        unknown = max(0, self._input_at(stop) - origin + len(self._filter.taps) - known)
        held = np.concatenate((self._held, samples, np.zeros(unknown, np.float32)))
        resampled = self._products(held, begin, stop)[self._outputs - begin : end - begin]
        self._held = held[self._input_at(end // _BLOCK * _BLOCK) - origin : known].copy()
        self._outputs = end
        return resampled

    def _input_at(self, output: int) -> int:
        """The last input that is not after an output."""
        return output * self._in_hz // self._out_hz

    def _products(self, held: Samples, begin: int, stop: int) -> Samples:
        """The outputs of whole blocks, from the inputs that they need."""
        (window, _), size = self._filter.taps.shape, held.itemsize
        shape = (stop - begin) // _BLOCK, _GROUPS, window
        windows: Samples
        found: Samples
        if not self._filter.terms:
            step = _GROUP * self._in_hz // self._out_hz * size
            windows = np.ndarray(shape, held.dtype, held, 0, (_GROUPS * step, step, size))
            found = np.ascontiguousarray(windows) @ self._filter.taps
        else:
            groups = np.arange(begin, stop, _GROUP, dtype=np.int64)
            inputs, rests = np.divmod(groups * self._in_hz, self._out_hz)
            windows = np.ndarray((len(held) - window + 1, window), held.dtype, held, 0, (size, size))
            found = windows[inputs - inputs[0]].reshape(shape) @ self._filter.taps
            powers = np.vander(rests / self._out_hz - 0.5, self._filter.terms).astype(np.float32)
            found = powers[:, None] @ found.reshape(len(groups), -1, _GROUP)
        return found.reshape(-1)


class _Filter(NamedTuple):
    """Taps of the 16 outputs of a group: [window, 16], or [window, terms * 16] where groups begin between inputs.

    The terms are those of a polynomial of the group's distance from the input before it, less 0.5, highest power first.
    """

    half: int
    """Inputs on each side of an output that count."""
    terms: int
    taps: Samples

    @property
    def lag(self) -> int:
        """Inputs for which an output waits: a polynomial may be unequal 0 up to the next one."""
        return self.half + bool(self.terms)


@lru_cache(maxsize=8)
def _filter(in_hz: int, out_hz: int) -> _Filter:
    terms = 0 if _GROUP * in_hz % out_hz == 0 else 8 if in_hz < 2 * out_hz else 6  # errors below -95 dB
    half = max(1, int(_DELAY_S * in_hz) - bool(terms))
    cutoff = _CUTOFF * min(in_hz, out_hz) / in_hz  # of half the input's rate
    # Distances [nodes, window, 16] of outputs from inputs; nodes are Chebyshev's, where the polynomial is exact
    rests = 0.5 - np.cos(np.pi * (np.arange(terms) + 0.5) / terms) / 2 if terms else np.zeros(1)
    inputs = np.arange(1 - half, half + _GROUP * in_hz // out_hz + 1)
    distances = rests[:, None, None] + np.arange(_GROUP) * in_hz / out_hz - inputs[:, None]
    shape = np.sqrt(np.clip(1 - (distances / half) ** 2, 0, None))
    taps = cutoff * np.sinc(cutoff * distances) * np.i0(_KAISER_BETA * shape) / np.i0(_KAISER_BETA)
    taps[abs(distances) >= half] = 0
    if terms:
        taps = np.reshape(np.linalg.solve(np.vander(rests - 0.5), taps.reshape(terms, -1)), taps.shape)
    return _Filter(half, terms, taps.transpose(1, 0, 2).reshape(len(inputs), -1).astype(np.float32))
