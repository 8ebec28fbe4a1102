"""Channels by name and number; mixes that cancel."""

import numpy as np
import pytest

from penstock_client import AudioPipe, Client, load_audio, read_audio
from penstock_common.audio.tracks import MixMonitor, channel_names, parse_channel, select

SAMPLES = np.random.default_rng(0).normal(0, 0.1, (16000, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "channel"), [("mix", "mix"), ("each", "each"), ("left", "left"), ("right", "right"), ("1", 1), ("12", 12)]
)
def test_names_and_numbers(text, channel):
    assert parse_channel(text) == channel


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "both", "Left", "\u0661"])
def test_other_text_is_rejected_with_what_is_accepted(text):
    with pytest.raises(ValueError, match="accepted: mix, each, left, right, or the number of a channel from 1"):
        parse_channel(text)


@pytest.mark.parametrize("channel", [4, 0, "centre"])
def test_no_such_channel(channel):
    with pytest.raises(ValueError, match=f"{channel!r}"):
        select(SAMPLES, channel)


@pytest.mark.parametrize("channel", ["left2", 0, None])
@pytest.mark.parametrize(
    "call",
    [
        lambda channel: read_audio("missing.wav", channel),
        lambda channel: load_audio("missing.wav", channel),
        lambda channel: AudioPipe("missing.wav", channel=channel),
        lambda channel: Client("localhost:1").transcribe(SAMPLES[:, 0], channel=channel),
    ],
    ids=["read_audio", "load_audio", "AudioPipe", "Client.transcribe"],
)
def test_what_names_no_channel_is_rejected_at_the_call(call, channel):
    with pytest.raises(ValueError, match=rf"channel is {channel!r}; accepted: mix, each, left"):
        call(channel)


@pytest.mark.parametrize(
    ("count", "names"), [(1, ["mono"]), (2, ["left", "right"]), (3, ["1", "2", "3"]), (4, ["1", "2", "3", "4"])]
)
def test_channels_have_names(count, names):
    assert channel_names(count) == names
    assert [name for name, _ in select(np.zeros((5, count), np.float32), "each")] == names


@pytest.mark.parametrize(
    ("matrix", "cancels"),
    [
        ([[1.0, -1.0]], True),
        ([[1.0, -0.8]], True),
        ([[1.0, -1.0], [0.0, 0.2]], True),  # some noise on one channel
        ([[1.0, 1.0]], False),
        ([[1.0, 0.0], [0.0, 1.0]], False),  # unrelated channels
        ([[1.0, 0.0]], False),  # one channel is silent
        ([[1.0, -0.3]], False),
        ([[0.0, 0.0]], False),  # silence
        ([[1.0]], False),
        ([[1.0, -1.0, 0.0], [0.0, 0.0, 1.0]], False),  # the third channel remains
    ],
)
def test_channels_that_cancel(matrix, cancels):
    channels = SAMPLES[:, : len(matrix)] @ np.array(matrix, np.float32) + np.float32(0.1)  # the mean does not hide it
    monitor = MixMonitor()
    for block in np.split(channels, 4):
        monitor.add(block)
    assert monitor.cancels is cancels


def test_only_a_mix_cancels():
    monitor = MixMonitor("each")
    monitor.add(SAMPLES[:, :1] @ np.array([[1.0, -1.0]], np.float32))
    assert not monitor.cancels
