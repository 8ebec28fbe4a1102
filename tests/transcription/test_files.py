"""Files through the recognizer: order, batches, and one file's failure."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from client.tests.helpers.sound_files import media_file
from penstock import StreamingRecognizer
from penstock.transcription.files import FileTranscriber, FileTranscript
from penstock_common.audio.monitors import SpeechMonitor
from penstock_common.audio.pcm import Remark
from tests.helpers.golden import SIGNALS, golden_case, golden_pcm

CONTEXT = (6, 1)


@pytest.fixture(scope="module")
def recognizer(golden_bundle) -> StreamingRecognizer:
    return StreamingRecognizer(golden_bundle("rnnt_hybrid").directory, CONTEXT, max_streams=3)


@pytest.fixture
def paths(tmp_path) -> list[Path]:
    """Files of the golden signals, the longest in front, each several times."""
    names = [f"{i}-{signal}" for i in range(3) for signal in sorted(SIGNALS)]
    for name in names:
        soundfile.write(tmp_path / f"{name}.wav", golden_pcm(name[2:]).numpy(), 16000)
    return [tmp_path / f"{name}.wav" for name in names]


def transcribe(recognizer: StreamingRecognizer, paths: list[Path], request_samples: int) -> list[FileTranscript]:
    transcripts = list(FileTranscriber(recognizer, request_samples).transcribe(paths))
    assert recognizer.table.live_streams == 0
    return transcripts


def tokens(transcript: FileTranscript) -> list[int]:
    return [token.id for token in transcript.tokens]


@pytest.mark.parametrize("request_samples", [997, 1600, 480000])
def test_results_come_in_order_and_are_nemos(recognizer, paths, request_samples):
    transcripts = transcribe(recognizer, paths, request_samples)
    assert [transcript.audio for transcript in transcripts] == list(map(str, paths))
    for path, transcript in zip(paths, transcripts, strict=True):
        signal = path.stem[2:]
        golden = golden_case("rnnt_hybrid").greedy(CONTEXT, signal)
        assert tokens(transcript) == golden.tokens
        assert [word.text for word in transcript.words] == transcript.text.split()
        assert transcript.audio_s == len(golden_pcm(signal)) / 16000
        assert transcript.error is None


def test_a_result_is_given_as_soon_as_those_before_it(golden_bundle, paths):
    """Not after the last file has been read."""
    recognizer = StreamingRecognizer(golden_bundle("rnnt_hybrid").directory, CONTEXT, max_streams=3)
    opened = []

    def paths_as_opened():
        for path in paths:
            opened.append(path)
            yield path

    transcripts = FileTranscriber(recognizer, 16000).transcribe(paths_as_opened())
    assert next(transcripts).audio == str(paths[0])
    assert len(opened) < len(paths)
    assert recognizer.table.live_streams > 0
    transcripts.close()
    assert recognizer.table.live_streams == 0, "the streams of open files are closed"


@pytest.mark.parametrize("place", [0, 4, 9])
def test_a_file_that_cannot_be_read_does_not_stop_the_others(recognizer, paths, tmp_path, place):
    expected = list(map(tokens, transcribe(recognizer, paths, 16000)))
    transcripts = transcribe(recognizer, [*paths[:place], tmp_path / "gone.wav", *paths[place:]], 16000)
    failed = transcripts.pop(place)
    assert failed.error == f"AUDIO_INVALID: {tmp_path / 'gone.wav'}: no such file"
    assert (failed.text, failed.tokens, failed.words) == ("", [], [])
    assert list(map(tokens, transcripts)) == expected


def test_a_stream_that_fails_does_not_stop_the_others(recognizer, paths, tmp_path):
    loud = tmp_path / "loud.wav"
    soundfile.write(loud, np.r_[np.zeros(30000), np.full(2000, 1e6), np.zeros(9999)], 16000, subtype="FLOAT")
    transcripts = transcribe(recognizer, [paths[0], loud, *paths[1:]], 16000)
    assert [transcript.error is None for transcript in transcripts] == [True, False] + [True] * 8
    assert "loud.wav" in transcripts[1].error
    assert "beyond 2" in transcripts[1].error
    assert tokens(transcripts[0]) == tokens(transcripts[4])


@pytest.mark.parametrize("request_samples", [16000, 480000])
def test_remarks_on_the_text_have_the_samples_and_the_words(recognizer, paths, request_samples, monkeypatch):
    class Monitor(SpeechMonitor):
        def note(self, words, processed_s, text, is_final):
            super().note(words, processed_s, text, is_final)
            power = self._powers.sum()
            self.remarks.append(Remark(" ".join(word.text for word in words), processed_s, float(power)))

    monkeypatch.setattr("penstock.transcription.files.SpeechMonitor", Monitor)
    (transcript,) = transcribe(recognizer, paths[:1], request_samples)
    assert " ".join(each.code for each in transcript.remarks if each.code) == transcript.text
    assert transcript.remarks[-1].start_s == pytest.approx(transcript.audio_s) and transcript.remarks[-1].lost_s > 0


def test_times_are_those_of_a_file_that_begins_late(recognizer, paths):
    pytest.importorskip("av")
    late = paths[0].with_name("late.mkv")
    samples = (golden_pcm("medium").numpy() / 32768).astype(np.float32)
    late.write_bytes(media_file("matroska", "pcm_s16le", samples, 16000, start_s=5.0))
    soundfile.write(paths[0], samples, 16000)
    first, second = transcribe(recognizer, [paths[0], late], 1600)
    assert (second.start_s, second.audio_s, second.text) == (5.0, first.audio_s, first.text)
    assert first.words and second.words == [
        word._replace(start_ms=word.start_ms + 5000, end_ms=word.end_ms + 5000) for word in first.words
    ]


def test_each_channel_is_a_transcript(recognizer, tmp_path):
    """Also where a file has more channels than the recognizer has streams."""
    path = tmp_path / "call.wav"
    signals = [golden_pcm(signal).numpy()[:16000] for signal in ("medium", "long")]
    soundfile.write(path, np.stack([*signals, *signals], axis=1), 16000)
    transcripts = list(FileTranscriber(recognizer, 1600, channel="each").transcribe([path, tmp_path / "gone.wav"]))
    assert [transcript.channel for transcript in transcripts] == ["1", "2", "3", "4", None]
    assert [transcript.name for transcript in transcripts[:2]] == [f"{path} [1]", f"{path} [2]"]
    first, second, third, fourth, _ = map(tokens, transcripts)
    assert first == third != second == fourth
    assert transcripts[-1].error
    (alone,) = FileTranscriber(recognizer, 1600, channel=2).transcribe([path])
    assert (tokens(alone), alone.name) == (second, str(path))


def test_every_file_has_its_options(recognizer, paths):
    without = [transcript.text for transcript in transcribe(recognizer, paths, 8000)]
    phrases = {"boosted_phrases": [["zulu", 20.0]]}
    options = [phrases if index == 1 else {} for index in range(len(paths))]
    found = [transcript.text for transcript in FileTranscriber(recognizer, 8000, options).transcribe(paths)]
    assert found[1] != without[1]
    assert found[:1] + found[2:] == without[:1] + without[2:]
