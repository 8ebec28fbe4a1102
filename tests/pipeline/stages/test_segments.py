"""`finalize`: a segment is what a stream of the audio up to its end would tell, after what was told before."""

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pytest

from penstock import AudioRequest, StreamError, StreamingRecognizer, StreamResult
from penstock.errors import StreamErrorKind
from penstock.pipeline.options.decoding_config import DecodingConfig
from tests.helpers.decoding_graphs import write_text_lm
from tests.helpers.golden import golden_samples
from tests.helpers.recognition import NO_SAMPLES, Transcription
from tests.helpers.streaming import cut

CHOICES = (
    {},
    {"decoder": "alsd", "n_best": 3},
    {"decoder": "aes", "beam_size": 2, "lm_weight": 0.4},
    {"boosted_phrases": [["seven", 4.0], ["zero", 3.0]], "lm_weight": 0.8},
    {"decoder": "alsd", "boosted_phrases": ["erase", "help"], "boost": 4.0, "n_best": 1},
    {"decoder": "ctc"},
    {"decoder": "ctc_beam", "n_best": 2},
)


MODELS = [("rnnt_hybrid", (6, 1)), pytest.param(("tdt_hybrid", (70, 1)), marks=pytest.mark.nightly)]


@pytest.fixture(scope="module", params=MODELS, ids=str)
def recognizer(request, golden_bundle, tmp_path_factory) -> StreamingRecognizer:
    """With a language model; chunks of 160 ms; no stream is open."""
    name, context = request.param
    checkpoint = golden_bundle(name)
    path = tmp_path_factory.mktemp("lm") / "words.arpa"
    sentences = ("seven two nine erase", "help start stop", "yes no zero") * 3
    write_text_lm(path, checkpoint.tokenizer_path, sentences)
    return StreamingRecognizer(checkpoint.directory, context, max_streams=8, decoding=DecodingConfig(lm=str(path)))


@dataclass
class Plan:
    """A stream: where its segments end, and how it is cut into requests."""

    samples: np.ndarray
    ends: list[int]
    """Ascending, the last of them is the number of samples."""
    options: dict
    most: int
    """Samples of a request."""

    def segments(self) -> list[np.ndarray]:
        return [self.samples[start:end] for start, end in itertools.pairwise([0, *self.ends])]

    def requests(self, name: str, chance: random.Random) -> list[AudioRequest]:
        """Every `finalize` comes with audio or without, and so does the end, on which it may be set as well."""
        made = []
        for number, segment in enumerate(self.segments()):
            parts = [segment[part] for part in cut(len(segment), chance, self.most)]
            if not parts or chance.random() < 0.5:
                parts.append(NO_SAMPLES)
            is_last = number == len(self.ends) - 1
            for i, part in enumerate(parts):
                is_final = i == len(parts) - 1
                made.append(
                    AudioRequest(
                        name,
                        part,
                        is_start=not made,
                        is_end=is_final and is_last,
                        options={} if made else self.options,
                        finalize=is_final and (not is_last or chance.random() < 0.3),
                    )
                )
        return made


def random_plan(chance: random.Random, options: dict) -> Plan:
    samples = golden_samples(chance.choice(["medium", "long"])).numpy()[chance.randint(0, 3000) : 26000]
    ends = sorted(chance.randint(0, len(samples)) for _ in range(chance.randint(0, 4)))
    if ends and chance.random() < 0.3:
        ends = [*ends, ends[-1]]  # a segment without audio
    return Plan(samples, sorted([*ends, len(samples)]), options, chance.choice([700, 5000, 40000]))


def run(recognizer: StreamingRecognizer, plans: list[Plan], chance: random.Random) -> list[list[StreamResult]]:
    """All streams side by side, some of them in each batch; each one's results."""
    waiting = [plan.requests(f"s{i}", chance) for i, plan in enumerate(plans)]
    results: list[list[StreamResult]] = [[] for _ in plans]
    while live := [i for i, requests in enumerate(waiting) if requests]:
        rows = chance.sample(live, chance.randint(1, len(live)))
        answers = recognizer.process([waiting[i].pop(0) for i in rows])
        for i, answer in zip(rows, answers, strict=True):
            assert isinstance(answer, StreamResult), answer
            results[i].append(answer)
    assert recognizer.table.live_streams == 0
    return results


