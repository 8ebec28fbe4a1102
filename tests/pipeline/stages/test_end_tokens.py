"""End tokens of a model, such as <EOU>: segments end where the search writes one, as if they were cut there by hand."""

from unittest.mock import patch

import numpy as np
import pytest
import torch

from penstock import StreamingRecognizer
from penstock.endpointing.rules import CARRY, RESET, EndpointRules
from penstock.errors import SettingError
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.stages.decoder import DecoderStage
from tests.helpers.random_models import with_end_tokens
from tests.helpers.segments import recognize, segments, speech_with_pauses
from tests.helpers.stage_requests import DecoderRequest, decode

CONTEXT = AttentionContext(70, 1)
END_PIECES = (" four", " eight")
"""The bundled model writes them at known frames, twice one after the other."""
ON, OFF = {"endpoint_tokens": "on"}, {"endpoint_tokens": "off"}
DECODERS = (
    {"decoder": "greedy"},
    {"decoder": "greedy", "boosted_phrases": [["four", 3.0], "seven"]},
    {"decoder": "alsd", "n_best": 2},
    {"decoder": "aes", "n_best": 1},
    {"decoder": "ctc"},
    {"decoder": "ctc_beam"},
)
NAMES = ["greedy", "boosted", "alsd", "aes", "ctc", "ctc_beam"]
of_each_decoder = pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name, marks=[pytest.mark.nightly] * (name in ("boosted", "aes", "ctc_beam")))
        for name, options in zip(NAMES, DECODERS, strict=True)
    ],
)


@pytest.fixture(scope="module")
def checkpoint(bundled_model, tmp_path_factory) -> Checkpoint:
    return with_end_tokens(bundled_model, tmp_path_factory.mktemp("model"), END_PIECES)


@pytest.fixture(scope="module")
def recognizer(checkpoint) -> StreamingRecognizer:
    return StreamingRecognizer(checkpoint.directory, CONTEXT, max_streams=8)


@pytest.fixture(scope="module")
def plain(bundled_model) -> StreamingRecognizer:
    """The same model, in which these tokens are words."""
    return StreamingRecognizer(bundled_model, CONTEXT, max_streams=8)


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    return speech_with_pauses()


def labels(entries) -> list[tuple[int, int]]:
    return [token[:2] for entry in entries for token in entry.tokens]


def cut_by_hand(recognizer: StreamingRecognizer, chunks: list[torch.Tensor], options: dict) -> list[tuple]:
    """Text and tokens of each segment, finalized after the first chunk whose best hypothesis has an end token."""
    stage: DecoderStage = recognizer._decoder
    end_tokens, found, tokens = set(recognizer.config.end_tokens), [], []
    with recognizer.open_stream("by hand", options | OFF) as stream:
        stream.push(np.zeros(0, np.float32))
        lease = recognizer.table.look_up("by hand")
        for number, chunk in enumerate(chunks, start=1):
            (result,) = decode(stage, [DecoderRequest(lease, chunk, 0, False, False)])
            best = [*result.tokens, *stage._texts[lease.slot].unstable]
            tokens += result.tokens
            if number == len(chunks) or any(token.id in end_tokens for token in best):
                nothing = torch.zeros(0, chunk.shape[1])
                (final,) = decode(stage, [DecoderRequest(lease, nothing, 0, False, False, finalize=True)])
                stage._begin([lease.slot])
                stage._endpoints.open(lease.slot, EndpointRules())
                tokens += final.tokens
                found.append((final.text, [token[:3] for token in tokens if token.id not in end_tokens]))
                tokens = []
    return found


