import io

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from client.tests.helpers.sound_files import sound_file
from penstock_common.audio.live_resampler import LiveResampler
from penstock_common.audio.pcm import RawFormat
from penstock_common.samples import as_samples
from penstock_gateway.audio.pcm import PcmDecoder
from penstock_gateway.errors import GatewayCode, GatewayError

RATE_HZ = 16_000
NOISE = np.random.default_rng(0).normal(0, 0.1, 24_000).astype(np.float32)


def parts_of(data, sizes):
    """The data in parts of these sizes, again and again."""
    position, parts = 0, []
    while position < len(data):
        size = sizes[len(parts) % len(sizes)]
        parts.append(data[position : position + size])
        position += size
    return parts


def decoded(decoder, parts):
    return np.concatenate([*map(decoder.push, parts), decoder.push(b"", is_end=True), decoder.flush()])


def wav(samples, rate_hz=RATE_HZ, subtype="PCM_16"):
    return sound_file(samples, rate_hz, subtype=subtype)


def test_audio_at_the_model_rate_is_unchanged():
    np.testing.assert_array_equal(decoded(PcmDecoder(RawFormat("f32le", RATE_HZ), RATE_HZ), [NOISE.tobytes()]), NOISE)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_rejected(value):
    with pytest.raises(GatewayError, match="not finite"):
        PcmDecoder(RawFormat("f32le", RATE_HZ), RATE_HZ).push(np.full(10, value, np.float32).tobytes())


def test_a_header_cannot_make_samples_many():
    """At 1 Hz each sample of a message would become 16,000."""
    data = wav(NOISE[:1000], rate_hz=1000)
    assert len(decoded(PcmDecoder(RawFormat("s16le", RATE_HZ), RATE_HZ, may_have_header=True), [data])) == RATE_HZ
    with pytest.raises(GatewayError, match="sample rate of 999 Hz; accepted: 1000 to 768000") as error:
        PcmDecoder(RawFormat("s16le", RATE_HZ), RATE_HZ, may_have_header=True).push(wav(NOISE, rate_hz=999))
    assert error.value.code is GatewayCode.AUDIO_INVALID


@pytest.mark.parametrize("size", [1, 3, 11, 12, 13, 500, 10**6])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT", "ULAW"])
def test_a_wav_header_says_how_to_read(size, subtype):
    file = wav(NOISE[:8000].reshape(-1, 2), 8_000, subtype) + b"LIST\x04\x00\x00\x00abcd"
    decoder = PcmDecoder(None, RATE_HZ)
    samples, _ = soundfile.read(io.BytesIO(file), dtype="float32")
    expected = LiveResampler(8_000, RATE_HZ).resample_chunk(samples.mean(axis=1), last=True)
    np.testing.assert_allclose(decoded(decoder, parts_of(file, [size])), expected, atol=1e-6)


def test_without_a_header_the_samples_are_raw():
    data = (NOISE * 32767).astype("<i2").tobytes()
    decoder = PcmDecoder(RawFormat("s16le", RATE_HZ), RATE_HZ, may_have_header=True)
    np.testing.assert_array_equal(decoded(decoder, parts_of(data, [5])), np.frombuffer(data, "<i2") / np.float32(32768))


@pytest.mark.parametrize("sizes", [[3200], [1], [3, 640, 6]])
def test_16_bits_at_the_models_rate_stay_as_they_are(sizes):
    data = (NOISE * 32767).astype("<i2").tobytes()
    decoder, parts = PcmDecoder(RawFormat("s16le", RATE_HZ), RATE_HZ), [b"", *parts_of(data, sizes)]
    found = [*map(decoder.push, parts), decoder.push(b"", is_end=True)]
    assert {each.dtype for each in found} == {np.dtype("int16")}
    assert np.concatenate(found).tobytes() == data


@pytest.mark.parametrize(
    "data",
    [
        wav(NOISE[:800], subtype="IMA_ADPCM"),
        b"RIFF\x00\x00\x00\x00WAVEdata\x00\x00\x00\x00",
        b"RIFF\x00\x00\x00\x00WAVEfmt \x04\x00\x00\x00abcddata\x00\x00\x00\x00abcd",
        b"RIFF\x00\x00\x00\x00WAVEjunk\xff\xff\x00\x00" + bytes(70_000),
    ],
)
def test_a_broken_or_compressed_wav_stream_is_rejected(data):
    decoder = PcmDecoder(RawFormat("s16le", RATE_HZ), RATE_HZ, may_have_header=True)
    with pytest.raises(GatewayError) as caught:
        decoded(decoder, parts_of(data, [1000]))
    assert caught.value.code is GatewayCode.AUDIO_INVALID


def stream_header(rate_hz=RATE_HZ, size=0xFFFFFFFF, channels=1):
    """A WAV header of a stream, whose size is not known."""
    header = bytearray(wav(np.zeros((1, channels), np.float32), rate_hz)[:44])
    header[4:8] = header[40:44] = size.to_bytes(4, "little")
    return bytes(header)


@pytest.mark.parametrize("raw", [RawFormat("s16le", RATE_HZ), None])
@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 1000])
def test_a_wav_header_before_each_message_is_no_audio(raw, size):
    parts = parts_of((NOISE * 32767).astype("<i2").tobytes(), [1000])
    decoder = PcmDecoder(raw, RATE_HZ)
    found = [decoder.push(decoder.message(stream_header(size=size) + part)) for part in parts]
    expected = np.frombuffer(b"".join(parts), "<i2") / np.float32(32768)
    np.testing.assert_array_equal(as_samples(np.concatenate(found)), expected)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (stream_header(8000), "states s16le at 8000 Hz with 1 channel; accepted: s16le at 16000 Hz with 1 channel"),
        (stream_header(channels=2), "with 2 channels"),
        (wav(NOISE, subtype="ULAW"), "states mulaw"),
        (wav(NOISE[:800], subtype="IMA_ADPCM"), "compressed audio"),
        (stream_header()[:30], "header is cut"),
        (sound_file(NOISE, RATE_HZ, "OGG", "VORBIS"), r"a recording \(Ogg\)"),
        (b"\x1aE\xdf\xa3" + bytes(100), r"a recording \(WebM or Matroska\)"),
    ],
)
def test_messages_that_are_no_samples_of_the_session(data, text):
    with pytest.raises(GatewayError, match=text) as caught:
        PcmDecoder(RawFormat("s16le", RATE_HZ), RATE_HZ).message(data)
    assert caught.value.code is GatewayCode.AUDIO_INVALID


def test_a_container_is_known_in_small_messages_at_the_beginning_only():
    decoder = PcmDecoder(RawFormat("s16le", RATE_HZ), RATE_HZ)
    assert decoder.message(b"Og") == b"Og"
    with pytest.raises(GatewayError, match="a recording"):
        decoder.message(b"gS" + bytes(20))
    decoder = PcmDecoder(RawFormat("s16le", RATE_HZ), RATE_HZ)
    for part in (bytes(100), b"OggS" + bytes(20)):
        assert decoder.message(part) == part


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_any_bytes_are_audio_or_rejected(parts):
    decoder = PcmDecoder(RawFormat("s16le", 8_000), RATE_HZ, may_have_header=True)
    try:
        samples = decoded(decoder, [b"RIFF", *parts])
    except GatewayError as error:
        assert error.code is GatewayCode.AUDIO_INVALID
    else:
        assert np.isfinite(samples).all()
