"""Times everything that a table compares in interleaved rounds, and returns rows of plain values."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from benchmarks.measure import paired_ratio, time_interleaved
from benchmarks.results import progress
from benchmarks.systems import Chunk, System, Unavailable, Variant, decoding_errors
from penstock.errors import StreamError
from penstock.evaluation.errors import compare, total
from penstock.reporting import three_digits

Row = dict[str, Any]
"""What was run, then what was measured: see `measured`, or why it was not: `unavailable`."""
_ENCODER = "encoder"


class Entry(NamedTuple):
    """One row to be."""

    case: Row
    """What distinguishes it from the others."""
    run: Callable[[], Any]
    """What is timed."""
    found: Callable[[Any], Sequence[Any]]
    """The labels or the text of each stream from what `run` returned; not timed."""


class Streams(NamedTuple):
    """What all entries decode."""

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
        row |= {"audio_s": streams.audio_s, "rounds_s": list(timed[number].rounds_s)}
        row["encoder_rounds_s"] = list(timed[_ENCODER].rounds_s) if _ENCODER in timed else None
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
        row = {**case, **described(one.variant)}
        if isinstance(one, Unavailable):
            rows.append(row | {"unavailable": one.reason})
        else:
            entries.append(Entry(row, partial(_decode, one, batches), partial(_found, one, text)))
    return entries, rows


def described(variant: Variant) -> Row:
    """The fields of a variant that differ in these tables."""
    return {
        "variant": str(variant), "by": variant.implementation, "decoder": variant.decoder,
        "driver": variant.driver, "beam": variant.beam,
        "projections": variant.projections, "kernels": variant.kernels, "has_lm": variant.has_lm,
    }  # fmt: skip


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
    """How many times as fast as `base` it is: in all, and the decoder alone; medians over rounds."""
    return paired_ratio(total_s(base), total_s(row)), paired_ratio(base["rounds_s"], row["rounds_s"])


def wer_percent(row: Row) -> float:
    """Word error rate."""
    return 100 * row["errors"] / row["words"]


def both(row: Row | None) -> str:
    """RTFx in all and of the decoder alone."""
    return f"{three_digits(total_rtfx(row))}, {three_digits(decoder_rtfx(row))}" if row else "-"


def ratio(row: Row | None, base: Row | None) -> str:
    """Speed-up in all and of the decoder alone."""
    return ", ".join(map(three_digits, speed_ups(row, base))) if row and base else "-"
