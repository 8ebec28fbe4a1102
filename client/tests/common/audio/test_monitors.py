"""Monitors of audio and words: what they find in speech and in noise, and what they do not."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from client.tests.helpers.sound_files import sound_file
from penstock_common.audio.monitors import EncodingMonitor, SpeechMonitor
from penstock_common.audio.pcm import ENCODINGS, MISREAD, REPEATED, WORDLESS, RawFormat, Remark

RATE_HZ = 16_000
RNG = np.random.default_rng(0)
AN4 = Path(__file__).parents[4] / "tests/data/an4/flac"
SPEECH = np.concatenate([soundfile.read(path, dtype="float32")[0] for path in sorted(AN4.glob("*.flac"))])
SPEECH = np.tile(SPEECH, 3)[: 40 * RATE_HZ]
SPEECH *= 0.12 / SPEECH.std()
NOISE = RNG.standard_normal(len(SPEECH)).astype(np.float32)
HISS = np.cumsum(NOISE).astype(np.float32)
HISS = (HISS - np.convolve(HISS, np.ones(200) / 200, "same")).astype(np.float32) / 30
SUBTYPES = {"s16le": "PCM_16", "mulaw": "ULAW", "alaw": "ALAW", "f32le": "FLOAT"}
RIGHT = ("s16le", "mulaw", "alaw")


def encoded(samples, encoding):
    clipped = np.clip(samples, -1, 32767 / 32768)
    if encoding == "s16be":
        return np.frombuffer(sound_file(clipped, RATE_HZ, "RAW", "PCM_16"), "<i2").astype(">i2").tobytes()
    return sound_file(clipped, RATE_HZ, "RAW", SUBTYPES[encoding])


def misread(data, declared):
    monitor = EncodingMonitor(RawFormat(declared, RATE_HZ))
    for start in range(0, len(data), 1111):
        monitor.add(data[start : start + 1111])
    return monitor.remarks


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [(one, other) for one in RIGHT for other in ENCODINGS if other != "f32le" or one == "s16le"],
)
def test_speech_in_another_encoding_is_told_once(declared, encoding):
    remarks = misread(encoded(SPEECH, encoding), declared)
    assert [remark.code for remark in remarks] == [f"misread_{encoding}"] * (encoding != declared)
    assert all(f"smoother as {encoding}: is its encoding right" in remark.text for remark in remarks)


@pytest.mark.parametrize("encoding", RIGHT)
@pytest.mark.parametrize("gain", [0.01, 1, 4, 20, 100])
@pytest.mark.parametrize("samples", [SPEECH, NOISE / 10, HISS, NOISE * 0], ids=["speech", "noise", "hiss", "silence"])
def test_audio_in_its_encoding_is_not_told_at_any_level(samples, gain, encoding):
    assert not misread(encoded(samples * gain, encoding), encoding)


@pytest.mark.parametrize("declared", RIGHT)
def test_random_bytes_are_told(declared):
    (remark,) = misread(RNG.bytes(RATE_HZ * 10), declared)
    assert (remark.code, remark.text) == (MISREAD, "is noise as it is declared: is its encoding right?")


def words(*times, text="word{}"):
    return [SimpleNamespace(text=text.format(i), start_ms=ms, end_ms=ms + 300) for i, ms in enumerate(times)]


def remarks_of(samples, found=(), is_final=True, text=""):
    monitor = SpeechMonitor(RATE_HZ)
    for start in range(0, len(samples), 4000):
        end_s = (start + 4000) / RATE_HZ
        monitor.add(samples[start : start + 4000])
        new = [word for word in found if start / 16 < word.end_ms <= 1000 * end_s]
        monitor.note(new, end_s, text.format(end_s), is_final)
    return monitor.remarks


def test_speech_without_words_is_told():
    assert remarks_of(SPEECH) == [Remark(WORDLESS, 0.0, 40.0)]
    told = remarks_of(SPEECH, words(*range(0, 9000, 300)))
    assert told == [Remark(WORDLESS, 9.0, 30.0)]
    assert told[0].text == "is loud at 9.00 s for 30.00 s without a word"


def test_speech_with_words_or_with_a_text_that_goes_on_is_not_told():
    assert not remarks_of(SPEECH, words(*range(0, 40_000, 2000)))
    assert not remarks_of(SPEECH, is_final=False, text="{}")


@pytest.mark.parametrize("noise", [NOISE / 100, HISS / 10, NOISE * 0], ids=["noise", "hiss", "silence"])
def test_a_pause_with_noise_is_not_told(noise):
    pause = 0 * SPEECH
    samples = np.concatenate([pause, SPEECH, pause]) + np.tile(noise, 3)
    assert not remarks_of(samples, words(*range(40_000, 80_000, 1000)))


@pytest.mark.parametrize(
    ("text", "starts"), [("no", [1.0]), ("yes no", [1.0]), ("a b c", [1.0]), ("no " * 10 + "yes", [])]
)
def test_a_loop_is_told_once(text, starts):
    monitor, spoken = SpeechMonitor(RATE_HZ), text.split()
    for i in range(61):
        found = words(500 + 500 * i, text=spoken[(i - 1) % len(spoken)] if i else "first")
        monitor.note(found, 1 + i / 2, "", False)
    assert monitor.remarks == [Remark(REPEATED, start_s, 0.0) for start_s in starts]


def test_a_word_in_the_first_second_counts_as_a_word():
    """After a word, loud audio in 40 % of the frames is a remark; before one it is none."""
    tone = 0.2 * np.sin(np.arange(12_800) * 0.3).astype(np.float32)
    bursts = np.tile(np.concatenate([tone[:1280], np.zeros(1920, np.float32)]), 60)
    for words in ([], [SimpleNamespace(text="one", start_ms=0, end_ms=600)]):
        monitor = SpeechMonitor(16_000)
        monitor.add(tone)
        monitor.note(words, 0.8, "one" * bool(words), is_final=True)
        monitor.add(bursts)
        monitor.note([], 12.8, "", is_final=False)
        assert bool([*monitor.remarks]) == bool(words)
