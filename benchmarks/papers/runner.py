"""Measures interleaved rounds of everything that a table compares; the result is rows of plain values."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import paired_ratio, time_interleaved
from benchmarks.results import progress
from benchmarks.systems import Chunk, System, Unavailable, decoding_errors
from penstock.errors import StreamError
from penstock.evaluation.errors import compare, total
from penstock.kernels.capability import FUSED, TORCH
from penstock.reporting import three_digits

Row = dict[str, Any]
"""Case of a run, then its figures: see `measured`, or why there are none: `unavailable`."""
_ENCODER = "encoder"


@dataclass(frozen=True)
class Settings:
    """Options of a run. The default takes about half an hour on two cores, `quick` some minutes."""

    device: str
    shapes: tuple[str, ...]
    """Keys of `inputs.SHAPES`."""
    manifest: Path
    """Recordings whose words are counted."""
    train: Path | None
    """Manifest of the recordings that language models, graphs and heads are trained on; None: without these rows."""
    work: Path
    """Folder for files that are made on the way."""
    with_nemo: bool
    batches: tuple[int, ...] = (1, 4, 16, 32)
    beam_batches: tuple[int, ...] = (1, 4, 8, 16, 32)
    beams: tuple[int, ...] = (1, 2, 4, 8, 12)
    stream_s: float = 6.4
    """Seconds of each stream of a random model: the mean of LibriSpeech test-other."""
    rounds: int = 3
    threads: int = 1
    recordings: int | None = None
    """Number of recordings from the manifest; None for all."""
    copies: int = 1
    """Augmented copies of the recordings that heads are trained on."""
    epochs: float = 5.0
    mwer_steps: int = 120
    ilm_steps: int = 600
    live_streams: int = 8
    live_minutes: float = 1.0

    @property
    def kernels(self) -> tuple[str, ...]:
        """Kernels that greedy search runs with."""
        return (TORCH, FUSED) if self.device.startswith("cuda") else (TORCH,)

    @classmethod
    def quick(cls, **chosen: object) -> "Settings":
        """Sizes with which a run shows that it works; its times mean little."""
        small: dict = {
            "batches": (1, 4), "beam_batches": (1, 4), "beams": (1, 4), "stream_s": 3.2, "rounds": 1, "recordings": 20,
            "copies": 0, "epochs": 3.0, "mwer_steps": 10, "ilm_steps": 100, "live_streams": 2, "live_minutes": 0.2,
        }  # fmt: skip
        return cls(**{**small, **chosen})

    def dump(self) -> str:
        """Writes JSON text, for `load`."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def load(cls, text: str) -> "Settings":
        """Reads what `dump` wrote."""
        found = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()}
        found |= {name: Path(found[name]) for name in ("manifest", "train", "work") if found[name] is not None}
        return cls(**found)


class Entry(NamedTuple):
    """One row to be."""

    case: Row
    """Values that distinguish it from the others."""
    run: Callable[[], Any]
    """Function that is timed."""
    found: Callable[[Any], Sequence[Any]]
    """The labels or the text of each stream from what `run` returned; not timed."""


class Streams(NamedTuple):
    """Audio and references that all entries have in common."""

    audio_s: float
    encode: Callable[[], object] | None = None
    """Encodes the same audio, where entries do not; timed in the same rounds."""
    references: Sequence[str] | None = None
    """Texts; `found` then returns texts."""


def measured(entries: Iterable[Entry], streams: Streams, rounds: int, device: str) -> list[Row]:
    """The rows of all entries: case, `audio_s`, `rounds_s` and `encoder_rounds_s` (seconds of each round), `labels` or
    `errors` and `words`.

    Each runs once before, which is not counted. One that fails then has the reason in `unavailable`.
    """
    rows, tasks, found = [], {}, {}
    for number, entry in enumerate(entries):
        row: Row = {**entry.case}
        rows.append(row)
        try:
            found[number] = entry.found(entry.run())
        except (StreamError, *decoding_errors()) as error:
            row["unavailable"] = f"failed: {type(error).__name__}: {str(error)[:200]}"
            progress(f"{row}")
            continue
        tasks[number] = entry.run
    if streams.encode is not None:
        streams.encode()
    timed = time_interleaved(
        tasks if streams.encode is None else {**tasks, _ENCODER: streams.encode}, rounds, 0, device
    )
    for number, texts in found.items():
        row = rows[number]
        row |= {"audio_s": streams.audio_s, "rounds_s": timed[number]}
        row["encoder_rounds_s"] = timed.get(_ENCODER)
        row |= _counted(texts, streams.references)
    return rows


