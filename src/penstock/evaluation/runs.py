"""Runs of an evaluation: all utterances through a recognizer; and what runs through a server share.

A run's search is what `--decoder NAME[:OPTION=VALUE,...]` chooses.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import RunError, SettingError
from penstock.evaluation.diarization import FoundSpeakers, SpeakerErrors, speaker_errors, sum_errors
from penstock.evaluation.errors import NO_NORMALIZER, Score, UtteranceErrors, compare, summarize
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.normalizers import Normalizer
from penstock.model.config import AttentionContext
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.runtime import cpu_seconds
from penstock.transcription.progress import Progress
from penstock_common import options as stream_options
from penstock_common.audio.tracks import MIX
from penstock_common.options import BOOSTED_DECODERS, StreamOptions
from penstock_common.writing import join_texts

if TYPE_CHECKING:
    from penstock.recognizer import Recognizer
    from penstock.speakers.diarizer import Diarizer
    from penstock.transcription.files import FileTranscript, Transcriber

_LEAST_AUDIO_S = 60.0
"""A speed of less audio says more about the start than about the model."""


@dataclass(frozen=True)
class DecoderChoice:
    """A search and its options; `str` is the text from the command line."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Values by the names of `DecodingConfig`."""
    boost: float | None = None
    """Boost of the phrases of an utterance; None for the default."""
    text: str = ""

    def __str__(self) -> str:
        return self.text or self.name

    @property
    def decoding(self) -> DecodingConfig:
        """Options of the recognizer."""
        return DecodingConfig(**self.options)

    def options_with(self, boosted_phrases: Sequence[object], language: str | None = None) -> dict[str, object]:
        """Options of the stream of an utterance with these phrases, which a decoder without boosting does not get.

        language: None for the recognizer's default.
        """
        options: dict[str, object] = {"decoder": self.name}
        if language is not None:
            options["language"] = language
        if not boosted_phrases or self.name not in BOOSTED_DECODERS:
            return options
        boost = {} if self.boost is None else {"boost": self.boost}
        return options | {"boosted_phrases": list(boosted_phrases)} | boost


GREEDY = DecoderChoice(stream_options.GREEDY)


def parse_decoder(text: str) -> DecoderChoice:
    """Parses "greedy" or "name:option=value,option=value"; SettingError names the accepted values."""
    try:
        name, options = stream_options.parse_decoder(text, (*DecodingConfig.options(), StreamOptions.option("boost")))
    except ValueError as error:
        raise SettingError(str(error)) from None
    if "lm" in options and "lm_weight" not in options:
        raise SettingError(f"decoder {text!r}: lm needs lm_weight=W, which is 0 by default")
    if options.get("lm_weight") and "lm" not in options:
        raise SettingError(f"decoder {text!r}: lm_weight needs lm=FILE")
    boost = options.pop("boost", None)
    return DecoderChoice(name, options, boost, text)


def sweep_decoders(decoders: Sequence[str], sweep: str | None) -> list[str]:
    """The texts of each decoder with each value of "option=value,value", without repetitions; raises SettingError."""
    if sweep is None:
        return list(dict.fromkeys(decoders))
    option, _, values = sweep.partition("=")
    if not option or not all(values.split(",")):
        raise SettingError(f"--sweep is {sweep!r}; accepted: OPTION=VALUE,VALUE,...")
    given = [f"{text}{',' if ':' in text else ':'}" for text in decoders]
    return list(dict.fromkeys(f"{text}{option}={value}" for text in given for value in values.split(",")))


class Outcome(NamedTuple):
    """The result of one utterance."""

    number: int
    """Number of the utterance in the run, from 0."""
    text: str
    error: str | None = None
    """Why there is no text."""
    spoken: FoundSpeakers | None = None
    """With a speaker model."""
    remarks: tuple[str, ...] = ()
    """On the audio and its text."""


@dataclass(frozen=True)
class Variant:
    """Context and decoder of a run. Both are None for a server, which uses its own; offline models have no context."""

    context: AttentionContext | None = None
    decoder: DecoderChoice | None = None

    def __str__(self) -> str:
        return " ".join(str(part) for part in (self.context, self.decoder) if part is not None) or "server"


class Clocks(NamedTuple):
    """Readings of two clocks, in seconds."""

    wall_s: float
    cpu_s: float
    """CPU time of all processes of the run."""

    @classmethod
    def read(cls) -> "Clocks":
        """Reads both."""
        return cls(time.perf_counter(), cpu_seconds())


class FirstStep:
    """The end of a run's first step: before it, processes start and warm up, so RTFx counts from there."""

    def __init__(self, clocks: Callable[[], Clocks] = Clocks.read):
        self.clocks = clocks
        self.begin = self.end = clocks()
        self.audio_s = 0.0
        self._is_over = False

    def __call__(self, audio_s: float) -> None:
        """Takes the seconds of audio of every step."""
        if not self._is_over:
            self.end, self.audio_s, self._is_over = self.clocks(), audio_s, True