def assert_same(found: list[StreamResult], alone: StreamResult, told: int = 0) -> int:
    """A segment's results against that of the stream's audio up to its end, of which `told` tokens are told before.

    Returns the tokens told with it.
    """
    recognized, tokens = Transcription(found), alone.tokens[told:]
    assert [token[:3] for token in recognized.tokens] == [token[:3] for token in tokens]
    assert [token.score for token in recognized.tokens] == pytest.approx([t.score for t in tokens], abs=2e-3)
    assert recognized.text == " ".join(word.text for word in recognized.words)
    whole = len(recognized.words) - (told > 0)  # the first one may have begun before
    assert not told or not tokens or alone.text.endswith(recognized.text)
    if whole > 0:
        assert [word[:3] for word in recognized.words[-whole:]] == [word[:3] for word in alone.words[-whole:]]
    final = found[-1]
    assert [final.text] * bool(final.alternatives) == [a.text for a in final.alternatives[:1]]
    assert [a.score for a in final.alternatives] == pytest.approx([a.score for a in alone.alternatives], abs=1e-2)
    assert final.audio_processed_s == pytest.approx(alone.audio_processed_s)
    assert [result.is_final for result in found] == [False] * (len(found) - 1) + [True]
    return max(told, len(alone.tokens))


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.nightly)])
def test_each_segment_is_what_its_audio_tells_after_the_segments_before(recognizer, seed):
    chance = random.Random(seed)
    plans = [random_plan(chance, options) for options in chance.sample([*CHOICES, {}], 6)]
    for plan, results in zip(plans, run(recognizer, plans, chance), strict=True):
        processed = [result.audio_processed_s for result in results]
        assert processed == sorted(processed)
        told = 0
        for number, end in enumerate(plan.ends):
            alone = recognizer.open_stream(options=plan.options).finish(plan.samples[:end])
            told = assert_same([result for result in results if result.segment == number], alone, told)
        assert results[-1].segment == len(plan.ends) - 1
        assert [result.segment for result in results] == sorted(result.segment for result in results)


@pytest.mark.parametrize(("number", "end"), [*enumerate((1, 159, 160, 2559, 2560, 2561, 2727, 2728, 2729, 4967))])
def test_a_segment_may_end_at_any_sample(recognizer, number, end):
    """Around chunk borders of either kind: those of samples and those of frames."""
    samples, options = golden_samples("short").numpy(), CHOICES[number % len(CHOICES)]
    with recognizer.open_stream(options=options) as stream:
        told = 0
        for start, stop, call in ((0, end, stream.finalize), (end, end, stream.finalize), (end, None, stream.finish)):
            alone = recognizer.open_stream(options=options).finish(samples[:stop])
            told = assert_same([call(samples[start:stop])], alone, told)


def test_a_stream_keeps_its_slot(recognizer):
    with recognizer.open_stream("one") as stream:
        stream.push(golden_samples("short").numpy())
        lease = recognizer.table.look_up("one")
        result = stream.finalize()
        assert (result.segment, result.is_final) == (0, True)
        assert recognizer.table.look_up("one") == lease
        result = stream.push(NO_SAMPLES)
        assert (result.segment, result.is_final, result.text) == (1, False, "")


def test_finalize_with_the_end_is_an_end(recognizer):
    samples = golden_samples("short").numpy()
    (result,) = recognizer.process([AudioRequest("x", samples, is_start=True, is_end=True, finalize=True)])
    assert_same([result], recognizer.open_stream().finish(samples))
    assert recognizer.table.live_streams == 0
    (rejected,) = recognizer.process([AudioRequest("x", NO_SAMPLES)])
    assert isinstance(rejected, StreamError) and rejected.kind is StreamErrorKind.NOT_FOUND


def test_a_rejected_finalize_ends_no_segment(recognizer):
    samples = golden_samples("medium").numpy()
    recognizer.process([AudioRequest("x", samples[:9000], is_start=True)])
    (rejected,) = recognizer.process([AudioRequest("x", np.full(9, np.nan, np.float32), finalize=True)])
    assert isinstance(rejected, StreamError)
    (result,) = recognizer.process([AudioRequest("x", samples[9000:], is_end=True)])
    alone = recognizer.open_stream().finish(samples)
    assert (result.segment, result.text) == (0, alone.text)


