"""All contestants decode the same streams: greedy ones find what the plain search finds, beams what one chunk gives."""

import sys
from types import ModuleType

import pytest
import torch

from penstock.benchmarking import boosted, our_decoders
from penstock.benchmarking.contestant import CHUNKS, PENSTOCK, PRECOMPUTED, WHOLE, Absence, Contestant, Entry, cut
from penstock.benchmarking.decoding import Field, Plan, measure, set_up
from penstock.benchmarking.failures import failures, setup_failures
from penstock.benchmarking.our_decoders import BOOSTED, DECODERS, Wanted, our_contestants
from penstock.benchmarking.random_encoder import ENCODERS, EncoderSizes
from penstock.benchmarking.random_transducer import KINDS, SIZES, Sizes
from penstock.benchmarking.stopwatch import Spread
from penstock.benchmarking.subject import RandomSizes, Subject, random_subject
from penstock.config import AttentionContext
from penstock.cuda_graphs import Choice
from penstock.decoding.networks import TransducerNetwork
from penstock.graphs.driver import EagerDriver, GraphError
from penstock.graphs.staged_driver import StagedDriver
from penstock.graphs.while_driver import WhileDriver
from penstock.kernels.capability import FUSED, TORCH
from tests.fake_capture import FakeBuilder, FakeCapture
from tests.reference.greedy import GreedyReference

BATCH, SECONDS = 3, 1.44


@pytest.fixture(params=KINDS, scope="module")
def subject(request) -> Subject:
    """3 streams of 18 frames in chunks of 4."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "tiny", Sizes(8, 16, 12))
        return random_subject(request.param, RandomSizes("tiny"), BATCH, SECONDS, AttentionContext(8, 3), "cpu")


def by_reference(subject: Subject) -> list[list[int]]:
    reference = GreedyReference(subject.checkpoint.config.transducer, subject.checkpoint.tensors())
    return [[label.id for label in reference.decode(stream)] for stream in subject.encoded]


def contestants(subject: Subject, chunk: int = 4, decoders=DECODERS) -> list[Contestant | Absence]:
    wanted = Wanted(decoders, (1, 3), (CHUNKS, WHOLE), "cpu", BATCH, chunk)
    return list(our_contestants(subject.checkpoint, wanted))


def labels_by_entry(subject: Subject, found: list[Contestant], chunk: int = 4) -> dict[Entry, list[list[int]]]:
    whole = subject.encoded.shape[1]
    inputs = {CHUNKS: cut(subject.encoded, chunk), WHOLE: cut(subject.encoded, whole)}
    return {one.entry: one.labels(one.decode(inputs[one.entry.span])) for one in found}


def test_cut():
    encoded = torch.arange(2 * 5 * 3).view(2, 5, 3)
    chunks = cut(encoded, 2)
    assert torch.equal(torch.cat([chunk.frames for chunk in chunks], dim=1), encoded)
    assert [chunk.lengths.tolist() for chunk in chunks] == [[2, 2], [2, 2], [1, 1]]
    assert [chunk.is_end.tolist() for chunk in chunks] == [[False] * 2, [False] * 2, [True] * 2]
    assert all(chunk.frames.is_contiguous() for chunk in chunks)


def test_greedy_contestants_find_what_the_plain_search_finds(subject):
    found = labels_by_entry(subject, contestants(subject))
    expected = by_reference(subject)
    assert sum(map(len, expected)) > 5
    greedy = {entry: labels for entry, labels in found.items() if entry.beam is None}
    assert len(greedy) == 6, "two decoders: chunks with and without projections, whole"
    assert all(labels == expected for labels in greedy.values())


def test_beams_in_chunks_are_whole_beams(subject):
    found = labels_by_entry(subject, contestants(subject))
    in_chunks = {(e.decoder, e.beam): labels for e, labels in found.items() if e.beam and e.span == CHUNKS}
    whole = {(e.decoder, e.beam): labels for e, labels in found.items() if e.beam and e.span == WHOLE}
    assert in_chunks.keys() == {(name, beam) for name in ("alsd", "aes") for beam in (1, 3)}
    assert in_chunks == whole
    assert sum(map(len, whole["alsd", 3])) > 0


def test_captured_searches_take_part(subject, monkeypatch):
    """One chunk: on the CPU nothing copies a captured search's labels before the next one overwrites them."""
    drivers = {"staged": lambda: StagedDriver(FakeCapture()), "while": lambda: WhileDriver(FakeBuilder())}
    monkeypatch.setattr(
        our_decoders, "available_drivers", lambda device: {"eager": None, "staged": None, "while": None}
    )
    monkeypatch.setattr(
        our_decoders, "select_driver", lambda name, _: Choice(drivers.get(name, EagerDriver)(), "asked")
    )
    chunk = subject.encoded.shape[1]
    found = labels_by_entry(subject, contestants(subject, chunk, DECODERS[:2]), chunk)
    assert {entry.driver for entry in found} == {"eager", "staged", "while"}
    assert len(found) == 3 * 6
    assert all(labels == by_reference(subject) for labels in found.values())


