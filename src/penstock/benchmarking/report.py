"""The benchmark of decoders as JSON and as tables."""

import dataclasses
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.benchmarking.contestant import CHUNKS, NEMO, WHOLE, Absence, Entry
from penstock.benchmarking.decoding import Figures, Plan
from penstock.benchmarking.our_decoders import LABEL_LOOPING
from penstock.benchmarking.stopwatch import paired_ratio
from penstock.benchmarking.subject import Subject
from penstock.errors import PenstockError
from penstock.reporting.hardware import describe_hardware
from penstock.reporting.software import commit, date_utc, package_versions
from penstock.reporting.table import markdown_table, three_digits
from penstock.version import __version__

FORMAT, FORMAT_VERSION = "penstock-decoding-benchmark", 1
_PACKAGES = ("torch", "numpy", "cuda-bindings", "triton", "nemo_toolkit")


@dataclass(frozen=True)
class Circumstances:
    """Where, when and how it was measured."""

    device: str
    threads: int
    hardware: str
    load_average_before: float = field(default_factory=lambda: os.getloadavg()[0])
    date: str = field(default_factory=date_utc)
    command: str = field(default_factory=lambda: shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))
    commit: str | None = field(default_factory=commit)
    python: str = field(default_factory=platform.python_version)
    packages: dict[str, str] = field(default_factory=lambda: package_versions(_PACKAGES))

    @classmethod
    def here(cls, device: str, threads: int) -> "Circumstances":
        """Of this process."""
        return cls(device, threads, describe_hardware(device))


@dataclass
class Part:
    """One model's results."""

    subject: Subject
    absent: list[Absence]
    figures: list[Figures]


def document(where: Circumstances, plan: Plan, parts: Sequence[Part]) -> dict:
    """All as JSON values; docs/benchmark_decoding.md tells the fields."""
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "penstock": __version__,
        **dataclasses.asdict(where),
        "plan": plan._asdict(),
        "subjects": [_part(part) for part in parts],
    }


def write(path: Path, document: dict) -> None:
    """Writes the report, or replaces that of a part of the run."""
    try:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise PenstockError(f"--json: {path}: {error.strerror}") from error


def _part(part: Part) -> dict:
    subject = part.subject
    transducer = subject.checkpoint.config.transducer
    return {
        "name": subject.name,
        "note": subject.note,
        "kind": "tdt" if transducer.is_tdt else "rnnt",
        "transducer": dataclasses.asdict(transducer),
        "context": list(subject.context),
        "chunk_encoder_frames": subject.context.chunk_encoder_frames,
        "stream_s": subject.stream_s,
        "stream_encoder_frames": subject.encoded.shape[1],
        "has_encoder": subject.encode is not None,
        "encoder": dataclasses.asdict(subject.encoder) if subject.encoder else None,
        "absent": [
            dataclasses.asdict(absence.entry) | {"reason": absence.reason, "is_failure": absence.is_failure}
            for absence in part.absent
        ],
        "results": [_figures(figures) for figures in part.figures],
    }


def _figures(figures: Figures) -> dict:
    return {
        **dataclasses.asdict(figures.entry),
        "batch": figures.batch,
        "audio_s": figures.audio_s,
        "decoder_s": figures.decoder._asdict(),
        "rounds_s": list(figures.rounds_s),
        "encoder_s": figures.encoder._asdict() if figures.encoder else None,
        "decoder_s_per_audio_s": figures.decoder_s_per_audio_s,
        "non_encoder_rtfx": figures.non_encoder_rtfx,
        "total_rtfx": figures.total_rtfx,
        "decoder_share": figures.decoder_share,
        "labels": figures.labels,
        "streams_as_label_looping": figures.streams_as_label_looping,
        "total_to_label_looping": figures.total_to_label_looping,
        "decoder_to_label_looping": figures.decoder_to_label_looping,
    }


def render(where: Circumstances, plan: Plan, part: Part) -> str:
    """What a person reads of one model: a table for each figure, a line for each decoder, a column for each batch."""
    subject = part.subject
    heading = (
        f"## {subject.name}, context {subject.context}: {subject.stream_s:g} s a stream in chunks of "
        f"{subject.context.chunk_encoder_frames} encoder frames\n\n{subject.note}\n\n"
        f"{where.hardware}; {where.device}, threads {where.threads}, load before {where.load_average_before:.1f}; "
        f"torch {where.packages.get('torch')}; {where.date}, commit {where.commit}; {plan.repeats} repeats"
    )
    found = {(figures.entry, figures.batch): figures for figures in part.figures}
    entries = list(dict.fromkeys(figures.entry for figures in part.figures))
    batches = list(dict.fromkeys(figures.batch for figures in part.figures))
    tables = [heading]
    for title, cell in _tables(part.figures):
        cells = [[str(e), *(cell(found[e, b]) if (e, b) in found else "-" for b in batches)] for e in entries]
        tables.append(f"{title}\n\n{markdown_table(['decoder', *(f'batch {b}' for b in batches)], cells, left=1)}")
    if part.absent:
        tables.append("\n".join(["Absent:", *(f"- {absence.entry}: {absence.reason}" for absence in part.absent)]))
    return "\n\n".join(tables)


def _tables(figures: Sequence[Figures]) -> list[tuple[str, Callable[[Figures], str]]]:
    """Titles with what stands in the cells."""
    tables: list[tuple[str, Callable[[Figures], str]]] = [
        ("Decoder, ms for a second of audio: median (least .. most)", _milliseconds),
        ("Non-encoder RTFx", lambda f: three_digits(f.non_encoder_rtfx)),
    ]
    if any(f.decoder_to_label_looping for f in figures):
        title = "Decoder: time to that of our label-looping, same driver, torch; median of rounds"
        tables.append((title, lambda f: _or_dash(f.decoder_to_label_looping)))
    if any(f.encoder for f in figures):
        tables += [
            ("Total RTFx (encoder and decoder)", lambda f: three_digits(f.total_rtfx)),
            ("Share of the time in the decoder, %", lambda f: three_digits(100.0 * f.decoder_share)),
        ]
    if any(f.total_to_label_looping for f in figures):
        title = "Encoder and decoder: time to that with our label-looping, same driver, torch; median of rounds"
        tables.append((title, lambda f: _or_dash(f.total_to_label_looping)))
    for span in (CHUNKS, WHOLE):
        rivals = {f.batch: f for f in figures if _is_rival(f.entry, span)}
        if rivals:
            title = f"Times as fast as NeMo's label-looping ({span}); median of rounds"
            tables.append((title, lambda f, r=rivals: _ratio(r.get(f.batch), f)))
    return [*tables, ("Labels found (streams exactly as our label-looping, %)", _labels)]


def _is_rival(entry: Entry, span: str) -> bool:
    """The last of them is the one with graphs, where there is one."""
    return (entry.implementation, entry.decoder, entry.span) == (NEMO, LABEL_LOOPING, span)


def _milliseconds(figures: Figures) -> str:
    median, least, most = (three_digits(1000.0 * seconds / figures.audio_s) for seconds in figures.decoder)
    return f"{median} ({least} .. {most})"


def _ratio(rival: Figures | None, figures: Figures) -> str:
    return three_digits(paired_ratio(rival.rounds_s, figures.rounds_s)) if rival else "-"


def _or_dash(value: float | None) -> str:
    return three_digits(value) if value else "-"


def _labels(figures: Figures) -> str:
    share = figures.streams_as_label_looping
    return str(figures.labels) if share is None else f"{figures.labels} ({100.0 * share:.0f})"
