"""Endpoints depend on the audio alone; after them the decoder starts anew, or its best hypothesis goes on."""

import functools
import random
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
import torch

from penstock import StreamingRecognizer
from penstock.endpointing.rules import CARRY, RESET
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.stream_decoders.base import Chunk
from penstock.pipeline.stream_decoders.searches import CtcStreamDecoder
from tests.helpers.ctc import GivenLogProbs
from tests.helpers.decoding_graphs import write_word_loop
from tests.helpers.random_models import with_end_tokens, with_piece_texts
from tests.helpers.recognition import NO_SAMPLES
from tests.helpers.segments import SAMPLE_RATE_HZ, pieces, recognize, recognize_together, segments, speech_with_pauses
from tests.helpers.stage_requests import DecoderRequest, decode

pytestmark = pytest.mark.usefixtures("uncompiled")
FRAME_SAMPLES = 1280
CHUNK_SAMPLES = 7 * FRAME_SAMPLES
VIRTUAL_SAMPLES = 7 * 160
"""The samples of an encoder frame that audio does not fill: see `ChunkRows.covered_samples`."""
ENDPOINTS = {"endpoint_silence_ms": 400, "endpoint_no_speech_ms": 800, "endpoint_longest_s": 5}
SILENCE = {"endpoint_silence_ms": 600}
DECODERS = (
    {},
    {"boosted_phrases": [["seven", 4.0], ["zero", 3.0]]},
    {"decoder": "alsd", "n_best": 3},
    {"decoder": "aes", "beam_size": 2, "boosted_phrases": ["erase"], "n_best": 1},
    {"decoder": "ctc"},
    {"decoder": "ctc_beam", "n_best": 2},
    {"decoder": "wfst", "n_best": 2},
)
RNNT, TDT = "an4-rnnt-hybrid", "an4-tdt-hybrid"
END_TOKENS = "end-tokens"
"""The first model, whose words "four" and "eight" end segments, too."""
GREEDY, ALSD = DECODERS[0], DECODERS[2]
CASES = [
    (RNNT, GREEDY, RESET),
    (TDT, ALSD, RESET),  # durations
    (END_TOKENS, ALSD, CARRY),
    *(
        pytest.param(each, marks=pytest.mark.nightly)
        for each in (
            *((RNNT, options, RESET) for options in DECODERS[1:]),
            *((RNNT, GREEDY, CARRY), (TDT, GREEDY, RESET), (TDT, ALSD, CARRY), (END_TOKENS, GREEDY, RESET)),
        )
    ),
]
WORDS = (
    *"adefirtv", "june", "eight", "eighteenth", "nineteen", "sixty", "zero", "one", "three", "five", "seven", "nine",
)  # fmt: skip


@pytest.fixture(scope="module")
def recognizers(bundled_model, tmp_path_factory) -> Callable[[str], StreamingRecognizer]:
    """Model -> recognizer with chunks of 560 ms and a decoding graph of some words; no stream is open."""

    @functools.cache
    def get(name: str) -> StreamingRecognizer:
        graph = tmp_path_factory.mktemp("graph") / "words.safetensors"
        model = bundled_model.parent / name
        if name == END_TOKENS:
            model = with_end_tokens(bundled_model, tmp_path_factory.mktemp("model"), (" four", " eight")).directory
        write_word_loop(graph, model / "tokenizer.model", WORDS)
        return StreamingRecognizer(model, (70, 6), max_streams=10, decoding=DecodingConfig(graph=str(graph)))

    return get


@pytest.fixture
def recognizer(recognizers) -> StreamingRecognizer:
    return recognizers(RNNT)


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    return speech_with_pauses()


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request, recognizers, speech) -> tuple[StreamingRecognizer, dict, list]:
    """A recognizer, the options of a stream, and its segments in one request beside no other stream."""
    model, options, state = request.param
    chosen = options | ENDPOINTS | {"endpoint_state": state}
    return recognizers(model), chosen, segments(recognize(recognizers(model), speech, [slice(None)], chosen))


