"""Reference turns of speakers, from RTTM files."""

import math
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import ManifestError, shown
from penstock.evaluation.diarization import SpeakerTurn
from penstock.evaluation.manifest import Utterance

_SPEAKER = "SPEAKER"
_OTHER_TYPES = {
    "SEGMENT", "NOSCORE", "NO_RT_METADATA", "LEXEME", "NON-LEX", "NON-SPEECH", "FILLER", "EDIT", "IP", "SU", "CB",
    "A/P", "SPKR-INFO",
}  # fmt: skip
"""Lines of RTTM that say nothing of who speaks when."""
_FIELDS = (9, 10)


def reference_turns(path: Path, utterances: Sequence[Utterance]) -> list[Sequence[SpeakerTurn]]:
    """The turns of each utterance from an RTTM file or the `*.rttm` of a folder, by the stem of its audio file.

    Without turns is only a recording without reference text, or with an RTTM file of its own. Raises ManifestError.
    """
    try:
        files = sorted(path.glob("*.rttm")) if path.is_dir() else [path]
        texts = [(file, file.read_text(encoding="utf-8-sig")) for file in files]
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: not UTF-8 text: {error}") from error
    if not files:
        raise ManifestError(f"{path}: has no *.rttm")
    found: dict[str, list[SpeakerTurn]] = {_name(file): [] for file in files if path.is_dir()}
    for file, text in texts:
        for number, line in enumerate(text.split("\n"), 1):
            if (parsed := _parse(f"{file}:{number}", line)) is not None:
                found.setdefault(parsed[0], []).append(parsed[1])
    names: dict[str, Utterance] = {}
    for utterance in utterances:
        where, name = f"{utterance.manifest}:{utterance.line}", _name(utterance.audio)
        if name not in found and utterance.reference.strip():
            raise ManifestError(f"{where}: {path} has no turns of {name}, the recording {utterance.audio.name}")
        other = names.setdefault(name, utterance)
        if other.audio != utterance.audio:
            raise ManifestError(f"{where}: {utterance.audio} and {other.audio} are both {name} in {path}")
    return [found.get(_name(utterance.audio), []) for utterance in utterances]


def _name(path: Path) -> str:
    """The name of a recording in RTTM, as `penstock.speakers.turns.rttm` writes it."""
    return "_".join(path.stem.split())


def _parse(where: str, line: str) -> tuple[str, SpeakerTurn] | None:
    """Recording and turn; None for a line that has none."""
    fields = line.split()
    if not fields or fields[0].startswith(";") or fields[0] in _OTHER_TYPES:
        return None
    if fields[0] != _SPEAKER:
        raise ManifestError(f"{where}: {shown(fields[0])}, expected a line of RTTM, which begins with {_SPEAKER}")
    if len(fields) not in _FIELDS:
        raise ManifestError(f"{where}: has {len(fields)} fields, expected 9 or 10; names have no blanks")
    times = []
    for name, text in (("start", fields[3]), ("duration", fields[4])):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise ManifestError(f"{where}: {name} is {shown(text)}, expected seconds")
        times.append(value)
    return fields[1], SpeakerTurn(fields[7], times[0], times[0] + times[1])
