"""Files divided among processes: the transcripts of one process, and what happens if a process ends."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from penstock import StreamingRecognizer
from penstock.errors import RunError
from penstock.transcription.files import FileTranscriber, FileTranscript
from penstock.transcription.processes import divide, transcribe_files
from tests.helpers.golden import SIGNALS, golden_case, golden_pcm

CONTEXT = (6, 1)


@pytest.fixture(scope="module")
def transcriber(golden_bundle) -> FileTranscriber:
    return FileTranscriber(StreamingRecognizer(golden_bundle("rnnt_hybrid").directory, CONTEXT, max_streams=2), 1000)


@pytest.fixture
def paths(tmp_path) -> list[Path]:
    names = [f"{i}-{signal}" for i in range(3) for signal in sorted(SIGNALS)]
    for name in names:
        soundfile.write(tmp_path / f"{name}.wav", golden_pcm(name[2:]).numpy(), 16000)
    return [tmp_path / f"{name}.wav" for name in names]


def outcome(transcript: FileTranscript) -> tuple:
    words = [(word.text, word.start_ms, word.end_ms) for word in transcript.words]
    tokens = [(token.id, token.timestamp) for token in transcript.tokens]
    return transcript.audio, transcript.audio_s, transcript.text, tokens, words, transcript.error


def test_the_transcripts_are_those_of_files_one_by_one(transcriber, paths, tmp_path):
    paths.insert(1, tmp_path / "gone.wav")
    alone = [outcome(transcript) for path in paths for transcript in transcriber.transcribe([path])]
    for processes in (1, 3):
        heard_s: list[float] = []
        found = dict(transcribe_files(transcriber, paths, processes, heard_s.append, order=range(len(paths))[::-1]))
        assert [outcome(transcript) for index in range(len(paths)) for transcript in found[index]] == alone
        assert sum(heard_s) == pytest.approx(sum(audio_s for _, audio_s, *_ in alone))
    assert alone[1][-1] == f"AUDIO_INVALID: {tmp_path / 'gone.wav'}: no such file"
    for path, (_, _, _, tokens, *_) in zip(paths, alone, strict=True):
        if path.exists():
            assert [token for token, _ in tokens] == golden_case("rnnt_hybrid").greedy(CONTEXT, path.stem[2:]).tokens


def test_a_file_is_given_to_one_process(transcriber, paths):
    found = list(transcribe_files(transcriber, paths, 2))
    assert sorted(index for index, _ in found) == list(range(len(paths)))


class Dying:
    """A transcriber whose process is killed on the way."""

    def transcribe_numbered(self, files: Iterator, on_audio) -> Iterator:
        on_audio(1.0)
        next(files)
        os.kill(os.getpid(), signal.SIGKILL)
        yield


def test_a_process_that_ends_early_is_an_error():
    with pytest.raises(RunError, match=r"a process ended early: signal SIGKILL, often for lack of memory"):
        list(transcribe_files(Dying(), ["a.wav", "b.wav"], 2))


def test_processes_end_with_their_consumer(transcriber, paths):
    others = multiprocessing.active_children()
    results = transcribe_files(transcriber, paths, 2)
    next(results)
    results.close()
    assert set(multiprocessing.active_children()) <= set(others)


@pytest.mark.parametrize(
    ("arguments", "processes", "streams"),
    [
        ({"files": 1}, 1, 1),
        ({"files": 3}, 3, 1),
        ({"files": 20}, 4, 5),
        ({"files": 1000}, 4, 16),
        ({"files": 20, "streams": 6}, 4, 2),
        ({"files": 20, "streams": 1}, 1, 1),
        ({"files": 20, "threads": 2}, 2, 10),
        ({"files": 20, "threads": 8}, 1, 16),
        ({"files": 20, "processes": 3}, 3, 7),
        ({"files": 2, "tracks": 4}, 2, 2),
    ],
)
def test_all_cores_are_used_as_far_as_there_are_files(monkeypatch, arguments, processes, streams):
    monkeypatch.setattr("penstock.transcription.processes.core_count", lambda: 4)
    given = {"tracks": arguments["files"], "streams": None, "threads": 1, **arguments}
    assert divide(**given) == (processes, streams)
