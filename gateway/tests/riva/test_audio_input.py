"""Audio of calls: what is declared raw is never held back, whatever its first bytes are."""

import numpy as np
import pytest

from client.tests.helpers.sound_files import sound_file
from gateway.tests.helpers.fake_streams import speech
from penstock_common.audio.pcm import RawFormat
from penstock_gateway.errors import GatewayError
from penstock_gateway.riva.audio_input import AudioForm, CallAudio

RATE_HZ = 8000
SUBTYPES = {"s16le": "PCM_16", "mulaw": "ULAW", "alaw": "ALAW"}


def audio_input(encoding, is_declared=True):
    form = AudioForm(RawFormat(encoding, RATE_HZ), is_declared)
    return CallAudio(form, "key", RATE_HZ, 60.0, keep=lambda size: None)


async def whole(source, data):
    return np.concatenate([samples async for samples in source.recording(data)])


@pytest.mark.parametrize("encoding", SUBTYPES)
def test_declared_audio_is_not_held_back(encoding):
    for first in range(256):
        for second in (first, 0xFB, 0xF1, 0x47):
            assert len(audio_input(encoding).push(bytes([first, second]) * 10)) == (10 if encoding == "s16le" else 20)
    for hz in range(100, 3901, 100):
        tone = np.sin(2 * np.pi * hz * np.arange(RATE_HZ) / RATE_HZ).astype(np.float32)
        for level_db in range(-60, 0, 3):
            data = sound_file(tone * 10 ** (level_db / 20), RATE_HZ, "RAW", SUBTYPES[encoding])
            assert len(audio_input(encoding).push(data)) == RATE_HZ


@pytest.mark.parametrize("first", [0xFF, 0x47])
def test_without_a_declared_form_only_frames_are_waited_for(first):
    assert len(audio_input("s16le", is_declared=False).push(bytes([first, 0, 0, 0, 0]) * 40)) == 100
    mp3 = sound_file(speech(0.5), 16_000, "MP3")
    source = audio_input("s16le", is_declared=False)
    assert not len(source.push(mp3[:300])) and not len(source.push(mp3[300:]))
    with pytest.raises(GatewayError, match="force_eou needs"):
        source.forced_end()


def test_a_forced_end_holds_nothing_back():
    source = audio_input("mulaw")
    assert not len(source.push(bytes(7))) and len(source.forced_end()) == 7
    assert len(source.push(bytes(7))) == 7 and not len(source.forced_end())


async def test_what_cannot_be_decoded_is_what_was_declared():
    data = b"fLaC" + bytes(range(256)) * 500
    assert len(await whole(audio_input("s16le"), data)) == len(data) // 2
    source = audio_input("mulaw")
    assert not len(source.push(data))
    assert sum([len(samples) async for samples in source.rest()]) == len(data)
    with pytest.raises(GatewayError, match="not a readable audio file"):
        await whole(audio_input("s16le", is_declared=False), data)