@of_each_decoder
def test_segments_are_those_cut_by_hand(recognizer, speech, options):
    """At an end token the decoder starts anew, and the encoder goes on."""
    stage = recognizer._decoder
    with patch.object(stage, "process_tickets", wraps=stage.process_tickets) as process:
        found = segments(recognize(recognizer, speech, [slice(None)], options | {"endpoint_state": RESET}))
    frames = torch.cat([part for call in process.call_args_list for part in call.args[1]])
    expected = cut_by_hand(recognizer, list(frames.split(CONTEXT.chunk_encoder_frames)), options)
    compared = [(text, tokens) for text, _, _, tokens, _ in found]
    assert len(compared) > 2
    # CTC carries its open token: a repeated one ends no second segment, which counts anew
    if options["decoder"] == "ctc":
        compared, expected = (
            [(one[0], [token[::2] for token in one[1]]) for one in some if one[1]] for some in (compared, expected)
        )
    assert compared == expected
    for text, _, words, _, alternatives in found:
        assert " ".join(word[0] for word in words) == text
        assert not {"four", "eight"} & set(text.split())
        assert not alternatives or alternatives[0] == text


@pytest.mark.parametrize("decoder", ["greedy", "ctc"])
def test_carried_hypotheses_are_those_of_the_model_without_end_tokens(recognizer, plain, speech, decoder):
    options = {"decoder": decoder}
    entries = recognize(recognizer, speech, [slice(None)], options | {"endpoint_state": CARRY})
    found = segments(entries)
    whole = recognize(plain, speech, [slice(None)], options)
    ends = [token.timestamp for entry in whole for token in entry.tokens if token.id in recognizer.config.end_tokens]
    assert len(ends) == 5
    assert [token.id for entry in entries for token in entry.tokens] == [
        token.id for entry in whole for token in entry.tokens if token.id not in recognizer.config.end_tokens
    ]
    # The segment ends with the chunk of its end token: chunks of two frames, the last hop of which audio does not fill.
    borders_s = [(2 * (end // 2) + 2) * 0.08 - 0.07 for end in ends]
    assert [processed_s for _, processed_s, *_ in found] == pytest.approx([*borders_s, len(speech) / 16_000])


@of_each_decoder
def test_without_the_rule_a_segment_goes_on_and_only_text_and_words_lack_them(recognizer, plain, speech, options):
    found = recognize(recognizer, speech, [slice(0, 70_001), slice(70_001, None)], options | OFF)
    whole = recognize(plain, speech, [slice(0, 70_001), slice(70_001, None)], options)
    assert labels(found) == labels(whole)
    assert [entry.is_final for entry in found] == [False, True]
    kept = [word for word in whole[-1].text.split() if word not in ("four", "eight")]
    assert found[-1].text.split() == [word.text for entry in found for word in entry.words] == kept
    assert len(kept) < len(whole[-1].text.split())


def test_silence_counts_from_the_last_word_not_from_an_end_token(recognizer, speech):
    """The first recording ends with " four" at frame 22, after a word that ends at frame 19."""
    options = OFF | {"endpoint_silence_ms": 400}
    first, *_ = segments(recognize(recognizer, speech, [slice(None)], options))
    assert first[0] == "enter one oh"
    assert first[1] == pytest.approx(24 * 0.08 - 0.07)


def test_a_slot_forgets_the_rule_of_its_last_stream(checkpoint, speech):
    recognizer = StreamingRecognizer(checkpoint.directory, CONTEXT, max_streams=1)
    counts = [len(segments(recognize(recognizer, speech, [slice(None)], one))) for one in (ON, OFF, {}, OFF)]
    assert counts == [counts[0], 1, counts[0], 1]
    assert counts[0] > 3


def test_the_default_of_the_recognizer_can_be_off(checkpoint, bundled_model, speech):
    recognizer = StreamingRecognizer(checkpoint.directory, CONTEXT, decoding=DecodingConfig(endpoint_tokens="off"))
    assert len(segments(recognize(recognizer, speech, [slice(None)], {}))) == 1
    assert len(segments(recognize(recognizer, speech, [slice(None)], ON))) > 3
    with pytest.raises(SettingError, match="endpoint_tokens is 'on', but the model has no end tokens; accepted: off"):
        StreamingRecognizer(bundled_model, decoding=DecodingConfig(endpoint_tokens="on"))
