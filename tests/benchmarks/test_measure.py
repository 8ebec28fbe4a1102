"""Systems decode the same streams in interleaved rounds; greedy ones find the labels of the reference."""

import statistics

import pytest
import torch

from benchmarks import measure as module
from benchmarks.measure import paired_ratio, time_interleaved
from benchmarks.papers.runner import (
    Entry,
    Streams,
    decoder_percent,
    decoder_rtfx,
    entries_of,
    measured,
    speed_ups,
    total_rtfx,
    wer_percent,
)
from benchmarks.penstock_decoders import penstock_systems
from benchmarks.random_models import KINDS, TRANSDUCERS, TransducerSizes
from benchmarks.systems import (
    CHUNKS,
    DECODERS,
    PENSTOCK,
    WHOLE,
    Selection,
    System,
    Unavailable,
    Variant,
    Workload,
    random_workload,
    split_chunks,
)
from penstock.model.config import AttentionContext
from tests.helpers.reference.greedy import GreedyReference

BATCH, SECONDS = 3, 1.44


@pytest.fixture(params=KINDS, scope="module")
def streams(request) -> Workload:
    """3 streams of 18 frames in chunks of 4."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TRANSDUCERS, "tiny", TransducerSizes(8, 16, 12))
        return random_workload(request.param, "tiny", BATCH, SECONDS, AttentionContext(8, 3), "cpu")


def by_reference(streams: Workload) -> list[list[int]]:
    reference = GreedyReference(streams.checkpoint.config.transducer, streams.checkpoint.tensors())
    return [[label.id for label in reference.decode(stream)] for stream in streams.encoded]


def all_systems(streams: Workload, chunk: int = 4, decoders=DECODERS) -> list[System | Unavailable]:
    selection = Selection(decoders, (1, 3), (CHUNKS, WHOLE), "cpu", BATCH, chunk)
    return list(penstock_systems(streams.checkpoint, selection))


def labels_by_variant(streams: Workload, found: list[System], chunk: int = 4) -> dict[Variant, list[list[int]]]:
    whole = streams.encoded.shape[1]
    inputs = {CHUNKS: split_chunks(streams.encoded, chunk), WHOLE: split_chunks(streams.encoded, whole)}
    return {one.variant: one.labels(one.decode(inputs[one.variant.span])) for one in found}


def test_split_chunks():
    encoded = torch.arange(2 * 5 * 3).view(2, 5, 3)
    chunks = split_chunks(encoded, 2)
    assert torch.equal(torch.cat([chunk.frames for chunk in chunks], dim=1), encoded)
    assert [chunk.lengths.tolist() for chunk in chunks] == [[2, 2], [2, 2], [1, 1]]
    assert [chunk.is_end.tolist() for chunk in chunks] == [[False] * 2, [False] * 2, [True] * 2]
    assert all(chunk.frames.is_contiguous() for chunk in chunks)


def test_greedy_systems_find_the_labels_of_the_reference(streams):
    found = labels_by_variant(streams, all_systems(streams))
    expected = by_reference(streams)
    assert sum(map(len, expected)) > 5
    greedy = {variant: labels for variant, labels in found.items() if variant.beam is None}
    assert len(greedy) == 8, "two decoders: chunks and whole, with and without projections"
    assert all(labels == expected for labels in greedy.values())


def test_a_failing_system_leaves_the_others_their_figures(streams):
    class Broken(System):
        def decode(self, chunks):
            raise RuntimeError("out of memory")

        def labels(self, decoded):
            return []

    tested = [Broken(Variant(PENSTOCK, "broken", "no_graphs")), *all_systems(streams)]
    chunks = split_chunks(streams.encoded, streams.encoded.shape[1])
    entries, rest = entries_of(tested, {"batch": BATCH}, [chunks])
    broken, *others = measured(entries, Streams(BATCH * SECONDS), 2, "cpu")
    assert rest == [] and broken["unavailable"] == "failed: RuntimeError: out of memory" and "rounds_s" not in broken
    greedy = [row for row in others if row["beam"] is None]
    assert len(greedy) == 8 and {row["labels"] for row in greedy} == {sum(map(len, by_reference(streams)))}
    for row in others:
        assert len(row["rounds_s"]) == 2 and min(row["rounds_s"]) > 0 and row["batch"] == BATCH
        assert (
            total_rtfx(row) == decoder_rtfx(row) == pytest.approx(BATCH * SECONDS / statistics.median(row["rounds_s"]))
        )


def test_texts_are_compared_with_references():
    entries = [Entry({"name": text}, lambda text=text: text, lambda text: [text, "two"]) for text in ("one", "oh")]
    right, wrong = measured(entries, Streams(2.0, lambda: None, ["one", "two"]), 3, "cpu")
    assert (right["errors"], right["words"], wrong["errors"], wer_percent(wrong)) == (0, 2, 1, 50.0)
    assert len(right["encoder_rounds_s"]) == 3
    assert speed_ups(right, right) == (1.0, 1.0) and 0 < decoder_percent(right) < 100


def test_a_ratio_is_paired_by_rounds():
    slow_meanwhile = (1.0, 10.0, 1.0, 10.0, 1.0)
    a_fifth_more = (1.2, 12.0, 1.2, 12.0, 1.2)
    assert paired_ratio(a_fifth_more, slow_meanwhile) == pytest.approx(1.2)
    assert paired_ratio((1.0, 1.0, 4.0), (1.0, 2.0, 2.0)) == 1.0
    with pytest.raises(ValueError):
        paired_ratio((1.0, 2.0), (1.0,))


def test_rounds(monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(module, "_time_on_host", lambda task: (float(len(calls)), task())[0])
    tasks = {name: lambda name=name: calls.append(name) for name in "abc"}
    timed = time_interleaved(tasks, repeats=5, warm_up_rounds=2, device="cpu")
    rounds = [calls[i : i + 3] for i in range(0, len(calls), 3)]
    assert len(rounds) == 7
    assert all(sorted(called) == ["a", "b", "c"] for called in rounds)
    assert len(set(map(tuple, rounds))) > 1, "the order changes"
    for name in "abc":
        places = [i for i, called in enumerate(calls) if called == name][2:]
        assert timed[name] == places