@dataclass(frozen=True)
class RunResult:
    """One run over all utterances; `outcomes` and `errors` are in their order."""

    variant: Variant
    utterances: Sequence[Utterance]
    elapsed_s: float
    """From opening the first utterance to the last text. Includes reading files, excludes loading the model."""
    rtfx: float | None
    """Audio seconds processed per wall-clock second after the first step; None for less than a minute of audio."""
    cpu_rtfx: float | None
    """The same per second of CPU time, which other work on the machine hardly changes; also None for a server."""
    outcomes: list[Outcome]
    errors: list[UtteranceErrors | None]
    """None for a failed utterance."""
    score: Score
    """Score of the utterances that did not fail."""
    speaker_errors: Sequence[SpeakerErrors | None] = ()
    """Errors of each utterance; None for one that failed, and all None without a speaker model."""

    @cached_property
    def who_spoke(self) -> SpeakerErrors:
        """The errors of all utterances."""
        return sum_errors(self.speaker_errors)

    @property
    def failures(self) -> list[str]:
        """Errors of the failed utterances."""
        return [outcome.error for outcome in self.outcomes if outcome.error]


def collect(
    variant: Variant,
    utterances: Sequence[Utterance],
    outcomes: Iterable[Outcome],
    normalizer: Normalizer = NO_NORMALIZER,
    first_step: FirstStep | None = None,
) -> RunResult:
    """Collects outcomes in any order and scores them; shows the progress if stderr is a terminal.

    first_step: is given the audio of the steps; without it RTFx counts from now. Raises RunError if every utterance
    fails.
    """
    first_step = first_step or FirstStep()
    collected: list[Outcome] = []
    audio_s = sum(utterance.audio_s for utterance in utterances)
    with Progress(sys.stderr, len(utterances), audio_s, "utterances", str(variant)) as progress:
        for outcome in progress.count(outcomes):
            collected.append(outcome)
            progress.add_audio(utterances[outcome.number].audio_s)
    collected.sort(key=lambda outcome: outcome.number)
    end = first_step.clocks()
    errors = [
        None if outcome.error else compare(utterance.reference, outcome.text, normalizer)
        for utterance, outcome in zip(utterances, collected, strict=True)
    ]
    recognized = [(utterance, error) for utterance, error in zip(utterances, errors, strict=True) if error]
    if not recognized:
        raise RunError(f"no utterance could be recognized; the first: {collected[0].error}")
    by_speaker = [
        None if outcome.error or outcome.spoken is None else speaker_errors(utterance, outcome.spoken, normalizer)
        for utterance, outcome in zip(utterances, collected, strict=True)
    ]
    score = summarize(*map(list, zip(*recognized, strict=True)))
    measured_audio_s = score.speech.audio_s + score.speech_free.audio_s - first_step.audio_s
    elapsed_s = end.wall_s - first_step.begin.wall_s
    rtfx = cpu_rtfx = None
    if measured_audio_s >= _LEAST_AUDIO_S:
        rtfx = measured_audio_s / (end.wall_s - first_step.end.wall_s)
        if variant.decoder and end.cpu_s > first_step.end.cpu_s:  # else a server computes
            cpu_rtfx = measured_audio_s / (end.cpu_s - first_step.end.cpu_s)
    return RunResult(variant, utterances, elapsed_s, rtfx, cpu_rtfx, collected, errors, score, by_speaker)


def recognize_in_process(
    recognizer: "Recognizer",
    utterances: Sequence[Utterance],
    decoder: DecoderChoice,
    processes: int = 1,
    threads: int = 1,
    window: str | None = None,
    on_audio: Callable[[float], None] = lambda audio_s: None,
    diarizer: "Diarizer | None" = None,
) -> Iterator[Outcome]:
    """Yields outcomes as they complete. Every stream sends one chunk of samples per step.

    processes, threads, on_audio: as in `penstock.transcription.processes.transcribe_files`. window: the option of every
    stream. diarizer: says who speaks.
    """
    from penstock.transcription.files import FileTranscriber
    from penstock.transcription.processes import group_parts, transcribe_files
    from penstock.transcription.speakers import SpeakerTranscriber

    has_languages = recognizer.config.prompt is not None  # `lang` of other models' manifests changes nothing
    own = {} if window is None else {"window": window}
    options = [
        own | decoder.options_with(utterance.boosted_phrases, utterance.language if has_languages else None)
        for utterance in utterances
    ]
    recognizer.check_options(own)
    paths, audio_s = [utterance.part for utterance in utterances], [utterance.audio_s for utterance in utterances]
    order = group_parts(paths, audio_s, processes)
    transcriber: Transcriber = FileTranscriber(recognizer, recognizer.chunk_samples(options[0]), options)
    if diarizer is not None:
        transcriber = SpeakerTranscriber(transcriber, diarizer, MIX)
    for index, (transcript,) in transcribe_files(transcriber, paths, processes, on_audio, order, threads):
        spoken, remarks = None if diarizer is None else _spoken(transcript), (each.text for each in transcript.remarks)
        yield Outcome(index, transcript.text, transcript.error, spoken, tuple(remarks))


def _spoken(transcript: "FileTranscript") -> FoundSpeakers:
    words: dict[int, list[str]] = {}
    for word, speaker in zip(transcript.words, transcript.speakers, strict=False):
        words.setdefault(speaker, []).append(word.text)
    return FoundSpeakers(transcript.turns or [], {speaker: join_texts(texts) for speaker, texts in words.items()})