def _counted(found: Sequence[Any], references: Sequence[str] | None) -> Row:
    if references is None:
        return {"labels": sum(map(len, found))}
    counts = total(compare(*pair).words for pair in zip(references, found, strict=True))
    return {"errors": counts.edits, "words": counts.reference_units}


def entries_of(
    systems: Iterable[System | Unavailable],
    case: Row,
    batches: Sequence[Sequence[Chunk]],
    text: Callable[[list[int]], Any] = list,
) -> tuple[list[Entry], list[Row]]:
    """Entries of decoders, and rows of those that cannot run.

    batches: the chunks of each batch of streams; text: of a stream's labels.
    """
    entries, rows = [], []
    for one in systems:
        variant = one.variant
        row = {
            **case,
            "variant": str(variant), "by": variant.implementation, "decoder": variant.decoder,
            "driver": variant.driver, "beam": variant.beam,
            "projections": variant.projections, "kernels": variant.kernels, "has_lm": variant.has_lm,
        }  # fmt: skip
        if isinstance(one, Unavailable):
            rows.append(row | {"unavailable": one.reason})
        else:
            entries.append(Entry(row, partial(_decode, one, batches), partial(_found, one, text)))
    return entries, rows


def _decode(system: System, batches: Sequence[Sequence[Chunk]]) -> list[Any]:
    return [system.decode(list(chunks)) for chunks in batches]


def _found(system: System, text: Callable[[list[int]], Any], decoded: list[Any]) -> list[Any]:
    return [text(labels) for one in decoded for labels in system.labels(one)]


def select(rows: Iterable[Row], **case: object) -> list[Row]:
    """Measured rows with these values."""
    return [r for r in rows if "rounds_s" in r and all(r.get(name) == value for name, value in case.items())]


def first(rows: Iterable[Row], **case: object) -> Row | None:
    """The first of `select`."""
    return next(iter(select(rows, **case)), None)


def fewest_and_most_streams(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """Shapes with the smallest and the largest batch, which a page shows."""
    cases = list(dict.fromkeys((row["shape"], row["batch"]) for row in rows))
    batches = [batch for _, batch in cases]
    return [(shape, batch) for shape, batch in cases if batch in (min(batches), max(batches))]


def decoder_rtfx(row: Row) -> float:
    """RTFx of what the row timed."""
    return row["audio_s"] / statistics.median(row["rounds_s"])


def total_s(row: Row) -> list[float]:
    """Seconds of encoder and decoder in each round."""
    encoder_s = row["encoder_rounds_s"] or [0.0] * len(row["rounds_s"])
    return [mine_s + rest_s for mine_s, rest_s in zip(row["rounds_s"], encoder_s, strict=True)]


def total_rtfx(row: Row) -> float:
    """RTFx of encoder and decoder."""
    return row["audio_s"] / statistics.median(total_s(row))


def decoder_percent(row: Row) -> float:
    """Share of the time that is the decoder's."""
    pairs = zip(row["rounds_s"], total_s(row), strict=True)
    return 100 * statistics.median(mine_s / all_s for mine_s, all_s in pairs)


def speed_ups(row: Row, base: Row) -> tuple[float, float]:
    """Ratio of speed to `base`: in all, and the decoder alone; medians over rounds."""
    return paired_ratio(total_s(base), total_s(row)), paired_ratio(base["rounds_s"], row["rounds_s"])


def wer_percent(row: Row) -> float:
    """Word error rate."""
    return 100 * row["errors"] / row["words"]


def both(row: Row | None) -> str:
    """RTFx in all and of the decoder alone."""
    return f"{three_digits(total_rtfx(row))}, {three_digits(decoder_rtfx(row))}" if row else "-"


def lines_of(name: str, parts: Sequence[str], cells: Sequence[object]) -> list[list[object]]:
    """A line of a table per part, so that a cell has one figure: "1.2, 3.4" is one for each, "3.4" the last one's."""
    split = [str(cell).split(", ") for cell in cells]
    padded = [["-"] * (len(parts) - len(figures)) + figures for figures in split]
    return [[f"{name}, {part}", *(figures[i] for figures in padded)] for i, part in enumerate(parts)]


def ratio(row: Row | None, base: Row | None) -> str:
    """Speed-up in all and of the decoder alone."""
    return ", ".join(map(three_digits, speed_ups(row, base))) if row and base else "-"
