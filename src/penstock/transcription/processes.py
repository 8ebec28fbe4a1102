"""Transcribes files in several processes, each with its own batch of streams.

A step of a small model is too short to share among threads, so every process computes with its own
(docs/internals/log.md). They are forked from the one that has loaded the model, so they share its weights.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, NamedTuple

import torch

from penstock.errors import RunError
from penstock.runtime import available_memory_bytes, core_count, describe_end, memory_kills
from penstock.transcription.files import FileTranscript, Transcriber

STREAMS_PER_PROCESS = 16
_PROCESS_BYTES = 500 * 10**6
"""Beside the weights that all share; with a bundled model and 16 streams it is 440 MB."""


class Division(NamedTuple):
    """The division of files among processes."""

    processes: int
    streams: int
    """Streams of each process."""


def divide(files: int, tracks: int, streams: int | None, threads: int, processes: int | None = None) -> Division:
    """Uses all cores, as far as there are files and memory, with equally many streams in each process.

    tracks: streams that the files need in all; streams: of all processes together, by default 16 in each; threads: of
    each process.
    """
    most = min(files, streams or files)
    fitting = min(core_count() // threads, available_memory_bytes() // _PROCESS_BYTES)
    count = max(1, min(processes or fitting, most))
    wanted = -(-streams // count) if streams else STREAMS_PER_PROCESS
    return Division(count, max(1, min(wanted, -(-tracks // count))))


def longest_first(audio_s: Sequence[float]) -> list[int]:
    """Indices of files by falling duration: a long file that begins last would keep one process busy alone."""
    return sorted(range(len(audio_s)), key=lambda index: -audio_s[index])


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    answers: Connection


def transcribe_files(
    transcriber: Transcriber,
    paths: Sequence[str | Path],
    processes: int,
    on_audio: Callable[[float], None] = lambda audio_s: None,
    order: Sequence[int] | None = None,
    threads: int = 1,
) -> Iterator[tuple[int, list[FileTranscript]]]:
    """Yields the index and the transcripts of each file as soon as it is done.

    on_audio: as in `Transcriber.transcribe_numbered`; order: the indices in the order in which files are begun;
    threads: of each process. Before the fork of several, this process must not have computed with more than one.
    Raises RunError if a process ends early, for example for lack of memory.
    """
    files = [(index, paths[index]) for index in (order or range(len(paths)))]
    if processes == 1:
        yield from transcriber.transcribe_numbered(files, on_audio)
        return
    fork = multiprocessing.get_context("fork")
    taken, kills = fork.Value("q", 0), memory_kills()
    workers: list[_Worker] = []
    try:
        for _ in range(processes):
            others = [worker.answers for worker in workers]
            workers.append(_start(fork, _Work(transcriber, files, taken, threads), others))
        yield from _collect(workers, on_audio, kills)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
            worker.answers.close()


def _start(fork: Any, work: "_Work", others: list[Connection]) -> _Worker:
    answers, sink = fork.Pipe(duplex=False)
    # Without copies of the reading ends, a process ends at its next answer once this process has ended.
    process = fork.Process(target=work.run, args=(sink, [*others, answers]), daemon=True)
    process.start()
    sink.close()
    return _Worker(process, answers)


@dataclass(frozen=True)
class _Work:
    """The work of one process: takes files until none is left. Its answers are seconds of audio and files' results."""

    transcriber: Transcriber
    files: list[tuple[int, str | Path]]
    taken: "Synchronized[int]"
    """Number of files that a process has taken."""
    threads: int

    def run(self, sink: Connection, unused: list[Connection]) -> None:
        """Answers None at the end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process stops the others
        for connection in unused:
            connection.close()
        torch.set_num_threads(self.threads)
        try:
            for result in self.transcriber.transcribe_numbered(self._next_files(), sink.send):
                sink.send(result)
            sink.send(None)
        except BrokenPipeError:  # the first process has ended
            pass

    def _next_files(self) -> Iterator[tuple[int, str | Path]]:
        while True:
            with self.taken.get_lock():
                position, self.taken.value = self.taken.value, self.taken.value + 1
            if position >= len(self.files):
                return
            yield self.files[position]


def _collect(
    workers: list[_Worker], on_audio: Callable[[float], None], kills: int
) -> Iterator[tuple[int, list[FileTranscript]]]:
    """Answers of all processes, until each has no more; kills: `memory_kills` at the start."""
    working = {worker.answers: worker.process for worker in workers}
    while working:
        for answers in wait(list(working)):
            assert isinstance(answers, Connection)
            try:
                answer = answers.recv()
            except EOFError:
                working[answers].join()
                status = working[answers].exitcode or 0
                fewer = "; --processes takes fewer" if status == -signal.SIGKILL else ""
                raise RunError(f"a process {describe_end(status, kills)}{fewer}") from None
            if answer is None:
                del working[answers]
            elif isinstance(answer, float):
                on_audio(answer)
            else:
                yield answer
