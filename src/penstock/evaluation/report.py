"""The report of an evaluation: every figure and utterance as JSON, and a Markdown table with the worst words."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

from penstock.evaluation.diarization import COLLARS_S, SpeakerErrors
from penstock.evaluation.errors import (
    RESAMPLES,
    SEED,
    EditCounts,
    SpeechScore,
    UtteranceErrors,
)
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.normalizers import NONE
from penstock.evaluation.runs import Outcome, RunResult
from penstock.reporting import date_utc, markdown_table
from penstock.version import __version__

FORMAT, FORMAT_VERSION = "penstock-evaluation", 3
_MAX_WORDS, _MAX_SPEAKERS = 8, 5


@dataclass(frozen=True)
class Conditions:
    """The model or server under test, and the machine."""

    hardware: str
    """Hardware of this machine, even if the server runs on another one."""
    streams: int
    """Concurrent streams of all processes together."""
    manifests: list[str]
    model: dict[str, str] | None = None
    """`path` from the command line, `bundle` and `config_sha256`; None for a server."""
    server: str | None = None
    device: str | None = None
    threads: int | None = None
    """CPU threads of each process."""
    processes: int | None = None
    endpointing: str | None = None
    """The endpoint options of all streams."""
    window: str | None = None
    """The option `window` of all streams."""
    precision: str | None = None
    """Precision of the encoder; None for a server."""
    joined: str | None = None
    """The rule by which utterances were joined."""
    normalizer: str = NONE
    """The normalizer's name, and the package with its version."""
    left_out: Sequence[str] = ()
    """Lines of manifests whose reference has no word after the normalizer, as "file:line"."""
    shard: dict[str, int] | None = None
    """The shard's `number` of `count`, and the `utterances` of all shards; None for a whole evaluation."""
    date: str = field(default_factory=date_utc)


def report_document(conditions: Conditions, results: Sequence[RunResult]) -> dict:
    """The report as JSON values."""
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "penstock": __version__,
        **asdict(conditions),
        "bootstrap": {"resamples": RESAMPLES, "seed": SEED},
        "results": [_result(result) for result in results],
    }


def _result(result: RunResult) -> dict:
    context, decoder = result.variant.context, result.variant.decoder
    score, silent = result.score, result.score.speech_free
    return {
        "context": list(context) if context else None,
        "decoder": str(decoder) if decoder else None,
        "elapsed_s": result.elapsed_s,
        "rtfx": result.rtfx,
        "cpu_rtfx": result.cpu_rtfx,
        "failed_utterances": len(result.failures),
        "speech": _speech(score.speech),
        "speech_free": {
            "utterances": silent.utterances,
            "audio_s": silent.audio_s,
            "inserted_words": silent.inserted_words,
            "inserted_words_per_minute": silent.inserted_words_per_minute,
            "inserted": _word_counts(silent.inserted),
        },
        "confusions": {
            "substituted": [
                {"reference": reference, "hypothesis": hypothesis, "count": count}
                for (reference, hypothesis), count in score.substituted
            ],
            "deleted": _word_counts(score.deleted),
            "inserted": _word_counts(score.inserted),
        },
        "speakers": [{"speaker": name} | _words(counts) for name, counts in score.speakers.items()],
        **_by_speaker(result.who_spoke),
        "utterances": [
            _utterance(utterance, outcome, error) | _by_speaker(by_speaker or SpeakerErrors())
            for utterance, outcome, error, by_speaker in zip(
                result.utterances, result.outcomes, result.errors, result.speaker_errors, strict=True
            )
        ],
    }


def _by_speaker(errors: SpeakerErrors) -> dict:
    """The error rates that there are references for."""
    times = [
        {"collar_s": collar_s, "der": found.rate} | asdict(found)
        for collar_s, found in zip(COLLARS_S, errors.diarization, strict=False)
    ]
    words = {} if errors.words is None else {"speaker_words": _words(errors.words)}
    return ({"diarization": times} if times else {}) | words


def _words(counts: EditCounts) -> dict:
    return {
        "wer": counts.rate,
        "words": counts.reference_units,
        "substitutions": counts.substitutions,
        "deletions": counts.deletions,
        "insertions": counts.insertions,
    }


def _speech(speech: SpeechScore) -> dict:
    characters = speech.characters
    return {
        "utterances": speech.utterances,
        "audio_s": speech.audio_s,
        **_words(speech.words),
        "wer_interval_95": list(speech.interval) if speech.interval else None,
        "cer": characters.rate,
        "characters": characters.reference_units,
        "character_substitutions": characters.substitutions,
        "character_deletions": characters.deletions,
        "character_insertions": characters.insertions,
    }


def _word_counts(counted: list[tuple[str, int]]) -> list[dict]:
    return [{"word": word, "count": count} for word, count in counted]


def _utterance(utterance: Utterance, outcome: Outcome, errors: UtteranceErrors | None) -> dict:
    about = {
        "audio": str(utterance.audio),
        **({} if utterance.offset_s is None else {"offset": utterance.offset_s, "duration": utterance.stated_s}),
        "manifest": str(utterance.manifest),
        "line": utterance.line,
        "speaker": utterance.speaker,
        "audio_s": utterance.audio_s,
        **({"remarks": list(outcome.remarks)} if outcome.remarks else {}),
    }
    if errors is None:
        return about | {"error": outcome.error}
    return about | {
        "reference": errors.reference,
        "hypothesis": errors.hypothesis,
        **_words(errors.words),
        "character_edits": errors.characters.edits,
    }


