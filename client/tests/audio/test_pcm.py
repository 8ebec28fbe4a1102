import io

import numpy as np
import pytest
import soundfile

from penstock_client import RawFormat
from penstock_client.audio.pcm import raw_pcm, wav_pcm

NOISE = np.random.default_rng(0).uniform(-1, 1, 2000)
SUBTYPES = {"s16le": "PCM_16", "f32le": "FLOAT", "mulaw": "ULAW", "alaw": "ALAW"}


def encode(samples, container, subtype):
    file = io.BytesIO()
    soundfile.write(file, samples, 8000, format=container, subtype=subtype)
    return file.getvalue()


def decoded_by_libsndfile(content, **given):
    return soundfile.read(io.BytesIO(content), dtype="float32", **given)[0]


@pytest.mark.parametrize("encoding", SUBTYPES)
def test_raw_samples_are_libsndfile_s(encoding):
    subtype = SUBTYPES[encoding]
    content = encode(NOISE, "RAW", subtype)
    pcm = raw_pcm(RawFormat(encoding, 8000))
    expected = decoded_by_libsndfile(content, format="RAW", subtype=subtype, samplerate=8000, channels=1)
    assert len(content) == 2000 * pcm.sample_bytes == 2000 * pcm.frame_bytes
    np.testing.assert_array_equal(pcm.decode(content), expected)


@pytest.mark.parametrize("encoding", ["mulaw", "alaw"])
def test_every_code_of_telephony(encoding):
    codes = bytes(range(256))
    expected = decoded_by_libsndfile(codes, format="RAW", subtype=SUBTYPES[encoding], samplerate=8000, channels=1)
    np.testing.assert_array_equal(raw_pcm(RawFormat(encoding, 8000)).decode(codes), expected)


@pytest.mark.parametrize("container", ["WAV", "WAVEX"])
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"])
def test_wav_samples_are_libsndfile_s(container, subtype):
    content = encode(np.stack([NOISE, -NOISE / 2], axis=1), container, subtype)
    at, data = content.index(b"fmt ") + 8, content.index(b"data") + 8
    pcm = wav_pcm(content[at : at + content[at - 4]], None)
    assert (pcm.sample_rate_hz, pcm.channels) == (8000, 2)
    samples = pcm.decode(content[data : data + 2000 * pcm.frame_bytes]).reshape(-1, 2)
    np.testing.assert_array_equal(samples, decoded_by_libsndfile(content))


def test_a_compressed_wav_file_has_no_such_format():
    content = encode(NOISE, "WAV", "IMA_ADPCM")
    at = content.index(b"fmt ") + 8
    assert wav_pcm(content[at : at + content[at - 4]], None) is None


@pytest.mark.parametrize("chunk", [b"", bytes(10), b"\1\0\0\0" + bytes(10) + b"\x10\0"])
def test_a_broken_format_is_an_error(chunk):
    with pytest.raises(ValueError, match="not a readable audio file: its header"):
        wav_pcm(chunk, None)


@pytest.mark.parametrize(
    "values, match",
    [
        (("s24be", 8000), "raw format is 's24be', expected one of s16le, f32le, mulaw, alaw"),
        (("s16le", 0), "sample rate is 0, expected an integer from 1 to 768000"),
        (("s16le", 8000.0), "sample rate is 8000.0"),
        (("s16le", 8000, 65), "number of channels is 65, expected an integer from 1 to 64"),
    ],
)
def test_unsuitable_raw_formats(values, match):
    with pytest.raises(ValueError, match=match):
        RawFormat(*values)
