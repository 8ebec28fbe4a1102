"""Errors touch the stream that caused them and no other; a lost stream gives its slot back."""

import random
from unittest.mock import Mock

import numpy as np
import pytest

import penstock
from penstock import AudioRequest, StreamError, StreamingRecognizer, StreamResult
from penstock.decoding.greedy.search import LabelLooping
from penstock.encoder.encoder import StreamingEncoder
from penstock.errors import ErrorCode, SettingError, StreamErrorKind
from penstock.frontend.log_mel import FeatureExtractor
from penstock.pipeline.slots.table import Lease, StreamTable
from penstock.pipeline.stream_decoders.searches import GreedyStreamDecoder
from tests.helpers.golden import golden_samples
from tests.helpers.recognition import NO_SAMPLES, Transcription, recognize_alone, recognize_together


@pytest.fixture(scope="module")
def recognizer(golden_bundle) -> StreamingRecognizer:
    """Chunks of 160 ms; 4 streams at once, none of them open."""
    return StreamingRecognizer(golden_bundle("rnnt_hybrid").directory, (6, 1), max_streams=4)


@pytest.fixture(autouse=True)
def no_stream_is_left_open(recognizer):
    yield
    assert recognizer.table.live_streams == 0


def disturbed(recognizer: StreamingRecognizer, disturb) -> list[Transcription]:
    """Two streams side by side; `disturb(recognizer, step)` is called between their batches."""
    signals = [golden_samples("medium").numpy(), golden_samples("long").numpy()[:20000]]
    recognized = [Transcription(), Transcription()]
    for step, start in enumerate(range(0, 24000, 2000)):
        flags = {"is_start": start == 0, "is_end": start == 22000}
        requests = [AudioRequest(f"s{i}", s[start : start + 2000], **flags) for i, s in enumerate(signals)]
        for one, result in zip(recognized, recognizer.process(requests), strict=True):
            assert isinstance(result, StreamResult), result
            one.results.append(result)
        disturb(recognizer, step)
    return recognized


def rejection(recognizer: StreamingRecognizer, request: AudioRequest) -> StreamError:
    (answer,) = recognizer.process([request])
    assert isinstance(answer, StreamError), answer
    return answer


def bad(value: float) -> np.ndarray:
    samples = np.zeros(100, np.float32)
    samples[50] = value
    return samples


BAD_REQUESTS = [
    ({"samples": bad(np.nan)}, "1 of 100 samples are not finite"),
    ({"samples": bad(np.inf)}, "1 of 100 samples are not finite"),
    ({"samples": bad(-np.inf)}, "1 of 100 samples are not finite"),
    ({"samples": bad(-2.01)}, r"1 of 100 samples are not finite or beyond 2; expected float32 in -1 .. 1 \(int16 div"),
    ({"samples": np.zeros(10, np.float64)}, r"samples are float64 \[10\], expected float32 \[n\]"),
    ({"samples": np.zeros(10, np.int16)}, r"samples are int16 \[10\]"),
    ({"samples": np.zeros((1, 10), np.float32)}, r"samples are float32 \[1, 10\]"),
    ({"samples": np.zeros(480001, np.float32)}, "480001 samples in one request, at most 480000"),
    ({"options": {"beam": 4, "boost": []}}, "'beam', 'boost' is not accepted after the start"),
]


@pytest.mark.parametrize(("fields", "match"), BAD_REQUESTS)
def test_a_rejected_request_leaves_its_stream_as_it_was(recognizer, fields, match):
    def disturb(recognizer: StreamingRecognizer, step: int) -> None:
        if step == 5:
            error = rejection(recognizer, AudioRequest("s0", **({"samples": NO_SAMPLES} | fields)))
            assert error.kind is StreamErrorKind.INVALID_ARGUMENT
            with pytest.raises(StreamError, match=rf"stream 's0': {match}"):
                raise error

    undisturbed = disturbed(recognizer, lambda *_: None)
    assert [h.outcome for h in disturbed(recognizer, disturb)] == [h.outcome for h in undisturbed]


