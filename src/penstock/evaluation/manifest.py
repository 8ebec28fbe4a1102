"""Recordings with reference texts, from NeMo manifests (JSON lines), also joined as a test of endpointing."""

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from penstock.errors import AudioError, ManifestError, shown
from penstock.frontend.audio_file import audio_seconds, read_audio

_DURATION_TOLERANCE_S = 0.5


@dataclass(frozen=True)
class Utterance:
    """One line of a manifest."""

    audio: Path
    audio_s: float
    """Duration from the file's header; the manifest's is often rounded."""
    reference: str
    """Reference text as in the manifest; empty without speech."""
    manifest: Path
    line: int
    """Line number from 1."""
    speaker: str | None = None
    speaker_texts: Mapping[str, str] = field(default_factory=dict)
    """Text of each speaker, from `segments`."""
    turns: Sequence[tuple[Hashable, float, float]] | None = None
    """Turns of the speakers: speaker, start_s, end_s; not in manifests."""
    language: str | None = None
    """`lang`, for models with language prompts."""
    boosted_phrases: tuple[str | tuple[str, float], ...] = ()
    """Phrases to boost, each alone or with its boost."""
    stated_s: float | None = None
    """Duration in the manifest."""

    @property
    def is_stated_wrongly(self) -> bool:
        """True if the manifest's duration differs from the file's by more than rounding."""
        return self.stated_s is not None and abs(self.stated_s - self.audio_s) > _DURATION_TOLERANCE_S


def read_manifest(manifest: Path, limit: int | None = None, has_segments: bool = False) -> list[Utterance]:
    """The utterances of a manifest (the first `limit`). Relative audio paths start from the manifest's folder.

    Reads the header of every audio file, so that a missing file is found before the work. Raises ManifestError.
    has_segments: reads `segments`, too.
    """
    try:
        lines = manifest.read_text(encoding="utf-8-sig").split("\n")  # JSON strings may have other line ends
    except OSError as error:
        raise ManifestError(f"{manifest}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{manifest}: not UTF-8 text: {error}") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()][:limit]
    if not numbered:
        raise ManifestError(f"{manifest}: has no utterances")
    return [_parse(manifest, number, line, has_segments) for number, line in numbered]


def join_utterances(
    utterances: Sequence[Utterance], count: int, pause_s: float, sample_rate_hz: int, folder: Path
) -> list[Utterance]:
    """Joins `count` successive utterances of a manifest at a time, the last ones of each fewer; writes WAV files.

    pause_s: silence between two of them. Raises AudioError, and ManifestError for languages that differ in a group.
    """
    joined: list[Utterance] = []
    for _, of_manifest in groupby(utterances, key=lambda utterance: utterance.manifest):
        rows = list(of_manifest)
        for first in range(0, len(rows), count):
            path = folder / f"{len(joined)}.wav"
            joined.append(_joined(rows[first : first + count], pause_s, sample_rate_hz, path))
    return joined


def _parse(manifest: Path, number: int, line: str, has_segments: bool) -> Utterance:
    where = f"{manifest}:{number}"
    entry = _entry(where, line)
    audio = manifest.parent / _required_text(where, entry, "audio_filepath")
    if entry.get("offset"):
        raise ManifestError(f"{where}: offset: {entry['offset']!r}; only whole files are supported")
    try:
        audio_s = audio_seconds(audio)
    except AudioError as error:
        raise ManifestError(f"{where}: audio_filepath: {error.message}") from error
    return Utterance(
        audio=audio,
        audio_s=audio_s,
        reference=_required_text(where, entry, "text"),
        manifest=manifest,
        line=number,
        speaker=_speaker(where, entry),
        speaker_texts=_speaker_texts(where, entry) if has_segments else {},
        language=_required_text(where, entry, "lang") if entry.get("lang") is not None else None,
        boosted_phrases=_boosted_phrases(where, entry),
        stated_s=_duration(where, entry),
    )


def _speaker_texts(where: str, entry: dict) -> dict[str, str]:
    """The texts of `segments` by speaker, in their order."""
    value = entry.get("segments")
    texts: dict[str, list[str]] = {}
    for number, segment in enumerate(value if isinstance(value, list) else () if value is None else (value,)):
        place = f"{where}: segments[{number}]"
        if not isinstance(value, list) or not isinstance(segment, dict):
            raise ManifestError(f"{place}: {shown(segment)}, expected an object with speaker and text in a list")
        speaker = _speaker(place, segment)
        if speaker is None:
            raise ManifestError(f"{place}: speaker: is missing")
        texts.setdefault(speaker, []).append(_required_text(place, segment, "text"))
    return {speaker: " ".join(parts) for speaker, parts in texts.items()}


def _entry(where: str, line: str) -> dict:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{where}: not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise ManifestError(f"{where}: {line.strip()[:40]!r}, expected a JSON object with audio_filepath and text")
    return entry


def _required_text(where: str, entry: dict, field: str) -> str:
    if field not in entry:
        raise ManifestError(f"{where}: {field}: is missing")
    value = entry[field]
    if not isinstance(value, str):
        raise ManifestError(f"{where}: {field}: {value!r}, expected a string")
    return value


def _duration(where: str, entry: dict) -> float | None:
    value = entry.get("duration")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ManifestError(f"{where}: duration: {value!r}, expected a positive number of seconds")
    return float(value)


def _boosted_phrases(where: str, entry: dict) -> tuple[str | tuple[str, float], ...]:
    value = entry.get("boosted_phrases") or []
    if isinstance(value, list):
        phrases = [tuple(phrase) if isinstance(phrase, list) else phrase for phrase in value]
        if all(map(_is_phrase, phrases)):
            return tuple(phrases)
    raise ManifestError(f"{where}: boosted_phrases: {value!r}, expected a list of phrases or [phrase, boost] pairs")


def _is_phrase(value: object) -> bool:
    if not isinstance(value, tuple):
        return isinstance(value, str)
    is_pair = len(value) == 2 and isinstance(value[0], str)
    return is_pair and isinstance(value[1], int | float) and not isinstance(value[1], bool)


def _speaker(where: str, entry: dict) -> str | None:
    value = entry.get("speaker")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ManifestError(f"{where}: speaker: {value!r}, expected a name or a number")
    return str(value)


def _joined(group: Sequence[Utterance], pause_s: float, sample_rate_hz: int, path: Path) -> Utterance:
    import soundfile

    first = group[0]
    if len({utterance.language for utterance in group}) > 1:
        raise ManifestError(f"{first.manifest}:{first.line}: lang: differs from those of the next {len(group) - 1}")
    pause = np.zeros(round(pause_s * sample_rate_hz), np.float32)
    parts = [part for one in group for part in (pause, read_audio(one.audio, sample_rate_hz))][1:]
    samples = np.concatenate(parts)
    soundfile.write(path, samples, sample_rate_hz, subtype="FLOAT")
    return replace(
        first,
        audio=path,
        audio_s=len(samples) / sample_rate_hz,
        reference=" ".join(filter(None, (one.reference for one in group))),
        speaker=first.speaker if len({one.speaker for one in group}) == 1 else None,
        boosted_phrases=tuple(dict.fromkeys(phrase for one in group for phrase in one.boosted_phrases)),
        stated_s=None,
    )
