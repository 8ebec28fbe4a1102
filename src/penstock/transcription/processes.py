"""Transcribes files in several processes, each with its own batch of streams.

A step of a small model is too short to share among threads, so every process computes with its own
(docs/internals/log.md). They are forked from the one that has loaded the model, so they share its weights.
"""

import contextlib
import math
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized

import torch

from penstock.errors import RunError
from penstock.frontend.audio_file import FilePart
from penstock.runtime import available_memory_bytes, core_count, describe_end, memory_kills
from penstock.transcription.files import AudioPath, NumberedPath, NumberedTranscripts, OnAudio, Transcriber, ignore

STREAMS_PER_PROCESS = 16
_PROCESS_BYTES = 500 * 10**6
"""Beside the weights that all share; with a bundled model and 16 streams it is 440 MB."""


def divide(files: int, tracks: int, streams: int | None, threads: int, processes: int | None = None) -> tuple[int, int]:
    """The number of processes, and of streams in each: all cores are used, as far as there are files and memory.

    tracks: streams that the files need in all; streams: of all processes together, by default 16 in each; threads: of
    each process.
    """
    most = min(files, streams or files)
    fitting = min(core_count() // threads, available_memory_bytes() // _PROCESS_BYTES)
    count = max(1, min(processes or fitting, most))
    wanted = -(-streams // count) if streams else STREAMS_PER_PROCESS
    return count, max(1, min(wanted, -(-tracks // count)))


def group_parts(
    files: Sequence[AudioPath], audio_s: Sequence[float], processes: int, longest_first: bool = True
) -> list[list[int]]:
    """Indices in groups, each for one process: the parts of a file by their begin, so that it is decoded once.

    With more than its share of all audio a file has several groups. Groups are in the order of their first files, or by
    falling duration: a long file that begins last would keep one process busy alone.
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
    return sorted(groups, key=lambda group: -sum(audio_s[index] for index in group)) if longest_first else groups


def transcribe_files(
    transcriber: Transcriber,
    paths: Sequence[AudioPath],
    processes: int,
    on_audio: OnAudio = ignore,
    order: Sequence[Sequence[int]] | None = None,
    threads: int = 1,
) -> NumberedTranscripts:
    """Yields the index and the transcripts of each file as soon as it is done.

    order: the indices in the order in which files are begun, each group in one process; threads: of each process.
    Before the fork of several, this process must not have computed with more than one. Raises RunError if a process
    ends early, for example for lack of memory.
    """
    order = [[index] for index in range(len(paths))] if order is None else order
    groups = [[(index, paths[index]) for index in group] for group in order]
    if processes == 1:
        yield from transcriber.transcribe_numbered(chain.from_iterable(groups), on_audio)
        return
    fork = multiprocessing.get_context("fork")
    taken, kills = fork.Value("q", 0), memory_kills()
    workers: dict[Connection, BaseProcess] = {}
    try:
        for _ in range(processes):
            answers, sink = fork.Pipe(duplex=False)
            # Without copies of the reading ends, a process ends at its next answer once this process has ended.
            work = (transcriber, groups, taken, threads, sink, [*workers, answers])
            process = fork.Process(target=_work, args=work, daemon=True)
            process.start()
            workers[answers] = process
            sink.close()
        yield from _collect(dict(workers), on_audio, kills)
    finally:
        for worker in workers.values():
            worker.terminate()
        for answers, worker in workers.items():
            worker.join()
            answers.close()


def _work(
    transcriber: Transcriber,
    groups: list[list[NumberedPath]],
    taken: "Synchronized[int]",
    threads: int,
    sink: Connection,
    unused: list[Connection],
) -> None:
    """The work of one process: takes groups of files until none is left.

    taken: number of groups that a process has taken. sink: for seconds of audio, files' results, and None at the end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process stops the others
    for connection in unused:
        connection.close()
    torch.set_num_threads(threads)
    with contextlib.suppress(BrokenPipeError):  # the first process has ended
        for result in transcriber.transcribe_numbered(_next_files(groups, taken), sink.send):
            sink.send(result)
        sink.send(None)


def _next_files(groups: list[list[NumberedPath]], taken: "Synchronized[int]") -> Iterator[NumberedPath]:
    while True:
        with taken.get_lock():
            position, taken.value = taken.value, taken.value + 1
        if position >= len(groups):
            return
        yield from groups[position]


def _collect(working: dict[Connection, BaseProcess], on_audio: OnAudio, kills: int) -> NumberedTranscripts:
    """Answers of all processes, until each has no more and is left out; kills: `memory_kills` at the start."""
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