def test_a_stream_resumes_at_an_endpoint_behind_a_warm_up(case, speech):
    """At its first, a middle and its last endpoint, the resumed streams beside each other."""
    recognizer, chosen, whole = case
    assert len(whole) > 3
    numbers, rows = (1, len(whole) // 2, len(whole) - 1), []
    for number in numbers:
        _, processed_s, *_ = whole[number - 1]
        border = round(processed_s * SAMPLE_RATE_HZ) + VIRTUAL_SAMPLES
        assert border % CHUNK_SAMPLES == 0
        rows.append((speech, chosen | {"warm_up_chunks": border // CHUNK_SAMPLES}))
    resumed = recognize_together(recognizer, rows, random.Random(str(chosen)))
    for number, entries in zip(numbers, resumed, strict=True):
        assert segments(entries) == whole[number:]


TEXTS = {
    "marks": {"\u2581four": ".", "\u2581t": "\u2581?", "\u2581eight": "!"},
    "japanese": {"\u2581one": "今", "\u2581o": "日", "h": "は", "\u2581four": "。", "\u2581seven": "七"},
}


@pytest.mark.parametrize(
    ("name", "decoders"),
    [
        (RNNT, (GREEDY, ALSD)),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((RNNT, DECODERS[:-1]), (TDT, (GREEDY, ALSD)))),
    ],
)
def test_marks_come_late_and_scripts_have_no_spaces(bundled_model, tmp_path, speech, name, decoders):
    """Decoders without a graph, of a bundled model and of ones whose labels have other texts: "four" of the first
    segment, and more, are marks.
    """
    folder, model = tmp_path, bundled_model.parent / name
    rows = [(speech, options | SILENCE) for options in decoders]
    models = [with_piece_texts(model, folder / name, texts).directory for name, texts in TEXTS.items()]
    found = (
        recognize_together(StreamingRecognizer(each, (70, 6), len(rows)), rows, random.Random(1))
        for each in (model, *models)
    )
    for each in zip(*found, strict=True):
        check_marks_and_japanese(*map(segments, each))


def check_marks_and_japanese(plain: list[tuple], with_marks: list[tuple], in_japanese: list[tuple]) -> None:
    (spoken, *_), (marked, *others), (japanese, *_) = plain, with_marks, in_japanese
    text, processed_s, words, tokens, _ = spoken
    assert (text, marked[0], japanese[0]) == ("enter one oh four", "enter one oh.", "enter今日は。")
    assert marked[1] == japanese[1] == processed_s - 0.56, "silence counts from the word before the mark"
    assert marked[2][:-1] == words[:2] and marked[2][-1] == ("oh.", *words[2][1:])
    assert [text for text, *_ in japanese[2]] == ["enter", "今", "日", "は。"]
    assert [label for label, *_ in marked[3]] == [label for label, *_ in japanese[3]] == [label for label, *_ in tokens]
    assert any(tokens and "!" in text for text, _, _, tokens, _ in others)
    assert not any(
        text.startswith(("?", "!", ".")) or word[0] in "?!." for text, _, words, *_ in others for word in words
    )


def test_a_stream_that_ends_within_its_warm_up_has_an_empty_final_result(recognizer, speech):
    entries = recognize(recognizer, speech[: 4 * CHUNK_SAMPLES], [slice(None)], ENDPOINTS | {"warm_up_chunks": 9})
    assert [(entry.text, entry.is_final, entry.segment, entry.words) for entry in entries] == [("", True, 0, ())]


def test_segments_do_not_depend_on_requests_and_batches(case, speech):
    recognizer, chosen, whole = case
    signals = [speech, speech[70_000:]]
    expected = [whole, segments(recognize(recognizer, signals[1], [slice(None)], chosen))]
    assert min(map(len, expected)) > 2
    # Mates have other decoders or the other state, and some no endpoints.
    other_state = chosen | {"endpoint_state": RESET if chosen["endpoint_state"] == CARRY else CARRY}
    mates = [other | {"endpoint_tokens": "off"} for other in DECODERS[:3]]
    rows = [(signal, chosen) for signal in signals] + [(signals[1], other) for other in mates]
    rows.append((signals[1], other_state))
    entries = recognize_together(recognizer, rows, random.Random(str(chosen)))
    assert [segments(found) for found in entries[:2]] == expected
    assert all(len(segments(found)) == 1 for found in entries[2:-1])
    assert segments(entries[-1]) == segments(recognize(recognizer, signals[1], [slice(None)], other_state))


def test_a_segment_ends_in_each_pause(recognizer, speech):
    entries = recognize(recognizer, speech, pieces(speech, 560), SILENCE)
    finals = [entry for entry in entries if entry.is_final]
    assert [bool(final.text) for final in finals[:3]] == [True] * 3
    assert len(finals) in (3, 4), "the stream ends in the last pause"
    assert all(entry.stable_chars == len(entry.text) for entry in finals)
    for final in finals[:2]:
        silence_ms = 1000 * final.audio_processed_s - final.words[-1].end_ms
        assert 600 - 80 < silence_ms < 600 + 560 + 80, "up to a chunk later, and a frame is not covered to its end"


@pytest.mark.parametrize("options", [{}, {"decoder": "ctc"}], ids=["greedy", "ctc"])
def test_the_hypothesis_is_carried_through_endpoints(recognizer, speech, options):
    """For searches with one hypothesis, which the end of a segment does not change."""
    parts = pieces(speech, 560)
    whole = recognize(recognizer, speech, parts, options)
    entries = recognize(recognizer, speech, parts, options | ENDPOINTS | {"endpoint_state": CARRY})
    assert sum(entry.is_final for entry in entries) > 3
    assert [token.id for entry in entries for token in entry.tokens] == [
        token.id for entry in whole for token in entry.tokens
    ]
    assert [word[:3] for entry in entries for word in entry.words] == [
        word[:3] for entry in whole for word in entry.words
    ]


@pytest.mark.parametrize(
    "options",
    [*DECODERS[::2], *(pytest.param(each, marks=pytest.mark.nightly) for each in DECODERS[1::2])],
    ids=lambda options: options.get("decoder", "greedy"),
)
def test_a_reset_segment_is_that_of_its_encoder_frames_alone(recognizer, speech, options):
    """The encoder goes on, the decoder starts anew."""
    stage, options_of_all = recognizer._decoder, options | ENDPOINTS | {"endpoint_state": RESET}
    with patch.object(stage, "process_tickets", wraps=stage.process_tickets) as process:
        found = segments(recognize(recognizer, speech, pieces(speech, 300), options_of_all))
    assert len(found) > 3
    encoded, start = torch.cat([part for call in process.call_args_list for part in call.args[1]]), 0
    for text, processed_s, words, tokens, alternatives in found[:-1]:
        end = round((processed_s * SAMPLE_RATE_HZ + VIRTUAL_SAMPLES) / FRAME_SAMPLES)
        with recognizer.open_stream("alone", options) as stream:
            lease = recognizer.table.look_up("alone") if stream.push(np.zeros(0, np.float32)) else None
            (alone,) = decode(stage, [DecoderRequest(lease, encoded[start:end], 0, False, False, finalize=True)])
        assert (alone.text, [token[:3] for token in alone.tokens]) == (text, tokens)
        assert [alternative.text for alternative in alone.alternatives] == alternatives
        start_ms = 80 * start
        assert [(word.text, word.start_ms + start_ms, word.end_ms + start_ms) for word in alone.words] == words
        start = end


def test_an_endpoint_and_the_end_meet_in_one_request(bundled_model, speech):
    recognizer = StreamingRecognizer(bundled_model, (70, 1))
    border = recognize(recognizer, speech, [slice(None)], {"endpoint_silence_ms": 400})[0].audio_processed_s
    # The samples that complete the chunk of the first endpoint, and no more: windows reach 40 samples beyond.
    audio = speech[: round(border * SAMPLE_RATE_HZ) + 40]
    at_once = recognize(recognizer, audio, [slice(None)], {"endpoint_silence_ms": 400})
    apart = recognize(recognizer, audio, [slice(None), slice(0, 0)], {"endpoint_silence_ms": 400})
    assert [(bool(entry.text), entry.is_final) for entry in at_once] == [(True, True), (False, True)]
    assert segments(at_once) == segments(apart)
    assert at_once[0].audio_processed_s == border


def test_finalize_still_ends_a_segment(recognizer, speech):
    with recognizer.open_stream(options=ENDPOINTS) as stream:
        first = [*stream.push(speech[:50_000]).entries, *stream.finalize(speech[50_000:64_000]).entries]
        rest = [*stream.push(speech[64_000:99_000]).entries, *stream.finish(speech[99_000:]).entries]
    assert segments(first) == segments(recognize(recognizer, speech[:64_000], [slice(None)], ENDPOINTS))
    whole = recognize(recognizer, speech, [slice(None)], ENDPOINTS)
    words = [word[:3] for entry in whole for word in entry.words]
    assert [word[:3] for entry in first + rest for word in entry.words] == words


def test_the_default_of_the_recognizer_can_be_turned_off(bundled_model, speech):
    recognizer = StreamingRecognizer(bundled_model, decoding=DecodingConfig(endpoint_silence_ms=400))
    assert len(segments(recognize(recognizer, speech, [slice(None)], {}))) > 2
    assert len(segments(recognize(recognizer, speech, [slice(None)], {"endpoint_silence_ms": 0}))) == 1


@pytest.mark.parametrize("border", range(9))
def test_no_ctc_token_is_reported_twice(border):
    """The longest segment may end within one, which repeats until another label."""
    labels = [2, 0, 0, 0, 2, 0, 1, 1, 1, 2]
    frames = torch.nn.functional.one_hot(torch.tensor(labels), 3).float().log().unsqueeze(0)
    decoder = CtcStreamDecoder(GivenLogProbs(2), 1)
    decoder.open([0], [ResolvedOptions(decoder="ctc")])
    (before,) = decoder.decode(Chunk([0], frames[:, :border], torch.tensor([border]), [False]))
    decoder.begin_segment([0], [ResolvedOptions(decoder="ctc")])
    (after,) = decoder.decode(Chunk([0], frames[:, border:], torch.tensor([len(labels) - border]), [True]))
    first = [*before.stable, *before.unstable]
    assert [token.id for token in first + after.stable + after.unstable] == [0, 0, 1]
    assert [token.timestamp for token in first] + [border + token.timestamp for token in after.stable] == [1, 5, 6]


@pytest.mark.parametrize("phrases", [[["nine", 12.0]], [["nine nine", 12.0], ["seven", 1.0]]], ids=["words", "phrases"])
def test_phrases_of_a_graph_search_change_where_a_client_ends_a_segment(recognizers, speech, phrases):
    """A table has the boosts of single words, an automaton those of phrases."""
    audio, plain = speech[: 6 * SAMPLE_RATE_HZ], {"boosted_phrases": []}
    texts = []
    for changes in (None, {"boosted_phrases": phrases}, plain):
        with recognizers(RNNT).open_stream(options={"decoder": "wfst", "n_best": 2}) as stream:
            stream.finalize(NO_SAMPLES, {"boosted_phrases": phrases} if changes == plain else None)
            if changes == plain:
                stream.finalize(NO_SAMPLES, plain)
            stream.finalize(audio[:20_000], changes)
            result = stream.finish(audio[20_000:])
            assert result.alternatives[0].text == result.text
            texts.append(result.text.split())
    without, boosted, again = texts
    assert boosted.count("nine") > without.count("nine")
    assert again == without
