"""The output formats of the command: text, also redrawn in place, JSON, and subtitles."""

import json
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TextIO, get_args

from penstock_common.audio.pcm import Remark
from penstock_common.results import Result
from penstock_common.subtitles import Cue, cues, spoken_parts, srt, vtt
from penstock_common.transcript import Transcript, alternative_documents, segment_document, word_document
from penstock_common.writing import cells, join_texts, printable, wrap

SubtitleFormat = Literal["srt", "vtt"]
FORMATS = ("text", "json", *get_args(SubtitleFormat))
_UP = "\x1b[{}A"
_ERASE_BELOW = "\r\x1b[J"


class AudioName(NamedTuple):
    """A file, or one of its channels."""

    path: str
    channel: str | None = None
    audio_s: float | None = None
    """The audio's duration, if known before it is streamed."""

    def __str__(self) -> str:
        return self.path if self.channel is None else f"{self.path} [{self.channel}]"

    @property
    def document(self) -> dict[str, object]:
        """The name's fields in JSON."""
        return {"audio": self.path, **({} if self.channel is None else {"channel": self.channel})}


class Streamed(NamedTuple):
    """Result of a streamed file, pipe or microphone."""

    transcript: Transcript
    audio_s: float
    elapsed_s: float | None = None
    """Time from the first audio to the final text; None for audio at the pace of speech."""
    remarks: Sequence[Remark] = ()
    end_s: float | None = None
    """The end of the audio, at the clock of its words; None where it is not known."""

    @property
    def missing_from_s(self) -> float | None:
        """Second at which the text ends; None if the stream was not lost."""
        return None if self.transcript.is_complete else round(self.transcript.audio_processed_s, 3)


class Report(ABC):
    """The output of the command, for one file or channel after the other."""

    def progress(self, name: AudioName, transcript: Transcript, results: Sequence[Result]) -> None:  # noqa: B027
        """Shows the transcript, to which these results were just added."""

    @abstractmethod
    def finish(self, name: AudioName, streamed: Streamed) -> None:
        """Shows the complete transcript."""

    def abort(self) -> None:  # noqa: B027
        """Removes what was drawn of a file that failed."""

    def end_file(self) -> None:  # noqa: B027
        """Shows what needs all channels of a file."""


class PlainReport(Report):
    """One line per file, after its name if there are several; the latency or the speed goes to `notes`.

    Word times (with `word_times`) and alternatives follow that line. With `interim` the growing transcript is shown:
    in place on a terminal, else as one line per change. On a terminal, the share of a file that is recognized is shown.
    """

    def __init__(self, out: TextIO, notes: TextIO, *, names: bool, interim: bool, word_times: bool):
        self._out = out
        self._notes = notes
        self._names = names
        self._interim = interim
        self._word_times = word_times
        self._live = LiveText(out) if interim and is_terminal(out) else None
        self._share = LiveText(notes) if self._live is None and is_terminal(notes) else self._live
        """Line that shows the share: below the text that is shown in place, or alone."""
        self._shown: dict[AudioName, str] = {}
        """The growing text of each channel."""

    def progress(self, name: AudioName, transcript: Transcript, results: Sequence[Result]) -> None:
        """Shows the transcript where its text has changed, and how much of the file is recognized."""
        if transcript.is_complete:
            return
        text = printable(transcript.text)
        text = text if name.channel is None else f"{name}: {text}"
        is_changed = self._interim and text != self._shown.get(name, "")
        if is_changed:
            self._shown[name] = text
        if is_changed and self._live is None:
            print_line(self._out, text)
        if self._share is not None:
            lines = [*self._shown.values()] if self._live else []
            self._share.draw("\n".join([*lines, *_share(name, transcript)]))

    def finish(self, name: AudioName, streamed: Streamed) -> None:
        """Prints the text, the words and alternatives, and the latency or the speed."""
        self.abort()
        transcript = streamed.transcript
        for text in spoken_lines(transcript):
            print_line(self._out, f"{name}: {text}" if self._names else text)
        for word in transcript.words if self._word_times else ():
            print_line(self._out, f"{word.start_ms / 1000:9.2f} {word.end_ms / 1000:9.2f}  {printable(word.text)}")
        for alternative in (each for segment in transcript.segments for each in segment.alternatives):
            print_line(self._out, f"{alternative.score:9.2f}  {printable(alternative.text)}")
        if streamed.missing_from_s is None:
            print_line(self._notes, f"{name}: {timing(streamed)}")

    def abort(self) -> None:
        """Removes what was drawn of a file that failed."""
        self._shown.clear()
        if self._share:
            self._share.clear()


class JsonReport(Report):
    """One JSON object and line per file; with `interim` also one per result, before it."""

    def __init__(self, out: TextIO, *, interim: bool):
        self._out = out
        self._interim = interim

    def progress(self, name: AudioName, transcript: Transcript, results: Sequence[Result]) -> None:
        """Prints each result."""
        for result in results if self._interim else ():
            self._print(result_document(name, result))

    def finish(self, name: AudioName, streamed: Streamed) -> None:
        """Prints the transcript."""
        missing = {} if streamed.missing_from_s is None else {"missing_from_s": streamed.missing_from_s}
        self._print({**document(name, streamed), **missing})

    def _print(self, line: dict[str, object]) -> None:
        print_line(self._out, json.dumps(line, ensure_ascii=False))


