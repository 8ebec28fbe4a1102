"""Transcribes files in several processes, each with its own batch of streams.

A step of a small model is too short to share among threads, so every process computes with its own
(docs/internals/log.md). They are forked from the one that has loaded the model, so they share its weights.
"""

import math
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from typing import Any, NamedTuple

import torch

from penstock.errors import RunError
from penstock.frontend.audio_file import FilePart
from penstock.runtime import available_memory_bytes, core_count, describe_end, memory_kills
from penstock.transcription.files import AudioPath, FileTranscript, Transcriber

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


def group_parts(files: Sequence[AudioPath], audio_s: Sequence[float], processes: int) -> list[list[int]]:
    """Indices in groups, each for one process: the parts of a file by their begin, so that it is decoded once.

    With more than its share of all audio a file has several groups. Groups are in the order of their first files.
    """
    of_file: dict[str | int, list[int]] = {}
    parts = [FilePart.of(file) for file in files]
    for index, part in enumerate(parts):
        of_file.setdefault(index if part.offset_s is None else part.path, []).append(index)
    groups: list[list[int]] = []
    share_s = sum(audio_s) / processes or math.inf
    for indices in of_file.values():
        done_s, last = 0.0, -1
        for index in sorted(indices, key=lambda index: parts[index].begin_s):
            if last != (last := int(done_s // share_s)):
                groups.append([])
            groups[-1].append(index)
            done_s += audio_s[index]
    return groups


def longest_first(groups: Sequence[list[int]], audio_s: Sequence[float]) -> list[list[int]]:
    """The groups by falling duration: a long file that begins last would keep one process busy alone."""
    return sorted(groups, key=lambda group: -sum(audio_s[index] for index in group))


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    answers: Connection


def transcribe_files(
    transcriber: Transcriber,
    paths: Sequence[AudioPath],
    processes: int,
    on_audio: Callable[[float], None] = lambda audio_s: None,
    order: Sequence[Sequence[int]] | None = None,
    threads: int = 1,
) -> Iterator[tuple[int, list[FileTranscript]]]:
    """Yields the index and the transcripts of each file as soon as it is done.

    on_audio: as in `Transcriber.transcribe_numbered`; order: the indices in the order in which files are begun, each
    group in one process; threads: of each process. Before the fork of several, this process must not have computed with
    more than one. Raises RunError if a process ends early, for example for lack of memory.
    """
    order = [[index] for index in range(len(paths))] if order is None else order
    groups = [[(index, paths[index]) for index in group] for group in order]
    if processes == 1:
        yield from transcriber.transcribe_numbered(chain.from_iterable(groups), on_audio)
        return
    fork = multiprocessing.get_context("fork")
    taken, kills = fork.Value("q", 0), memory_kills()
    workers: list[_Worker] = []
    try:
        for _ in range(processes):
            others = [worker.answers for worker in workers]
            workers.append(_start(fork, _Work(transcriber, groups, taken, threads), others))
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
    """The work of one process: takes groups of files until none is left. Its answers are seconds of audio and files'
    results."""

    transcriber: Transcriber
    groups: list[list[tuple[int, AudioPath]]]
    taken: "Synchronized[int]"
    """Number of groups that a process has taken."""
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

    def _next_files(self) -> Iterator[tuple[int, AudioPath]]:
        while True:
            with self.taken.get_lock():
                position, self.taken.value = self.taken.value, self.taken.value + 1
            if position >= len(self.groups):
                return
            yield from self.groups[position]


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