def test_a_driver_that_cannot_be_had_is_absent(subject, monkeypatch):
    def fail(name, device):
        raise GraphError("no memory")

    monkeypatch.setattr(our_decoders, "available_drivers", lambda device: {"staged": None, "while": "too old"})
    monkeypatch.setattr(our_decoders, "select_driver", fail)
    found = contestants(subject, decoders=DECODERS[:1])
    assert [(one.entry.driver, one.reason) for one in found] == [
        ("staged", "cannot be set up: no memory"),
        ("while", "too old"),
    ] * 2


def with_kernels(subject: Subject, decoders, device: str = "cpu") -> list[Contestant | Absence]:
    wanted = Wanted(decoders, (2,), (CHUNKS,), device, BATCH, 4, (TORCH, FUSED))
    return list(our_contestants(subject.checkpoint, wanted))


def test_fused_lines_where_kernels_can_be(subject, monkeypatch):
    """A network of torch stands in for that of kernels; that these find the same is tests/test_fused_search.py."""
    made = []

    def network(checkpoint, device, kernels):
        made.append(kernels)
        return TransducerNetwork(checkpoint, device, kernels=TORCH)

    monkeypatch.setattr(our_decoders, "why_unavailable", lambda device: None)
    monkeypatch.setattr(our_decoders, "TransducerNetwork", network)
    found = with_kernels(subject, (*DECODERS, BOOSTED))
    lines = {(one.entry.decoder, one.entry.projections): [] for one in found}
    for one in found:
        lines[one.entry.decoder, one.entry.projections].append(one.entry.kernels)
    both = ("label-looping", PRECOMPUTED), ("frame-looping", PRECOMPUTED), (BOOSTED, PRECOMPUTED)
    assert {line for line, kernels in lines.items() if kernels == [TORCH, FUSED]} == set(both)
    assert all(kernels == [TORCH] for line, kernels in lines.items() if line not in both)
    assert made == [TORCH, FUSED], "one network of each, for all lines that can share it"
    greedy = {e: labels for e, labels in labels_by_entry(subject, found).items() if e.decoder in DECODERS[:2]}
    assert len(greedy) == 6 and all(labels == by_reference(subject) for labels in greedy.values())


def test_fused_lines_are_absent_where_kernels_cannot_be(subject):
    found = with_kernels(subject, DECODERS[:1])
    assert [(str(one.entry), getattr(one, "reason", None)) for one in found] == [
        ("penstock label-looping", None),
        ("penstock label-looping, fused", "kernels run on CUDA devices, not on cpu"),
        ("penstock label-looping, unprojected", None),
    ]


def test_kernels_that_do_not_compile_are_absent(subject, monkeypatch):
    """The GPU language's errors are its own."""
    language = ModuleType("triton.errors")
    language.TritonError = type("TritonError", (Exception,), {})
    monkeypatch.setitem(sys.modules, "triton.errors", language)

    def network(checkpoint, device, kernels):
        if kernels == FUSED:
            raise language.TritonError("out of resources")
        return TransducerNetwork(checkpoint, device, kernels=kernels)

    monkeypatch.setattr(our_decoders, "why_unavailable", lambda device: None)
    monkeypatch.setattr(our_decoders, "TransducerNetwork", network)
    found = with_kernels(subject, DECODERS[:1])
    assert [one.reason for one in found if isinstance(one, Absence)] == ["cannot be set up: out of resources"]
    assert language.TritonError in failures() and language.TritonError in setup_failures()


