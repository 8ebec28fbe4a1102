import io
import struct

import numpy as np
import pytest
import soundfile

from client.tests.helpers.sound_files import sound_file
from penstock_client import RawFormat
from penstock_common.audio.pcm import PcmStream, raw_pcm, wav_pcm

NOISE = np.random.default_rng(0).uniform(-1, 1, 2000)
SUBTYPES = {"s16le": "PCM_16", "f32le": "FLOAT", "mulaw": "ULAW", "alaw": "ALAW"}


def decoded_by_libsndfile(content, **given):
    return soundfile.read(io.BytesIO(content), dtype="float32", **given)[0]


@pytest.mark.parametrize("encoding", SUBTYPES)
def test_raw_samples_are_libsndfile_s(encoding):
    subtype = SUBTYPES[encoding]
    content = sound_file(NOISE, 8000, "RAW", subtype)
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
    content = sound_file(np.stack([NOISE, -NOISE / 2], axis=1), 8000, container, subtype)
    at, data = content.index(b"fmt ") + 8, content.index(b"data") + 8
    pcm = wav_pcm(content[at : at + content[at - 4]], None)
    assert (pcm.sample_rate_hz, pcm.channels) == (8000, 2)
    samples = pcm.decode(content[data : data + 2000 * pcm.frame_bytes]).reshape(-1, 2)
    np.testing.assert_array_equal(samples, decoded_by_libsndfile(content))


def test_a_compressed_wav_file_has_no_such_format():
    content = sound_file(NOISE, 8000, "WAV", "IMA_ADPCM")
    at = content.index(b"fmt ") + 8
    assert wav_pcm(content[at : at + content[at - 4]], None) is None


@pytest.mark.parametrize(
    "chunk, match",
    [(b"", "header is cut"), (bytes(10), "header is cut"), (b"\1\0\0\0" + bytes(10) + b"\x10\0", "has 0 channels")],
)
def test_a_broken_format_is_an_error(chunk, match):
    with pytest.raises(ValueError, match=match):
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


def with_data_bytes(content, size):
    """A WAV file that states this length of its samples."""
    at = content.index(b"data") + 4
    return content[:at] + struct.pack("<I", size) + content[at + 4 :]


def streamed(content, piece_bytes, raw=None):
    """The blocks of all samples, and the remarks."""
    stream, blocks = PcmStream(raw), []
    for start in range(0, len(content), piece_bytes):
        blocks += stream.push(content[start : start + piece_bytes])
    blocks += stream.push(b"", is_end=True)
    return blocks, [(each.code, round(each.start_s, 3), round(each.lost_s, 3)) for each in stream.remarks]


def joined(blocks):
    return np.concatenate([block.samples for block in blocks])


PIECES = pytest.mark.parametrize("piece_bytes", [7, 4096, 1 << 20])


@PIECES
@pytest.mark.parametrize("subtype, channels", [("PCM_16", 1), ("PCM_24", 2), ("PCM_U8", 1)])
@pytest.mark.parametrize(
    "stated_bytes, remarks",
    [
        (lambda size: 0, []),
        (lambda size: size // 2, []),
        (lambda size: size // 2 + 1, []),
        (lambda size: size + 44, []),
        (lambda size: 2 * size, [("cut", 0.25, 0.25)]),
        (lambda size: 0x7FFFF000, []),
        (lambda size: 0xFFFFFFFF, []),
    ],
    ids=["0", "half", "half + 1", "44 more", "double", "of a pipe", "of ffmpeg's pipe"],
)
def test_a_stated_length_is_not_believed(piece_bytes, subtype, channels, stated_bytes, remarks):
    content = sound_file(np.stack([NOISE] * channels, axis=1), 8000, "WAV", subtype)
    wrong = with_data_bytes(content, stated_bytes(2000 * channels * int(subtype[-2:].lstrip("U")) // 8))
    blocks, found = streamed(wrong, piece_bytes)
    np.testing.assert_array_equal(joined(blocks), decoded_by_libsndfile(content, always_2d=True))
    assert found == remarks


@PIECES
@pytest.mark.parametrize("count", [2000, 1999])  # an odd number of bytes has one more behind it
@pytest.mark.parametrize("behind", [b"LIST" + struct.pack("<I", 3) + b"abc\0", b"TAG" + bytes(125), bytes(3)])
def test_what_is_behind_the_samples_is_no_audio(piece_bytes, count, behind):
    content = sound_file(NOISE[:count], 8000, "WAV", "PCM_U8")
    blocks, remarks = streamed(content + behind, piece_bytes)
    np.testing.assert_array_equal(joined(blocks)[:, 0], decoded_by_libsndfile(content))
    assert not remarks


@PIECES
def test_a_second_file_is_read_in_its_format(piece_bytes):
    first, second = sound_file(NOISE, 8000, "WAV", "PCM_16"), io.BytesIO()
    soundfile.write(second, np.stack([NOISE, -NOISE], axis=1), 16_000, format="WAV", subtype="FLOAT")
    blocks, remarks = streamed(first + second.getvalue(), piece_bytes)
    assert not remarks
    for rate_hz, content in ((8000, first), (16_000, second.getvalue())):
        samples = joined(block for block in blocks if block.rate_hz == rate_hz)
        np.testing.assert_array_equal(samples, decoded_by_libsndfile(content, always_2d=True))


@PIECES
@pytest.mark.parametrize("second", [b"RIFF\0\0\0\0WAVEfmt ", b"RIFF\0\0\0\0AVI " + bytes(50), b"RIFF\0\0\0\0"])
def test_a_second_file_with_a_broken_header_is_a_remark(piece_bytes, second):
    content = sound_file(NOISE, 8000, "WAV", "PCM_16")
    blocks, remarks = streamed(content + second, piece_bytes)
    np.testing.assert_array_equal(joined(blocks)[:, 0], decoded_by_libsndfile(content))
    assert remarks == [("damaged", 0.25, 0.0)]


@PIECES
def test_raw_samples_are_no_file(piece_bytes):
    content = sound_file(NOISE, 8000, "WAV", "PCM_16")
    blocks, remarks = streamed(content + b"\0", piece_bytes, RawFormat("s16le", 8000, 2))
    np.testing.assert_array_equal(joined(blocks).ravel(), np.frombuffer(content, "<i2") / np.float32(32768))
    assert not remarks


@PIECES
@pytest.mark.parametrize(
    "content", [b"", b"RI", b"RIFF\0\0\0\0WAVE", b"fLaC" + bytes(100), sound_file(NOISE, 8000, "WAV", "GSM610")]
)
def test_a_broken_header_is_an_error(piece_bytes, content):
    with pytest.raises(ValueError, match=r"has no audio|header is cut|not a WAV file"):
        streamed(content, piece_bytes)