class SubtitleReport(Report):
    """The words of one file as subtitles; those of each channel start with its name."""

    def __init__(self, out: TextIO, kind: SubtitleFormat, language: Callable[[], str] = str):
        """language: called for that of segments whose language the model does not name; "" where it is not known."""
        self._out, self._language = out, language
        self._write = {"srt": srt, "vtt": vtt}[kind]
        self._cues: list[Cue] | None = None

    def finish(self, name: AudioName, streamed: Streamed) -> None:
        """Takes the words."""
        segments = ((each.words, each.language or self._language()) for each in streamed.transcript.segments)
        self._cues = [*(self._cues or ()), *cues(spoken_parts(segments, name.channel), streamed.end_s)]

    def end_file(self) -> None:
        """Writes the subtitles in the order of their times; nothing where every channel failed."""
        if self._cues is None:
            return
        self._out.write(self._write(sorted(self._cues, key=lambda cue: cue.start_ms)))
        self._out.flush()


def _share(name: AudioName, transcript: Transcript) -> list[str]:
    """A line with the share of a file that is recognized; none where its duration is not known, or nothing is."""
    if not name.audio_s or not transcript.audio_processed_s:
        return []
    return [f"{name}: {min(1.0, transcript.audio_processed_s / name.audio_s):.0%} of {name.audio_s:.0f} s"]


def timing(streamed: Streamed) -> str:
    """The latency of audio that had the pace of speech, else the speed."""
    if streamed.elapsed_s is None:
        latency_ms = 1000 * (streamed.transcript.latency_s or 0.0)
        return f"{streamed.audio_s:.2f} s of audio, final text {latency_ms:.0f} ms after its end"
    speed = streamed.audio_s / max(streamed.elapsed_s, 1e-9)
    return f"{streamed.audio_s:.2f} s of audio in {streamed.elapsed_s:.2f} s, {speed:.1f} x real time"


def document(name: AudioName, streamed: Streamed) -> dict[str, object]:
    """A transcript in the format of `penstock transcribe --json`."""
    transcript = streamed.transcript
    return {
        **name.document,
        "text": transcript.text,
        "language": transcript.language,
        "tokens": transcript.tokens,
        "timestamps": transcript.timestamps,
        "words": list(map(word_document, transcript.words)),
        "alternatives": alternative_documents(transcript.alternatives),
        "segments": [segment_document(each, len(each.words)) for each in transcript.segments],
        "audio_s": streamed.audio_s,
        "remarks": [remark.document for remark in streamed.remarks],
        "latency_ms": None if transcript.latency_s is None else round(1000 * transcript.latency_s, 1),
    }


def result_document(name: AudioName, result: Result) -> dict[str, object]:
    """One result: the text of its segment so far, and its new words."""
    return {
        **name.document,
        "segment": result.segment,
        "text": result.text,
        "language": result.language,
        "is_final": result.is_final,
        "audio_processed_s": round(result.audio_processed_s, 3),  # arrives as float32
        "words": list(map(word_document, result.new_words)),
        **({"speakers": list(result.word_speakers)} if result.word_speakers else {}),
    }


def spoken_lines(transcript: Transcript) -> list[str]:
    """The text in one line; with speakers a line for each turn of one, after the name."""
    if all(word.speaker is None for word in transcript.words):
        return [printable(transcript.text)]
    return [
        printable((f"{part.speaker}: " if part.speaker else "") + join_texts(word.text for word in part.words))
        for part in spoken_parts([(transcript.words, "")])
    ]


def is_terminal(out: TextIO) -> bool:
    """True where text can be redrawn in place."""
    return out.isatty() and os.environ.get("TERM") != "dumb"


def print_line(out: TextIO, line: str) -> None:
    """Writes one line and flushes."""
    out.write(line + "\n")
    out.flush()


class LiveText:
    """A block of lines at the cursor: each `draw` replaces what the one before it drew.

    `size` gives the terminal's (columns, rows). A block with more rows than the terminal shows its last rows.
    Thread-safe: warnings come from another thread than results.
    """

    def __init__(self, out: TextIO, size: Callable[[], tuple[int, int]] = shutil.get_terminal_size):
        self._out = out
        self._size = size
        self._lines: list[str] = []
        self._drawing = threading.RLock()

    def draw(self, text: str) -> None:
        """Replaces the text that is shown; it may have several lines."""
        columns, rows = self._size()
        # One column stays free: terminals differ in where the cursor is after a full row.
        lines = [row for line in text.split("\n") for row in wrap(line, max(1, columns - 1))][-max(1, rows - 1) :]
        with self._drawing:
            if lines != self._lines:
                self._out.write(self._erasure(columns) + "\n".join(lines))
                self._out.flush()
                self._lines = lines

    def clear(self) -> None:
        """Removes the block; the cursor is back at its beginning."""
        columns, _ = self._size()
        with self._drawing:
            self._out.write(self._erasure(columns))
            self._out.flush()
            self._lines = []

    def _erasure(self, columns: int) -> str:
        """Moves to the block's beginning. A terminal made narrower meanwhile has wrapped the rows."""
        rows = sum(max(1, -(-cells(line) // max(1, columns))) for line in self._lines)
        return (_UP.format(rows - 1) if rows > 1 else "") + (_ERASE_BELOW if rows else "")
