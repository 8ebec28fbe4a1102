"""Random schedules: streams cut into rows, rows packed into requests and these into batches; and what comes back."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock_client.batched.rows import END, FINALIZE, START, Row
from tests.helpers.fake_triton import Request
from trials.server.raw_stream import LISTED, request_arrays, request_parameters

SINGLE = ("SEGMENT", "TEXT", "IS_FINAL")


@dataclass
class Transcript:
    """All that came back for one stream."""

    words: list[tuple] = field(default_factory=list)
    tokens: list[tuple] = field(default_factory=list)
    finals: list[tuple[int, str]] = field(default_factory=list)
    """Segment and text."""
    alternatives: list[str] = field(default_factory=list)


def cut_into_rows(
    number: int, samples: np.ndarray, ends: tuple[int, ...], chance: random.Random, options: str | None = None
) -> list[Row]:
    """One stream, whose segments end after `ends` samples. Start, end and finalize are rows of their own or not."""
    rows, start = [], 0
    for end, flag in [*((end, FINALIZE) for end in ends), (len(samples), END)]:
        while True:
            size = min(end - start, int(chance.choice([300, 3000, 30000]) * chance.random()))
            is_last = start + size == end and chance.random() < 0.7
            rows.append((samples[start : start + size], flag if is_last else 0))
            start += size
            if is_last:
                break
    if chance.random() < 0.3:
        rows.insert(0, (samples[:0], 0))
    return [
        Row(number, part, flags | START * (i == 0), options if i == 0 else None) for i, (part, flags) in enumerate(rows)
    ]


def shuffle_rows(streams: list[list[Row]], chance: random.Random) -> list[Row]:
    """All rows; those of a stream stay in order."""
    order = [i for i, rows in enumerate(streams) for _ in rows]
    if chance.random() < 0.8:
        chance.shuffle(order)
    iterators = [iter(rows) for rows in streams]
    return [next(iterators[i]) for i in order]


def split(entries: list, chance: random.Random, mean: float) -> Iterator[list]:
    """Neighbouring groups of random sizes."""
    start = 0
    while start < len(entries):
        size = 1 + int(chance.expovariate(1 / mean))
        yield entries[start : start + size]
        start += size


def add_reply(transcripts: dict[int, Transcript], rows: list[Row], output: Callable[[str], np.ndarray]) -> None:
    """Adds a reply's entries to their streams' transcripts; fails on errors and on entries out of order."""
    assert output("ERRORS").tolist() == [[]]
    entry_rows = output("ROW")[0].tolist()
    assert entry_rows == sorted(entry_rows)
    counts = output("LIST_COUNTS").reshape(-1, 3)
    assert len(counts) == len(entry_rows)
    starts = np.cumsum(counts, axis=0) - counts
    singles = [output(name)[0].tolist() for name in SINGLE]
    lists = [[output(name)[0].tolist() for name in names] for names in LISTED]
    for entry, row in enumerate(entry_rows):
        transcript = transcripts.setdefault(rows[row].number, Transcript())
        words, tokens, alternatives = (
            list(zip(*(column[start : start + count] for column in columns), strict=True))
            for columns, start, count in zip(lists, starts[entry], counts[entry], strict=True)
        )
        transcript.words += [(word.decode(), start, end) for word, start, end in words]
        transcript.tokens += tokens
        transcript.alternatives += [text.decode() for (text,) in alternatives]
        segment, text, is_final = (single[entry] for single in singles)
        if is_final:
            transcript.finals.append((segment, text.decode()))


def batched_request(client: str, rows: Sequence[Row], as_pcm: bool = False) -> Request:
    """A request to `asr_batch`, as Triton hands it to `features`."""
    return Request(request_arrays(rows, as_pcm), json.dumps(request_parameters(client, rows)), correlation_id=0)