@pytest.mark.parametrize("value", ["true", 1, 0, None, 1.0, [True]])
@pytest.mark.parametrize("is_start", [True, False])
def test_another_type_is_rejected_by_name(recognizer, value, is_start):
    with recognizer.open_stream("x") as stream:
        if not is_start:
            stream.push(NO_SAMPLES)
        (rejected,) = recognizer.process([AudioRequest("x", NO_SAMPLES, is_start, finalize=value)])
        assert isinstance(rejected, StreamError) and rejected.kind is StreamErrorKind.INVALID_ARGUMENT
        assert str(rejected) == f"OPTION_INVALID: stream 'x': finalize is {value!r}; accepted: true, false"
        assert recognizer.table.live_streams == (0 if is_start else 1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"decoder": "alsd"}, "'decoder' cannot change in a running stream; accepted after the start, with finalize: "),
        ({"boosted_phrases": [["seven", 1e3]]}, "boosted phrases: phrase 1 ('seven') has boost 1000.0; accepted: num"),
        ({"endpoint_silence_ms": 500, "boost": 3.0}, "boost is given without boosted_phrases"),
        ({"language": "tlh"}, "language is 'tlh'"),
    ],
)
def test_a_change_with_a_wrong_option_changes_nothing(recognizer, options, why):
    samples = golden_samples("medium").numpy()
    recognizer.process([AudioRequest("x", samples[:9000], is_start=True)])
    (rejected,) = recognizer.process([AudioRequest("x", samples[9000:20_000], options=options, finalize=True)])
    assert isinstance(rejected, StreamError) and rejected.message.startswith(f"stream 'x': {why}")
    (result,) = recognizer.process([AudioRequest("x", samples[9000:], is_end=True)])
    assert (result.segment, result.text) == (0, recognizer.open_stream().finish(samples).text)


@pytest.mark.parametrize("request_", [{}, {"is_end": True, "finalize": True}])
def test_options_change_only_where_a_segment_ends(recognizer, request_):
    with recognizer.open_stream("x") as stream:
        stream.push(NO_SAMPLES)
        (rejected,) = recognizer.process([AudioRequest("x", NO_SAMPLES, options={"boosted_phrases": []}, **request_)])
        assert rejected.message == "stream 'x': 'boosted_phrases' is not accepted after the start; " + (
            "accepted: with finalize alone"
        )


def text_after(recognizer, samples, cut_at, options, changes) -> str:
    with recognizer.open_stream(options=options) as stream:
        stream.finalize(samples[:cut_at], changes)
        return stream.finish(samples[cut_at:]).text


@pytest.mark.parametrize("decoder", ["greedy", "alsd", "aes", "ctc_beam"])
def test_phrases_change_at_an_end_and_all_else_goes_on(recognizer, decoder):
    samples, own = golden_samples("long").numpy(), {"decoder": decoder}
    boosted = {"boosted_phrases": [["zz", 20.0]], "unknown_phrases": "ignore"}
    pages = recognizer._decoder._fusion.phrases.free_pages
    plain = text_after(recognizer, samples, 9000, own, None)
    with_phrases = text_after(recognizer, samples, 9000, own, boosted)
    assert ("zz" in with_phrases and "zz" not in plain) or (decoder == "greedy" and plain == with_phrases == "")
    # Taken back before they score anything, they leave nothing.
    with recognizer.open_stream(options=own | boosted) as stream:
        stream.finalize(NO_SAMPLES, {"boosted_phrases": None})
        assert "zz" not in stream.finalize(samples[:9000], {"endpoint_longest_s": 120}).text
        assert stream.finalize(samples[9000:], {"endpoint_longest_s": None}).text == plain
        for _ in range(4):
            stream.finalize(NO_SAMPLES, boosted)
            stream.finalize(NO_SAMPLES, {"boosted_phrases": []})
    assert recognizer._decoder._fusion.phrases.free_pages >= pages - 1, "lists that no stream uses are replaced"


def test_endpoints_turned_on_count_from_the_end(recognizer):
    """Rules from the start are restarted by the same end; silence before it does not count."""
    speech = golden_samples("short").numpy()
    silence = np.zeros(12 * 16_000, np.float32)
    rules = {"endpoint_longest_s": 5}
    found = []
    for options, changes in ((rules, None), ({}, rules)):
        with recognizer.open_stream(options=options) as stream:
            stream.push(speech[:8000])
            stream.finalize(NO_SAMPLES, changes)
            result = stream.push(silence)
            found.append([(entry.segment, round(entry.audio_processed_s, 3)) for entry in result.entries])
    assert found[0] == found[1] and len(found[0]) > 1
