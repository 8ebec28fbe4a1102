"""What a person reads of an evaluation: a table with a line a pass (Markdown), then the words that go wrong."""

from collections.abc import Callable, Iterable, Sequence

from penstock.evaluation.report import Subject
from penstock.evaluation.result import PassResult
from penstock.reporting.table import markdown_table
from penstock.version import __version__

_WORST_WORDS = 8
_WORST_SPEAKERS = 5
_COLUMNS: list[tuple[str, Callable[[PassResult], str]]] = [
    ("context", lambda result: str(result.setting.context or "server's")),
    ("decoder", lambda result: str(result.setting.decoder or "server's")),
]
_SPEECH_COLUMNS: list[tuple[str, Callable[[PassResult], str]]] = [
    ("WER %", lambda result: _percent(result.score.speech.words.rate)),
    ("95 % interval", lambda result: " to ".join(map(_percent, result.score.speech.interval or ())) or "-"),
    ("CER %", lambda result: _percent(result.score.speech.characters.rate)),
    ("substituted", lambda result: str(result.score.speech.words.substitutions)),
    ("deleted", lambda result: str(result.score.speech.words.deletions)),
    ("inserted", lambda result: str(result.score.speech.words.insertions)),
]
_SPEECH_FREE_COLUMNS: list[tuple[str, Callable[[PassResult], str]]] = [
    ("words/min without speech", lambda result: f"{result.score.speech_free.inserted_words_per_minute or 0.0:.1f}"),
]
_LAST_COLUMNS: list[tuple[str, Callable[[PassResult], str]]] = [
    ("RTFx", lambda result: f"{result.real_time_factor:.{0 if result.real_time_factor >= 100 else 1}f}"),
]


def render(subject: Subject, results: Sequence[PassResult]) -> str:
    """The text for stdout, without a line's end."""
    return "\n\n".join([_heading(subject, results[0]), _table(results), *map(_details, results)])


def _heading(subject: Subject, result: PassResult) -> str:
    what = subject.model["path"] if subject.model else f"server {subject.server}"
    speech, silent = result.score.speech, result.score.speech_free
    lines = [f"{what}, penstock {__version__}, {subject.date}", f"{subject.hardware}; {subject.streams} streams"]
    if subject.threads:
        lines[-1] += f", threads: {subject.threads}"
    if speech.utterances:
        words = speech.words.reference_units
        lines.append(f"speech: {speech.utterances} utterances, {words} words, {_minutes(speech.audio_s)}")
    if silent.utterances:
        lines.append(f"without speech: {silent.utterances} recordings, {_minutes(silent.audio_s)}")
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"


def _table(results: Sequence[PassResult]) -> str:
    columns = list(_COLUMNS)
    if any(result.score.speech.utterances for result in results):
        columns += _SPEECH_COLUMNS
    if any(result.score.speech_free.utterances for result in results):
        columns += _SPEECH_FREE_COLUMNS
    columns += _LAST_COLUMNS
    if any(result.failures for result in results):
        columns.append(("failed", lambda result: str(len(result.failures))))
    rows = ([value(result) for _, value in columns] for result in results)
    return markdown_table([title for title, _ in columns], rows)


def _details(result: PassResult) -> str:
    confusions = result.score.confusions
    lines = [str(result.setting)]
    lines += _counted("substituted", ((f"{spoken} → {heard}", n) for (spoken, heard), n in confusions.substituted))
    lines += _counted("deleted", confusions.deleted)
    lines += _counted("inserted", confusions.inserted)
    lines += _counted("no speech", result.score.speech_free.heard)
    speakers = list(result.score.speakers.items())
    if speakers:
        worst = ", ".join(
            f"{name} {_percent(counts.rate)} % of {counts.reference_units} words"
            for name, counts in speakers[:_WORST_SPEAKERS]
        )
        lines.append(f"  speakers     {worst}{_more(len(speakers) - _WORST_SPEAKERS)}")
    lines += [f"  failed       {failure}" for failure in result.failures[:1]]
    return "\n".join(lines) if len(lines) > 1 else f"{lines[0]}\n  no word errors"


def _counted(name: str, counted: Iterable[tuple[str, int]]) -> list[str]:
    """One line, or none where nothing was counted."""
    counted = list(counted)
    worst = ", ".join(f"{what} {count}" for what, count in counted[:_WORST_WORDS])
    return [f"  {name:12} {worst}{_more(len(counted) - _WORST_WORDS)}"] if counted else []


def _more(count: int) -> str:
    return f", {count} more" if count > 0 else ""


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f}"