@pytest.mark.parametrize("fields", [bad_request[0] for bad_request in BAD_REQUESTS])
def test_a_rejected_start_opens_nothing_and_a_rejected_end_closes(recognizer, fields):
    request = {"samples": NO_SAMPLES} | fields
    assert rejection(recognizer, AudioRequest("new", is_start=True, **request)).kind is StreamErrorKind.INVALID_ARGUMENT
    assert recognizer.table.live_streams == 0
    recognizer.process([AudioRequest("new", NO_SAMPLES, is_start=True)])
    assert rejection(recognizer, AudioRequest("new", is_end=True, **request)).kind is StreamErrorKind.INVALID_ARGUMENT
    assert recognizer.table.live_streams == 0


def test_samples_slightly_beyond_full_scale_are_accepted(recognizer):
    """Lossy codecs and resampling overshoot."""
    recognizer.process([AudioRequest("loud", bad(2.0), is_start=True)])
    (result,) = recognizer.process([AudioRequest("loud", bad(-2.0), is_end=True)])
    assert not isinstance(result, StreamError)


def test_rejected_requests_do_not_disturb_their_batch(recognizer):
    samples = golden_samples("medium").numpy()
    alone = recognize_alone(recognizer, samples)
    together = Transcription()
    for start in range(0, len(samples), 4000):
        batch = [
            AudioRequest("bad", bad(np.nan), is_start=start == 0),
            AudioRequest("good", samples[start : start + 4000], start == 0, start + 4000 >= len(samples)),
            AudioRequest("never started", NO_SAMPLES),
        ]
        first, result, last = recognizer.process(batch)
        assert isinstance(first, StreamError)
        assert last.kind is StreamErrorKind.NOT_FOUND
        together.results.append(result)
    assert together.outcome == alone.outcome


FAILURES = [
    (FeatureExtractor, "extract", "the features stage failed: out of memory"),
    (StreamingEncoder, "step", "the encoder failed: out of memory"),
    (LabelLooping, "decode", "the decoder failed: out of memory"),
]


@pytest.mark.parametrize(("owner", "method", "message"), FAILURES)
def test_a_failing_step_costs_the_streams_of_its_batch_only(recognizer, monkeypatch, owner, method, message):
    samples = golden_samples("medium").numpy()

    def fail(*_, **__):
        raise RuntimeError("out of memory")

    def disturb(recognizer: StreamingRecognizer, step: int) -> None:
        names = ("lost", "too") if step in (2, 5) else ()
        recognizer.process([AudioRequest(name, samples[:7000], is_start=True) for name in names])
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, fail)
            answers = recognizer.process([AudioRequest(name, samples[7000:15000], is_end=step == 5) for name in names])
        assert [(a.code, a.message) for a in answers] == [(ErrorCode.STREAM_LOST, message)] * len(names)
        for name in names:
            error = rejection(recognizer, AudioRequest(name, samples[:10]))
            is_closed = step == 5 or owner is FeatureExtractor
            assert error.kind is (StreamErrorKind.NOT_FOUND if is_closed else StreamErrorKind.INTERNAL)
            assert rejection(recognizer, AudioRequest(name, samples[:10])).kind is StreamErrorKind.NOT_FOUND

    undisturbed = disturbed(recognizer, lambda *_: None)
    assert [h.outcome for h in disturbed(recognizer, disturb)] == [h.outcome for h in undisturbed]
    assert_all_slots_are_fresh(recognizer, samples)


