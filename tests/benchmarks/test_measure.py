"""Systems decode the same streams in interleaved rounds; greedy ones find the labels of the reference."""

import statistics
import sys
from types import ModuleType

import pytest
import torch

from benchmarks import measure as module
from benchmarks import penstock_decoders
from benchmarks.measure import paired_ratio, ratios_to, time_interleaved
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
from benchmarks.results import Steps
from benchmarks.systems import (
    BOOSTED,
    CHUNKS,
    CTC,
    DECODERS,
    PENSTOCK,
    PRECOMPUTED,
    WHOLE,
    Selection,
    System,
    Unavailable,
    Variant,
    Workload,
    decoding_errors,
    random_workload,
    setup_errors,
    split_chunks,
)
from penstock.decoding.ctc import CtcHead
from penstock.decoding.transducer.networks import open_network
from penstock.graphs.full_graph import FullGraphDriver
from penstock.graphs.no_while_loops import NoWhileLoopsDriver
from penstock.graphs.program import EagerDriver
from penstock.graphs.select import Choice
from penstock.kernels.capability import FUSED, TORCH
from penstock.model.config import FACTORIZED, AttentionContext
from tests.helpers.fake_capture import FakeBuilder, FakeCapture
from tests.helpers.random_models import random_ctc_checkpoint
from tests.helpers.reference import ctc
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


def test_factorized_systems(monkeypatch):
    monkeypatch.setitem(TRANSDUCERS, "tiny", TransducerSizes(8, 16, 12))
    streams = random_workload(FACTORIZED, "tiny", BATCH, 4 * SECONDS, AttentionContext(8, 3), "cpu")
    found, expected = labels_by_variant(streams, all_systems(streams)), by_reference(streams)
    assert sum(map(len, expected)) > 5
    greedy = [labels for variant, labels in found.items() if variant.beam is None]
    assert len(greedy) == 4 and all(labels == expected for labels in greedy)
    beams = {(e.decoder, e.beam, e.span): labels for e, labels in found.items() if e.beam}
    assert len(beams) == 8
    assert all(beams[name, beam, CHUNKS] == beams[name, beam, WHOLE] for name, beam, _ in beams)


def test_beams_in_chunks_equal_whole_beams(streams):
    found = labels_by_variant(streams, all_systems(streams))
    in_chunks = {(e.decoder, e.beam): labels for e, labels in found.items() if e.beam and e.span == CHUNKS}
    whole = {(e.decoder, e.beam): labels for e, labels in found.items() if e.beam and e.span == WHOLE}
    assert in_chunks.keys() == {(name, beam) for name in ("alsd", "aes") for beam in (1, 3)}
    assert in_chunks == whole
    assert sum(map(len, whole["alsd", 3])) > 0


def test_ctc_searches_are_systems(tmp_path):
    head = random_ctc_checkpoint(tmp_path, 1)
    encoded = torch.randn(BATCH, 18, 16, generator=torch.Generator().manual_seed(1))
    selection = Selection((CTC,), (), (CHUNKS, WHOLE), "cpu", BATCH, 4)
    inputs = {CHUNKS: split_chunks(encoded, 4), WHOLE: split_chunks(encoded, 18)}
    found = {one.variant: one.labels(one.decode(inputs[one.variant.span])) for one in penstock_systems(head, selection)}
    by_name = {(v.decoder, v.beam, v.span): labels for v, labels in found.items()}
    assert len(by_name) == len(found) == 2
    greedy = [[label.id for label in ctc.greedy(row)] for row in CtcHead(head).log_probs(encoded)]
    assert sum(map(len, greedy)) > 5
    assert all(by_name[CTC, None, span] == greedy for span in (CHUNKS, WHOLE))


