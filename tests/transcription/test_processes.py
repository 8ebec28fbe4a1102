"""Files divided among processes: the transcripts of one process, and what happens if a process ends."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import soundfile
import torch

from penstock import StreamingRecognizer
from penstock.errors import RunError
from penstock.transcription.files import FileTranscriber, FileTranscript
from penstock.transcription.processes import divide, transcribe_files
from tests.helpers.fresh_process import in_fresh_process
from tests.helpers.golden import SIGNALS, golden_case, golden_pcm

CONTEXT = (6, 1)


@pytest.fixture(scope="module")
def model(golden_bundle) -> Path:
    return golden_bundle("rnnt_hybrid").directory


def transcriber_of(model: Path) -> FileTranscriber:
    torch.set_num_threads(1)
    return FileTranscriber(StreamingRecognizer(model, CONTEXT, max_streams=2), 1000)


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


def transcribed(
    model: Path, paths: list[Path], processes: int, order: list[list[int]] | None
) -> tuple[list, list[float]]:
    """The results of all processes in the order in which they come, and the seconds of audio that they have heard."""
    heard_s: list[float] = []
    return list(transcribe_files(transcriber_of(model), paths, processes, heard_s.append, order)), heard_s


class Dying:
    """A transcriber whose process is killed on the way."""

    def transcribe_numbered(self, files: Iterator, on_audio) -> Iterator:
        on_audio(1.0)
        next(files)
        os.kill(os.getpid(), signal.SIGKILL)
        yield


def left_over(model: Path, paths: list[Path]) -> list[BaseProcess]:
    """Processes that are there after one of them was killed, and after their consumer has stopped."""
    with pytest.raises(RunError, match=r"a process ended by SIGKILL.*; --processes takes fewer"):
        list(transcribe_files(Dying(), ["a.wav", "b.wav"], 2))
    killed = multiprocessing.active_children()
    results = transcribe_files(transcriber_of(model), paths, 2)
    next(results)
    results.close()
    return killed + multiprocessing.active_children()


def divided_and_left_over(model: Path, paths: list[Path]) -> tuple[tuple[list, list[float]], list[BaseProcess]]:
    """The results of three processes, which take one file at a time, the last first; and those of `left_over`."""
    return transcribed(model, paths, 3, [[i] for i in range(len(paths))][::-1]), left_over(model, paths[::2])


def test_transcripts_are_those_of_files_one_by_one_and_no_process_is_left(model, paths, tmp_path):
    paths.insert(1, tmp_path / "gone.wav")
    transcriber = transcriber_of(model)
    alone = [outcome(transcript) for path in paths for transcript in transcriber.transcribe([path])]
    divided, left = in_fresh_process(divided_and_left_over, model, paths)
    assert left == []
    for results, heard_s in (transcribed(model, paths, 1, None), divided):
        assert sorted(index for index, _ in results) == [*range(len(paths))], "each is given to one process"
        found = dict(results)
        assert [outcome(transcript) for index in range(len(paths)) for transcript in found[index]] == alone
        assert sum(heard_s) == pytest.approx(sum(audio_s for _, audio_s, *_ in alone))
    assert alone[1][-1] == f"AUDIO_INVALID: {tmp_path / 'gone.wav'}: no such file"
    for path, (_, _, _, tokens, *_) in zip(paths, alone, strict=True):
        if path.exists():
            assert [token for token, _ in tokens] == golden_case("rnnt_hybrid").greedy(CONTEXT, path.stem[2:]).tokens


@pytest.mark.parametrize(
    ("arguments", "processes", "streams"),
    [
        ({"files": 1}, 1, 1),
        ({"files": 20}, 4, 5),
        ({"files": 1000}, 4, 16),
        ({"files": 20, "streams": 6}, 4, 2),
        ({"files": 20, "streams": 1}, 1, 1),
        ({"files": 20, "threads": 8}, 1, 16),
        ({"files": 20, "free_gb": 1}, 2, 10),
        ({"files": 20, "free_gb": 0}, 1, 16),
        ({"files": 20, "free_gb": 1, "processes": 4}, 4, 5),
    ],
)
def test_all_cores_are_used_as_far_as_there_are_files_and_memory(monkeypatch, arguments, processes, streams):
    monkeypatch.setattr("penstock.transcription.processes.core_count", lambda: 4)
    free = arguments.pop("free_gb", 64)
    monkeypatch.setattr("penstock.transcription.processes.available_memory_bytes", lambda: free * 10**9)
    given = {"tracks": arguments["files"], "streams": None, "threads": 1, **arguments}
    assert divide(**given) == (processes, streams)
