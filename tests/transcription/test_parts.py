"""Parts of files: 40 segments in five joined files against the cut files, by every way that leads to a recognizer."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import soundfile

from penstock import StreamingRecognizer
from penstock.frontend import audio_file
from penstock.frontend.audio_file import AudioBlocks, AudioSource, FilePart, read_audio
from penstock.transcription.files import FileTranscriber, FileTranscript
from penstock.transcription.offline import OfflineRecognizer
from penstock.transcription.processes import group_parts
from tests.helpers.golden import AN4, golden_utterances
from tests.helpers.transcribe_command import lines, run

pytestmark = pytest.mark.usefixtures("uncompiled")
RATE_HZ = 16000


@pytest.fixture(scope="module")
def cut(tmp_path_factory) -> dict[FilePart, Path]:
    """Eight parts of each of five files, which are joined recordings, and the file that each part is by itself."""
    folder = tmp_path_factory.mktemp("parts")
    speech = np.concatenate([read_audio(one.path, RATE_HZ) for one in golden_utterances()])
    files: dict[FilePart, Path] = {}
    for number in range(5):
        joined = np.roll(speech, -20000 * number)
        path = folder / f"call-{number}.wav"
        soundfile.write(path, joined, RATE_HZ, subtype="FLOAT")
        for place in range(8):
            begin, end = 24000 * place + 777 * number, 24000 * place + 40000  # some overlap
            part = FilePart(str(path), begin / RATE_HZ, (end - begin) / RATE_HZ)
            files[part] = folder / f"{number}-{place}.wav"
            soundfile.write(files[part], joined[begin:end], RATE_HZ, subtype="FLOAT")
    return files


def outcome(transcript: FileTranscript, shift_s: float = 0.0) -> tuple:
    shift_ms = round(1000 * shift_s)
    words = [(word.text, word.start_ms + shift_ms, word.end_ms + shift_ms) for word in transcript.words]
    return transcript.text, [token.id for token in transcript.tokens], words, transcript.audio_s, transcript.error


@pytest.mark.parametrize("model", ["an4-rnnt-hybrid", "an4-offline"])
def test_texts_and_times_are_those_of_the_cut_files(cut, model, monkeypatch):
    opened: list[str] = []
    open_audio = audio_file.open_audio
    monkeypatch.setattr(audio_file, "open_audio", lambda path: opened.append(str(path)) or open_audio(path))
    directory = AN4.parents[2] / "models" / model
    if model == "an4-offline":
        transcriber = FileTranscriber(OfflineRecognizer(directory), 0)
    else:
        transcriber = FileTranscriber(StreamingRecognizer(directory, max_streams=16), 8960)
    found = list(transcriber.transcribe(cut))
    assert opened == [f"{next(iter(cut)).path[:-5]}{number}.wav" for number in range(5)], "each is decoded once"
    alone = list(transcriber.transcribe(cut.values()))
    assert sum(len(each.words) for each in found) > 80
    for part, one, by_itself in zip(cut, found, alone, strict=True):
        assert outcome(one) == outcome(by_itself, part.begin_s), part
        assert one.name == str(part)


@pytest.mark.parametrize("rate_hz, channels, suffix", [(8000, 1, "wav"), (44100, 2, "wav"), (48000, 2, "flac")])
def test_samples_are_those_of_a_file_that_is_cut(tmp_path, rate_hz, channels, suffix):
    samples = np.random.default_rng(0).uniform(-0.4, 0.4, (rate_hz * 3, channels)).astype(np.float32)
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, samples, rate_hz, subtype="PCM_16")
    source = AudioSource(RATE_HZ)
    for begin, end in ((0, 100), (50, 20001), (50, 20001), (20001, 20002), (rate_hz, rate_hz * 2), (7, 3 * rate_hz)):
        part = FilePart(str(path), begin / rate_hz, (end - begin) / rate_hz)
        soundfile.write(tmp_path / "cut.wav", soundfile.read(path)[0][begin:end], rate_hz, subtype="PCM_16")
        expected = read_audio(tmp_path / "cut.wav", RATE_HZ)
        np.testing.assert_array_equal(source.read(part), expected)
        (track,) = (alone := AudioBlocks(part, RATE_HZ)).tracks  # as a long part: read bit by bit
        np.testing.assert_array_equal(np.concatenate([track.read(999) for _ in range(60)]), expected)
        alone.close()
    source.close()


def test_parts_beyond_the_audio(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.full(RATE_HZ, 0.1), RATE_HZ)
    source = AudioSource(RATE_HZ)
    for offset_s in (1.0, 30.0):
        with pytest.raises(audio_file.AudioError, match=r"a\.wav#.*: begins after the audio, which ends at 1\.000 s"):
            source.open(FilePart(str(path), offset_s, 1.0))
    with pytest.raises(audio_file.AudioError, match="has no audio"):
        source.open(FilePart(str(path), 0.5, 1e-6))
    remarks = [source.open(FilePart(str(path), 0.5, duration_s)).remarks for duration_s in (0.5, 0.9, 3.0, None)]
    assert remarks == [[], [], [("cut", 1.0, 2.5)], []], "a duration may be rounded"


def test_labels():
    parts = (FilePart("a", 12.5, 2.75), FilePart("a", 0.0, None), FilePart("a", 0.1, 3.1234375), FilePart("a"))
    assert [str(part) for part in parts] == ["a#12.500-15.250", "a#0.000-end", "a#0.100-3.223438", "a"]
    assert (parts[1].end_s, parts[3].begin_s) == (math.inf, 0.0)


def test_a_process_takes_the_parts_of_a_file_together():
    files = [FilePart("b", 5.0, 1.0), "x", FilePart("a", 0.0, 9.0), FilePart("b", 0.0, 1.0), FilePart("b", 1.0, 4.0)]
    audio_s = [1.0, 3.0, 9.0, 1.0, 4.0]
    in_order = group_parts(files, audio_s, 1, longest_first=False)
    assert in_order == [[3, 4, 0], [1], [2]], "by their begin, in the order of the files"
    assert group_parts(files, audio_s, 2) == [[2], [3, 4, 0], [1]]
    many = [FilePart("a", float(i), 1.0) for i in range(40)]
    assert group_parts(many, [1.0] * 40, 4) == [list(range(i, i + 10)) for i in range(0, 40, 10)]


def test_a_manifest_to_files_and_json(tmp_path, capsys, bundled_model):
    audio = str(golden_utterances()[0].path)
    entries = [
        {"audio_filepath": audio, "offset": 0.9, "duration": 0.7, "text": "of others"},
        {"audio_filepath": audio, "duration": 99},
        {"audio_filepath": audio, "offset": 0.0, "duration": 0.9, "lang": "de", "more": [1]},
        {"audio_filepath": audio, "offset": 0.0, "duration": 0.9, "text": "once", "lang": "de"},
        {"audio_filepath": audio, "offset": 99},
    ]
    manifest = tmp_path / "set.jsonl"
    manifest.write_text("\n".join(map(json.dumps, entries)))
    command = ("--model", str(bundled_model), "--from-manifest", str(manifest), "--processes", "1")
    assert run(*command, "--out", str(tmp_path / "out"), "--format", "txt,srt") == 1
    names = {path.name for path in (tmp_path / "out").iterdir()}
    stem = Path(audio).stem
    labels = ("#0.000-0.900", "", "#0.900-1.600")
    assert names == {f"{stem}{label}.{suffix}" for label in labels for suffix in ("txt", "srt")}
    err = capsys.readouterr().err
    assert "left out 1 repetition" in err and f"{stem}.flac#99.000-end: begins after the audio" in err
    assert f"warning: {audio}: duration: 99 s, but the file lasts" in err
    assert run(*command, "--json") == 1
    found = list(map(json.loads, lines(capsys)))
    assert [(each.get("offset"), each.get("duration")) for each in found] == [(0.9, 0.7), (None, None), (0.0, 0.9)]
    assert all(900 <= word["start_ms"] < 1600 for word in found[0]["words"])