_Column = tuple[str, Callable[[RunResult], str]]
_COLUMNS: list[_Column] = [
    ("context", lambda result: str(result.variant.context or ("offline" if result.variant.decoder else "server's"))),
    ("decoder", lambda result: str(result.variant.decoder or "server's")),
]
_SPEECH_COLUMNS: list[_Column] = [
    ("WER %", lambda result: _percent(result.score.speech.words.rate)),
    ("95 % interval", lambda result: " to ".join(map(_percent, result.score.speech.interval or ())) or "-"),
    ("CER %", lambda result: _percent(result.score.speech.characters.rate)),
    ("substituted", lambda result: str(result.score.speech.words.substitutions)),
    ("deleted", lambda result: str(result.score.speech.words.deletions)),
    ("inserted", lambda result: str(result.score.speech.words.insertions)),
]


def render(conditions: Conditions, results: Sequence[RunResult]) -> str:
    """The text for stdout, without a trailing newline."""
    header, rows = summary_cells(results)
    table = markdown_table(header, rows)
    return "\n\n".join(["\n".join(summary_lines(conditions, results[0])), table, *map(_details, results)])


def summary_lines(conditions: Conditions, result: RunResult) -> list[str]:
    """The model, the machine and the data, in words."""
    what = conditions.model["path"] if conditions.model else f"server {conditions.server}"
    speech, silent = result.score.speech, result.score.speech_free
    lines = [
        f"{what}, penstock {__version__}, {conditions.date}",
        f"{conditions.hardware}; {conditions.streams} streams",
    ]
    if conditions.threads:
        lines[-1] += f", processes: {conditions.processes}, threads of each: {conditions.threads}"
    if speech.utterances:
        words = speech.words.reference_units
        lines.append(f"speech: {speech.utterances} utterances, {words} words, {_minutes(speech.audio_s)}")
        lines.append(f"normalizer: {conditions.normalizer}")
    if conditions.shard:
        lines.append("shard {number}/{count}".format(**conditions.shard))
    if conditions.left_out:
        lines.append(f"left out: {len(conditions.left_out)} utterances whose reference the normalizer empties")
    if silent.utterances:
        lines.append(f"without speech: {silent.utterances} recordings, {_minutes(silent.audio_s)}")
    return lines


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"


def summary_cells(results: Sequence[RunResult]) -> tuple[list[str], list[list[str]]]:
    """Titles of the columns, and a row per run."""
    columns = list(_COLUMNS)
    if any(result.score.speech.utterances for result in results):
        columns += _SPEECH_COLUMNS
    if any(result.score.speech_free.utterances for result in results):
        columns.append(
            ("words/min without speech", lambda run: f"{run.score.speech_free.inserted_words_per_minute or 0.0:.1f}")
        )
    if all(result.who_spoke.diarization for result in results):
        for number, collar_s in enumerate(COLLARS_S):
            columns.append((f"DER %, collar {collar_s:g} s", partial(_der, number)))
    if any(result.who_spoke.words for result in results):
        columns.append(("cpWER %", lambda run: _percent(run.who_spoke.words.rate if run.who_spoke.words else None)))
    columns.append(("RTFx", lambda run: _speed(run.rtfx)))
    if any(result.cpu_rtfx for result in results):
        columns.append(("RTFx, CPU time", lambda run: _speed(run.cpu_rtfx)))
    if any(result.failures for result in results):
        columns.append(("failed", lambda result: str(len(result.failures))))
    return [title for title, _ in columns], [[value(result) for _, value in columns] for result in results]


def _der(number: int, result: RunResult) -> str:
    """A cell for one of `COLLARS_S`."""
    return _percent(result.who_spoke.diarization[number].rate)


def _details(result: RunResult) -> str:
    score, lines = result.score, [str(result.variant)]
    lines += _counted("substituted", ((f"{ref} → {hyp}", n) for (ref, hyp), n in score.substituted))
    lines += _counted("deleted", score.deleted)
    lines += _counted("inserted", score.inserted)
    lines += _counted("no speech", score.speech_free.inserted)
    speakers = [(name, counts) for name, counts in score.speakers.items() if counts.edits]
    if speakers:
        worst = ", ".join(
            f"{name} {_percent(counts.rate)} % of {counts.reference_units} words"
            for name, counts in speakers[:_MAX_SPEAKERS]
        )
        lines.append(f"  speakers     {worst}{_more(len(speakers) - _MAX_SPEAKERS)}")
    lines += [f"  failed       {failure}" for failure in result.failures[:1]]
    return "\n".join(lines) if len(lines) > 1 else f"{lines[0]}\n  no word errors"


def _counted(name: str, counted: Iterable[tuple[str, int]]) -> list[str]:
    """One line, or none without counts."""
    counted = list(counted)
    worst = ", ".join(f"{what} {count}" for what, count in counted[:_MAX_WORDS])
    return [f"  {name:12} {worst}{_more(len(counted) - _MAX_WORDS)}"] if counted else []


def _more(count: int) -> str:
    return f", {count} more" if count > 0 else ""


def _speed(rtfx: float | None) -> str:
    return "-" if rtfx is None else f"{rtfx:.{0 if rtfx >= 100 else 1}f}"


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f}"
