"""The JSON report of an evaluation: every figure, and every utterance with what was heard."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import PenstockError
from penstock.evaluation.confidence import RESAMPLES, SEED
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.result import PassResult
from penstock.evaluation.score import Confusions, SpeechFreeScore, SpeechScore
from penstock.evaluation.word_errors import EditCounts, UtteranceErrors
from penstock.reporting.software import date_utc
from penstock.version import __version__

FORMAT, FORMAT_VERSION = "penstock-evaluation", 1


@dataclass(frozen=True)
class Subject:
    """What was measured, and on what."""

    model: dict[str, str] | None
    """`path` as the user gave it, `bundle` and `config_sha256`; None where a server was measured."""
    server: str | None
    hardware: str
    """Of this machine, also where the server runs on another."""
    device: str | None
    threads: int | None
    streams: int
    manifests: list[str]
    date: str = field(default_factory=date_utc)


def check_writable(path: Path) -> None:
    """PenstockError if no report can be written there: better known before the work than after it."""
    if path.is_dir() or not path.parent.is_dir():
        reason = "is a directory" if path.is_dir() else f"there is no directory {path.parent}"
        raise PenstockError(f"--json: {path}: {reason}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PenstockError(f"--json: {path}: cannot be written")


def write_report(path: Path, subject: Subject, utterances: Sequence[Utterance], results: Sequence[PassResult]) -> None:
    """Writes the report, or replaces that of fewer passes."""
    document = report_document(subject, utterances, results)
    try:
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise PenstockError(f"--json: {path}: {error.strerror}") from error


def report_document(subject: Subject, utterances: Sequence[Utterance], results: Sequence[PassResult]) -> dict:
    """The report as JSON values; docs/evaluation.md tells the fields."""
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "penstock": __version__,
        "date": subject.date,
        "model": subject.model,
        "server": subject.server,
        "hardware": subject.hardware,
        "device": subject.device,
        "threads": subject.threads,
        "streams": subject.streams,
        "manifests": subject.manifests,
        "normalisation": "lower case, white space collapsed",
        "bootstrap": {"resamples": RESAMPLES, "seed": SEED},
        "results": [_result(utterances, result) for result in results],
    }


def _result(utterances: Sequence[Utterance], result: PassResult) -> dict:
    context, decoder = result.setting.context, result.setting.decoder
    return {
        "context": list(context) if context else None,
        "decoder": str(decoder) if decoder else None,
        "elapsed_s": result.elapsed_s,
        "rtfx": result.real_time_factor,
        "failed_utterances": len(result.failures),
        "speech": _speech(result.score.speech),
        "speech_free": _speech_free(result.score.speech_free),
        "confusions": _confusions(result.score.confusions),
        "speakers": [{"speaker": name} | _words(counts) for name, counts in result.score.speakers.items()],
        "utterances": [
            _utterance(utterance, outcome.error, error)
            for utterance, outcome, error in zip(utterances, result.outcomes, result.errors, strict=True)
        ],
    }


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


def _speech_free(silent: SpeechFreeScore) -> dict:
    return {
        "utterances": silent.utterances,
        "audio_s": silent.audio_s,
        "inserted_words": silent.inserted_words,
        "inserted_words_per_minute": silent.inserted_words_per_minute,
        "heard": _word_counts(silent.heard),
    }


def _confusions(confusions: Confusions) -> dict:
    return {
        "substituted": [
            {"reference": spoken, "hypothesis": heard, "count": count}
            for (spoken, heard), count in confusions.substituted
        ],
        "deleted": _word_counts(confusions.deleted),
        "inserted": _word_counts(confusions.inserted),
    }


def _word_counts(counted: list[tuple[str, int]]) -> list[dict]:
    return [{"word": word, "count": count} for word, count in counted]


def _utterance(utterance: Utterance, failure: str | None, errors: UtteranceErrors | None) -> dict:
    about = {
        "audio": str(utterance.audio),
        "manifest": str(utterance.manifest),
        "line": utterance.line,
        "speaker": utterance.speaker,
        "audio_s": utterance.audio_s,
    }
    if errors is None:
        return about | {"error": failure}
    return about | {
        "reference": errors.reference,
        "hypothesis": errors.hypothesis,
        **_words(errors.words),
        "character_edits": errors.characters.edits,
    }
