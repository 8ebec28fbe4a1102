"""Recordings with reference texts, from NeMo manifests (JSON lines), also joined as a test of endpointing."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby, islice
from pathlib import Path

import numpy as np

from penstock.errors import AudioError, ManifestError, shown
from penstock.frontend.audio_file import AudioSource, FilePart, audio_span
from penstock.transcription.manifest import ManifestLine, Phrases, is_stated_wrongly, read_lines, text_of
from penstock.transcription.shards import Shard


@dataclass(frozen=True)
class Utterance:
    """One line of a manifest."""

    audio: Path
    audio_s: float
    """Duration of the file from its header, as that of the manifest is often rounded; of a part up to its end."""
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
    boosted_phrases: Phrases = ()
    stated_s: float | None = None
    """Duration in the manifest."""
    offset_s: float | None = None
    """The begin of a part of the file; None for the whole file."""

    @property
    def part(self) -> FilePart:
        """The file, or the part of it."""
        return FilePart(str(self.audio), self.offset_s, None if self.offset_s is None else self.stated_s)

    @property
    def is_stated_wrongly(self) -> bool:
        """True if the manifest's duration differs from that of the audio by more than rounding."""
        return is_stated_wrongly(self.stated_s, self.audio_s)


def read_manifest(
    manifest: Path, limit: int | None = None, has_segments: bool = False, has_parts: bool = False
) -> list[Utterance]:
    """The utterances of a manifest (the first `limit`), as `read_shard`; without `has_parts` only of whole files."""
    utterances, _ = read_shard([manifest], Shard(), limit, has_segments)
    for each in utterances:
        if each.offset_s is not None and not has_parts:
            raise ManifestError(f"{manifest}:{each.line}: offset: {each.offset_s:g}; only whole files are supported")
    return utterances


def read_shard(
    manifests: Sequence[Path], shard: Shard, limit: int | None = None, has_segments: bool = False
) -> tuple[list[Utterance], int]:
    """The shard's utterances of manifests (the first `limit` of each), and the number of those of all shards.

    Reads the header of every audio file, so that a missing file is found before the work. Raises ManifestError.
    has_segments: reads `segments`, too.
    """
    found: list[tuple[Path, ManifestLine]] = []
    for manifest in manifests:
        lines = [(manifest, line) for line in islice(read_lines(manifest), limit)]
        if not lines:
            raise ManifestError(f"{manifest}: has no utterances")
        found += lines
    names = [line.text("audio_filepath") for _, line in found]
    chosen = shard.choose(names, [line.stated_s for _, line in found])
    span_of = cache(audio_span)  # of a file without a length in its header it takes long
    return [_utterance(*found[index], has_segments, span_of) for index in chosen], len(found)


def join_utterances(
    utterances: Sequence[Utterance], count: int, pause_s: float, sample_rate_hz: int, folder: Path
) -> list[Utterance]:
    """Joins `count` successive utterances of a manifest at a time, the last ones of each fewer; writes WAV files.

    pause_s: silence between two of them. Raises AudioError, and ManifestError for languages that differ in a group.
    """
    joined: list[Utterance] = []
    with closing(AudioSource(sample_rate_hz)) as source:
        for _, of_manifest in groupby(utterances, key=lambda utterance: utterance.manifest):
            rows = list(of_manifest)
            for first in range(0, len(rows), count):
                path = folder / f"{len(joined)}.wav"
                joined.append(_joined(rows[first : first + count], pause_s, sample_rate_hz, path, source))
    return joined


def _utterance(
    manifest: Path, line: ManifestLine, has_segments: bool, span_of: Callable[[str], tuple[float, float]]
) -> Utterance:
    where, part = line.where, line.audio
    try:
        start_s, end_s = span_of(part.path)
    except AudioError as error:
        raise ManifestError(f"{where}: audio_filepath: {error.message}") from error
    if part.begin_s >= end_s:
        raise ManifestError(f"{where}: offset: {part.begin_s:g}, but {part.path} ends at {end_s:.3f} s")
    return Utterance(
        audio=Path(part.path),
        audio_s=min(part.end_s, end_s) - max(part.begin_s, start_s),
        reference=line.text("text"),
        manifest=manifest,
        line=line.number,
        speaker=_speaker(where, line.fields),
        speaker_texts=_speaker_texts(where, line.fields) if has_segments else {},
        language=line.language,
        boosted_phrases=line.boosted_phrases,
        stated_s=line.stated_s,
        offset_s=part.offset_s,
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
        texts.setdefault(speaker, []).append(text_of(place, segment, "text"))
    return {speaker: " ".join(parts) for speaker, parts in texts.items()}


def _speaker(where: str, entry: dict) -> str | None:
    value = entry.get("speaker")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ManifestError(f"{where}: speaker: {value!r}, expected a name or a number")
    return str(value)


def _joined(
    group: Sequence[Utterance], pause_s: float, sample_rate_hz: int, path: Path, source: AudioSource
) -> Utterance:
    import soundfile

    first = group[0]
    if len({utterance.language for utterance in group}) > 1:
        raise ManifestError(f"{first.manifest}:{first.line}: lang: differs from those of the next {len(group) - 1}")
    pause = np.zeros(round(pause_s * sample_rate_hz), np.float32)
    parts = [part for one in group for part in (pause, source.read(one.part))][1:]
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
        offset_s=None,
    )
