"""Transcripts as files: one per audio file and format."""

import contextlib
import errno
import json
import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from penstock.errors import OutputError, SettingError
from penstock.transcription.audio_inputs import AudioInput
from penstock_common import subtitles
from penstock_common.results import Word
from penstock_common.transcript import alternative_documents, segment_document, word_document

if TYPE_CHECKING:
    from penstock.transcription.files import FileTranscript


def document(transcript: "FileTranscript") -> dict[str, Any]:
    """A transcript in the format of `penstock-client --json`; a part has its times as in its manifest."""
    part = transcript.part
    return {
        "audio": transcript.audio,
        **({} if part is None or part.offset_s is None else {"offset": part.offset_s, "duration": part.duration_s}),
        **({} if transcript.channel is None else {"channel": transcript.channel}),
        "text": transcript.text,
        "language": transcript.language,
        "tokens": [token.id for token in transcript.tokens],
        "timestamps": [token.timestamp for token in transcript.tokens],
        "words": list(map(word_document, _words(transcript))),
        "alternatives": alternative_documents(transcript.alternatives),
        "segments": [segment_document(each, each.words) for each in transcript.segments],
        **({} if transcript.turns is None else {"turns": [turn._asdict() for turn in transcript.turns]}),
        "audio_s": transcript.audio_s,
        "remarks": [remark.document for remark in transcript.remarks],
        "latency_ms": None,
    }


def _words(transcript: "FileTranscript") -> Iterator[Word]:
    """The words with their speakers."""
    who = transcript.speakers or repeat(None)
    return (Word(*word, speaker) for word, speaker in zip(transcript.words, who, strict=False))


def _rttm(transcript: "FileTranscript") -> str:
    from penstock.speakers.turns import rttm  # here, because it imports torch

    name = PurePath(transcript.audio).stem + (f".{transcript.channel}" if transcript.channel else "")
    return rttm(name, transcript.turns or ())


def _cues(transcript: "FileTranscript") -> list[Any]:
    """The words of each segment, of each speaker in turn."""
    words = _words(transcript)
    segments = [
        (list(islice(words, segment.words)), segment.language or transcript.known_language)
        for segment in transcript.segments
    ]
    return subtitles.cues(subtitles.spoken_parts(segments), transcript.start_s + transcript.audio_s)


def _lattice(transcript: "FileTranscript") -> str:
    """An acceptor in OpenFst's text: the lattice of a search over a graph; else the alternatives as a tree of
    words, whose final states have the path's cost, -score."""
    if transcript.lattice:
        return transcript.lattice.openfst_text()
    lines: list[str] = []
    states: dict[tuple[str, ...], int] = {(): 0}
    finals: dict[int, str] = {}
    for alternative in transcript.alternatives:
        words: tuple[str, ...] = ()
        for word in alternative.text.split():
            source, words = states[words], (*words, word)
            if words not in states:
                states[words] = len(states)
                lines.append(f"{source}\t{states[words]}\t{word}")
        finals.setdefault(states[words], f"{states[words]}\t{-alternative.score:.6g}")
    return "".join(f"{line}\n" for line in [*lines, *finals.values()])


RTTM = "rttm"
"""The format that needs a speaker model."""
_WRITERS: dict[str, Callable[["FileTranscript"], str]] = {
    "txt": lambda transcript: f"{transcript.text}\n",
    "json": lambda transcript: json.dumps(document(transcript), ensure_ascii=False) + "\n",
    "srt": lambda transcript: subtitles.srt(_cues(transcript)),
    "vtt": lambda transcript: subtitles.vtt(_cues(transcript)),
    RTTM: _rttm,
}
FORMATS = tuple(_WRITERS)
LATTICE = "fst.txt"
"""Format of `--lattices`, not one of `--format`."""
_WRITERS[LATTICE] = _lattice


_HOST = f"-{platform.node()[:64]}"
"""In names of partly written files: machines that share a folder may have processes of one number."""
_PARTIAL = re.compile(r"\.penstock-([1-9][0-9]{0,8})(-.*|)\.partial")


def _is_alive(process: int) -> bool:
    """True for another process that runs; this one has not begun to write."""
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return process != os.getpid()


class ResultFiles:
    """The files below one directory, named after the audio: `calls/a.wav` is `calls/a.txt`, `calls/a.json`.

    Where two audio files would have one result, `a.flac` and `a.mp3`, both keep their suffix: `a.mp3.txt`. Parts of a
    file have their times, `calls/a#12.500-15.250.txt`, and several channels their names: `calls/a.left.txt`.
    """

    def __init__(self, directory: Path, formats: Sequence[str]):
        """Makes the directory. Raises PenstockError for unknown formats and for a directory that cannot be used."""
        self._directory = directory
        self._formats = list(dict.fromkeys(formats))
        self._with_suffix: frozenset[PurePath] = frozenset()
        """Names of the audio files whose results keep the suffix."""
        for name in self._formats:
            if name not in _WRITERS:
                raise SettingError(f"--format is {name!r}; accepted: {','.join(FORMATS)}, or several of them")
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"--out {directory}: {(error.strerror or str(error)).lower()}") from error

    def choose_names(self, inputs: Sequence[AudioInput]) -> None:
        """Decides which results keep the suffix of their audio; SettingError if two files still have one result."""
        names = {each.name for each in inputs}
        stems = Counter(name.with_suffix("") for name in names)
        self._with_suffix = frozenset(name for name in names if stems[name.with_suffix("")] > 1)
        seen: dict[Path, AudioInput] = {}
        for each in inputs:
            (first, *_) = self.paths(each, None)
            other = seen.setdefault(first, each)
            if other is not each:
                raise SettingError(f"{other.part} and {each.part} would both be written to {first}; rename one")

    def remove_partials(self, inputs: Sequence[AudioInput]) -> None:
        """Removes partly written files that dead processes of this machine have left beside the results."""
        folders = {self._directory, *(self._directory / each.name.parent for each in inputs)}
        for path in (path for folder in folders for path in folder.glob(".penstock-*.partial")):
            found = _PARTIAL.fullmatch(path.name)
            if found and found[2] in ("", _HOST) and not _is_alive(int(found[1])):
                with contextlib.suppress(OSError):  # such as another process that removes it
                    path.unlink()

    def write(self, audio: AudioInput, transcript: "FileTranscript") -> None:
        """Writes the transcript in all formats; a file is complete or not there. Raises OutputError."""
        for name, path in zip(self._formats, self.paths(audio, transcript.channel), strict=True):
            partial = path.with_name(f".penstock-{os.getpid()}{_HOST}.partial")  # short: a name has at most 255 bytes
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # A name that is not UTF-8 is escaped, as JSON has it.
                partial.write_text(_WRITERS[name](transcript), encoding="utf-8", errors="backslashreplace")
                os.replace(partial, path)
            except OSError as error:
                with contextlib.suppress(OSError):
                    partial.unlink()
                raise OutputError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from error

    def paths(self, audio: AudioInput, channel: str | None) -> list[Path]:
        """The results of an audio file or its channel: one path for each format."""
        kept = audio.name if audio.name in self._with_suffix else audio.name.with_suffix("")
        stem = kept.name + audio.part.label + (f".{channel}" if channel else "")
        return [self._directory / audio.name.with_name(f"{stem}.{name}") for name in self._formats]