def test_a_stream_that_is_lost_while_its_batch_is_admitted_shares_no_slot_with_a_new_one(recognizer, monkeypatch):
    """The decoder is another process in a server: it may say so between the admission of one request and the next."""
    samples = golden_samples("medium").numpy()
    look_up = StreamTable.look_up

    def lose(table: StreamTable, stream_id: str) -> Lease:
        lease = look_up(table, stream_id)
        table._ledger.fail("decoder", *lease)
        return lease

    recognizer.process([AudioRequest("lost", samples[:3000], is_start=True)])
    with monkeypatch.context() as patch:
        patch.setattr(StreamTable, "look_up", lose)
        batch = [AudioRequest("lost", samples[3000:], is_end=True), AudioRequest("new", samples, is_start=True)]
        recognizer.process(batch)
    (answer,) = recognizer.process([AudioRequest("new", NO_SAMPLES, is_end=True)])
    assert answer.text == recognize_alone(recognizer, samples).results[-1].text
    assert_all_slots_are_fresh(recognizer, samples)


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        (StreamingEncoder, "the encoder failed: out of memory"),
        (GreedyStreamDecoder, "the decoder failed: out of memory"),
    ],
)
def test_a_failing_start_costs_the_streams_of_its_batch_only(recognizer, monkeypatch, owner, message):
    samples, neighbour = golden_samples("medium").numpy(), recognizer.open_stream()
    neighbour.push(samples[:5000])
    with monkeypatch.context() as patch:
        patch.setattr(owner, "open", Mock(side_effect=RuntimeError("out of memory")))
        answers = recognizer.process([AudioRequest(name, samples, is_start=True) for name in ("lost", "too")])
    assert [(a.code, a.message) for a in answers] == [(ErrorCode.STREAM_LOST, message)] * 2
    assert rejection(recognizer, AudioRequest("lost", samples[:10])).kind is StreamErrorKind.INTERNAL
    assert neighbour.finish(samples[5000:]).text == recognize_alone(recognizer, samples).results[-1].text
    assert_all_slots_are_fresh(recognizer, samples)


def assert_all_slots_are_fresh(recognizer: StreamingRecognizer, samples: np.ndarray) -> None:
    """The maximum number of streams gets slots, and each result is as if its stream were the first."""
    expected = recognize_alone(recognizer, samples).outcome
    for _ in range(2):
        found = recognize_together(recognizer, [samples] * recognizer.table.max_streams, random.Random(0))
        assert [h.outcome for h in found] == [expected] * recognizer.table.max_streams


def test_a_stream_twice_in_a_batch_is_rejected_by_name(golden_bundle):
    recognizer = StreamingRecognizer(golden_bundle("rnnt_hybrid").directory, max_streams=2)
    requests = [AudioRequest("double", np.zeros(160, np.float32), is_start=True) for _ in range(2)]
    with pytest.raises(ValueError, match="'double' occurs more than once"):
        recognizer.process(requests)
    assert recognizer.table.live_streams == 0


@pytest.mark.parametrize("options", [{"decodr": "alsd"}, {"decoder": "best"}])
def test_a_wrong_option_fails_where_the_stream_is_opened(bundled_model, options):
    recognizer = StreamingRecognizer(bundled_model, "70,6", max_streams=1)
    with pytest.raises(StreamError, match=r"decodr|best"):
        recognizer.open_stream(options=options)


@pytest.mark.parametrize("context", ["70", "70,x", (70,), (70, 6.5), 70])
def test_a_wrong_context_is_named(bundled_model, context):
    with pytest.raises(SettingError, match="expected"):
        StreamingRecognizer(bundled_model, context, max_streams=1)


@pytest.mark.parametrize("count", [0, -1])
def test_a_recognizer_has_streams(bundled_model, count):
    with pytest.raises(SettingError, match=f"max_streams is {count}; accepted: integers from 1"):
        StreamingRecognizer(bundled_model, max_streams=count)


def test_samples_of_16_bits_are_those_of_32(recognizer):
    samples = (32767 * golden_samples("medium").numpy()).astype(np.int16)
    texts = []
    for each in (samples, samples / np.float32(32768)):
        with recognizer.open_stream() as stream:
            texts.append([stream.push(each[:20_000]).text, stream.finish(each[20_000:]).text])
    assert texts[0] == texts[1] and texts[0][-1]


def test_the_public_names_and_their_representations():
    recognizer = StreamingRecognizer(context="70,6", max_streams=1)
    assert repr(recognizer) == "<StreamingRecognizer an4-rnnt-hybrid [70,6] cpu>"
    assert repr(recognizer.open_stream("call")) == "<Stream 'call'>"
    assert {"StreamingRecognizer", "AudioRequest", "__version__"} <= set(dir(penstock))