def test_captured_searches_are_systems(streams, monkeypatch):
    """One chunk: on the CPU nothing copies a captured search's labels before the next one overwrites them."""
    drivers = {
        "no_while_loops": lambda: NoWhileLoopsDriver(FakeCapture()),
        "full_graph": lambda: FullGraphDriver(FakeBuilder()),
    }
    monkeypatch.setattr(
        penstock_decoders,
        "available_drivers",
        lambda device: {"no_graphs": None, "no_while_loops": None, "full_graph": None},
    )
    monkeypatch.setattr(
        penstock_decoders, "select_driver", lambda name, _: Choice(drivers.get(name, EagerDriver)(), "asked")
    )
    chunk = streams.encoded.shape[1]
    found = labels_by_variant(streams, all_systems(streams, chunk, DECODERS[:2]), chunk)
    assert {variant.driver for variant in found} == {"no_graphs", "no_while_loops", "full_graph"}
    assert len(found) == 3 * 8
    assert all(labels == by_reference(streams) for labels in found.values())


def with_kernels(streams: Workload, decoders, device: str = "cpu") -> list[System | Unavailable]:
    selection = Selection(decoders, (2,), (CHUNKS,), device, BATCH, 4, (TORCH, FUSED))
    return list(penstock_systems(streams.checkpoint, selection))


def test_fused_variants_where_kernels_are_available(streams, monkeypatch):
    """A torch network stands in for the fused one; tests/decoding/test_fused_search.py compares them."""
    made = []

    def network(checkpoint, device, kernels):
        made.append(kernels)
        return open_network(checkpoint, device, kernels=TORCH)

    monkeypatch.setattr(penstock_decoders, "why_unavailable", lambda device: None)
    monkeypatch.setattr(penstock_decoders, "open_network", network)
    found = with_kernels(streams, (*DECODERS, BOOSTED))
    lines = {(one.variant.decoder, one.variant.projections): [] for one in found}
    for one in found:
        lines[one.variant.decoder, one.variant.projections].append(one.variant.kernels)
    both = ("label-looping", PRECOMPUTED), ("frame-looping", PRECOMPUTED), (BOOSTED, PRECOMPUTED)
    assert {line for line, kernels in lines.items() if kernels == [TORCH, FUSED]} == set(both)
    assert all(kernels == [TORCH] for line, kernels in lines.items() if line not in both)
    assert made == [TORCH, FUSED], "one network of each, for all lines that can share it"
    greedy = {e: labels for e, labels in labels_by_variant(streams, found).items() if e.decoder in DECODERS[:2]}
    assert len(greedy) == 6 and all(labels == by_reference(streams) for labels in greedy.values())


def test_kernels_that_do_not_compile_are_unavailable(streams, monkeypatch):
    """Triton's errors derive from no built-in error but Exception."""
    language = ModuleType("triton.errors")
    language.TritonError = type("TritonError", (Exception,), {})
    monkeypatch.setitem(sys.modules, "triton.errors", language)

    def network(checkpoint, device, kernels):
        if kernels == FUSED:
            raise language.TritonError("out of resources")
        return open_network(checkpoint, device, kernels=kernels)

    monkeypatch.setattr(penstock_decoders, "why_unavailable", lambda device: None)
    monkeypatch.setattr(penstock_decoders, "open_network", network)
    found = with_kernels(streams, DECODERS[:1])
    assert [one.reason for one in found if isinstance(one, Unavailable)] == ["cannot be set up: out of resources"]
    assert language.TritonError in decoding_errors() and language.TritonError in setup_errors()


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


def test_ratios_of_all_cases():
    taken = {"one": {"ours": [1.0, 2.0], "other": [3.0, 4.0]}, "two": {"ours": [1.0]}}
    assert ratios_to("ours", taken) == {"one": {"other": [3.0, 2.0]}, "two": {}}


def test_steps_say_what_is_left(capsys):
    now = iter([100.0, 100.0, 130.0, 190.0])
    steps = Steps(3, lambda: next(now))
    for what in "abc":
        steps.begin(what)
    assert capsys.readouterr().err.splitlines() == [
        "[1 of 3, 0:00 elapsed] a",
        "[2 of 3, 0:30 elapsed, about 1:00 left] b",
        "[3 of 3, 1:30 elapsed, about 0:45 left] c",
    ]


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
