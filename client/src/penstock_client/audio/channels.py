"""Channels of a recording: one of them, each, or their mix; and whether the mix cancels them."""

from typing import Literal

import numpy as np
import numpy.typing as npt

Channel = Literal["mix", "each", "left", "right"] | int
"""All channels averaged, each by itself, or one: left is channel 1, right is channel 2."""

MIX: Literal["mix"] = "mix"
EACH: Literal["each"] = "each"
ACCEPTED = "mix, each, left, right, or the number of a channel from 1"

_NUMBERS = {"left": 1, "right": 2}
_SILENT_POWER = 1e-8
_MIN_POWER_RATIO = 0.1
"""Power of the sum over the sum of the powers: 1 for unrelated channels, 2 for two equal ones, 0 for opposite ones."""


def parse_channel(text: str) -> Channel:
    """The channel that a user names. Raises ValueError with what is accepted."""
    if text in (MIX, EACH, *_NUMBERS):
        return text  # type: ignore[return-value]
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise ValueError(f"channel is {text!r}; accepted: {ACCEPTED}")


def check_channel(channel: Channel) -> None:
    """Raises ValueError for what names no channel of any recording."""
    if channel not in (MIX, EACH, *_NUMBERS) and not (isinstance(channel, int) and channel > 0):
        raise ValueError(f"channel is {channel!r}; accepted: {ACCEPTED}")


def select(samples: npt.NDArray[np.float32], channel: Channel) -> list[tuple[str | None, npt.NDArray[np.float32]]]:
    """The chosen tracks [n] of samples [n, channels], each with the name of its channel with `each`, else None.

    Raises ValueError where there is no such channel.
    """
    count = samples.shape[1]
    if channel == MIX:
        return [(None, samples.mean(axis=1) if count > 1 else samples[:, 0])]
    if channel == EACH:
        return list(zip(channel_names(count), samples.T, strict=True))
    check_channel(channel)
    number = _NUMBERS[channel] if isinstance(channel, str) else channel
    if number > count:
        raise ValueError(f"has {count} channel{'s' if count > 1 else ''}, so there is no channel {channel}")
    return [(None, samples[:, number - 1])]


def channel_names(count: int) -> list[str]:
    """Names of the channels of a recording: mono; left and right; numbers from 1."""
    return {1: ["mono"], 2: ["left", "right"]}.get(count) or [str(number) for number in range(1, count + 1)]


class MixMonitor:
    """Watches the channels of a recording for a mix in which they cancel: their correlation is below -0.9.

    Compares the power of their sum with the sum of their powers, both without the mean.
    """

    def __init__(self, channel: Channel = MIX):
        self._is_mixed = channel == MIX
        self._frames = 0
        self._sum: npt.NDArray[np.float64] | float = 0.0
        """[channels]"""
        self._products: npt.NDArray[np.float64] | float = 0.0
        """[channels, channels]"""

    def add(self, samples: npt.NDArray[np.float32]) -> None:
        """Takes the next samples [n, channels]."""
        if self._is_mixed and samples.shape[1] > 1:
            self._frames += len(samples)
            self._sum = self._sum + samples.sum(axis=0, dtype=np.float64)
            self._products = self._products + np.einsum("nc,nd->cd", samples, samples, dtype=np.float64)

    @property
    def cancels(self) -> bool:
        """True where the channels so far cancel."""
        if not self._frames:
            return False
        mean = np.asarray(self._sum) / self._frames
        covariance = np.asarray(self._products) / self._frames - np.outer(mean, mean)
        sum_power, power = covariance.sum(), np.trace(covariance)
        return bool(power >= _SILENT_POWER and sum_power < _MIN_POWER_RATIO * power)