def test_failures_do_not_load_the_language(monkeypatch):
    monkeypatch.delitem(sys.modules, "triton.errors", raising=False)
    assert setup_failures() == (RuntimeError,)
    assert "triton.errors" not in sys.modules


def test_no_driver_but_the_eager_one_without_a_gpu():
    assert our_decoders.available_drivers("cpu") == {"eager": None}


def test_figures_are_consistent(subject):
    plan = Plan([2, 3], [2], DECODERS, "cpu", repeats=1)
    field = set_up(subject, plan)
    assert field.absent == []
    for batch, figures in zip(plan.batches, measure(subject, field, plan), strict=True):
        assert [f.entry for f in figures] == [one.entry for one in field.contestants]
        for f in figures:
            assert (f.batch, f.encoder, f.total_rtfx, f.decoder_share) == (batch, None, None, None)
            assert f.audio_s == pytest.approx(batch * SECONDS)
            assert f.non_encoder_rtfx * f.decoder_s_per_audio_s == pytest.approx(1.0)
            assert 0 < f.decoder.least <= f.decoder.median <= f.decoder.most
            assert f.decoder == Spread.of(list(f.rounds_s)) and len(f.rounds_s) == plan.repeats
            assert f.decoder_to_label_looping == pytest.approx(f.rounds_s[0] / figures[0].rounds_s[0])
            if f.entry.beam is None:
                assert f.streams_as_label_looping == 1.0
                assert f.labels == sum(map(len, by_reference(subject)[:batch]))


def test_a_random_encoder_gives_totals(monkeypatch):
    monkeypatch.setitem(SIZES, "tiny", Sizes(8, 16, 12))
    monkeypatch.setitem(ENCODERS, "tiny", EncoderSizes(1, 16, 2, 4))
    subject = random_subject("rnnt", RandomSizes("tiny", "tiny"), 2, SECONDS, AttentionContext(8, 3), "cpu")
    assert subject.encode(2).shape[:2] == subject.encoded.shape[:2]
    assert subject.encoder.d_model == 16
    plan = Plan([2], [2], ["label-looping", "alsd"], "cpu", repeats=1)
    (figures,) = measure(subject, set_up(subject, plan), plan)
    standard, *others = figures
    assert standard.total_to_label_looping == 1.0
    total = standard.encoder.median + standard.decoder.median
    assert len(others) == 2
    for one in others:
        assert one.total_to_label_looping == pytest.approx((one.encoder.median + one.decoder.median) / total)
        assert one.total_rtfx == pytest.approx(one.audio_s / (one.encoder.median + one.decoder.median))


def test_too_many_phrases_are_absent(subject, monkeypatch):
    monkeypatch.setattr(boosted, "_MEMORY_BYTES", 100_000)
    (absence,) = contestants(subject, decoders=[BOOSTED])
    assert absence.entry.decoder == BOOSTED and "boosted phrases" in absence.reason


class Broken(Contestant):
    """Fails with two streams or more."""

    def decode(self, chunks):
        if len(chunks[0].lengths) > 1:
            raise RuntimeError("out of memory")
        return len(chunks)

    def labels(self, decoded):
        return [[7] * decoded]


def test_a_decoder_that_fails_does_not_cost_the_others_their_figures(subject):
    plan = Plan([1, 2], [], ["label-looping"], "cpu", repeats=1)
    whole = set_up(subject, plan)
    broken = Broken(Entry(PENSTOCK, "broken", "eager"))
    field = Field([broken, *whole.contestants], [])
    first, second = measure(subject, field, plan)
    assert (len(first), len(second)) == (3, 2)
    assert (first[0].labels, first[0].streams_as_label_looping) == (5, 0.0), "a label a chunk"
    (absence,) = field.absent
    assert absence == (broken.entry, "failed at batch 2: RuntimeError: out of memory", True)


def test_without_label_looping_there_is_nothing_to_be_like(subject):
    plan = Plan([1], [1], ["alsd"], "cpu", repeats=1)
    ((figures,),) = measure(subject, set_up(subject, plan), plan)
    assert figures.streams_as_label_looping is None
