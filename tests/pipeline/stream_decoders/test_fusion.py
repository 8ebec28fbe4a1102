"""Many streams, each with phrases of its own, that come and go while others decode: each as it would be alone."""

import random

import pytest
import torch

from penstock.errors import StreamError
from penstock.graphs.no_while_loops import NoWhileLoopsDriver
from penstock.graphs.select import DriverChoice
from penstock.model.bundle import Checkpoint
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.options.offers import DecoderOffer
from penstock.pipeline.options.stream_options import parse_stream_options
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.stages import decoder
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.pipeline.stream_decoders.fusion import StreamFusion
from tests.helpers.fake_capture import FakeCapture
from tests.helpers.stage_requests import DecoderRequest, decode

STREAMS, SLOTS, MOST_FRAMES = 32, 12, 8
WORDS = ("seven", "two", "nine", "erase", "help", "start", "stop", "yes", "no", "go", "zero")


def phrases(chance: random.Random) -> list[tuple[str, float]]:
    texts = {" ".join(chance.choices(WORDS, k=chance.randint(1, 3))) for _ in range(6)}
    return [(text, chance.uniform(1.0, 5.0)) for text in sorted(texts)]


class Streams:
    """Audio of each stream, and how it decodes."""

    def __init__(self, checkpoint: Checkpoint):
        width, tokenizer = checkpoint.config.encoder.d_model, Tokenizer(checkpoint.tokenizer_path)
        chance, generator = random.Random(1), torch.Generator().manual_seed(1)
        lengths = [chance.randint(1, MOST_FRAMES) for _ in range(STREAMS)]
        self.frames = [2.0 * torch.randn(length, width, generator=generator) for length in lengths]
        beams = {5: "alsd", 10: "aes", 20: "alsd", 25: "aes"}
        kinds = [{"decoder": beams.get(stream, "greedy")} for stream in range(STREAMS)]
        self.options = [
            parse_stream_options(
                {**kind, "boosted_phrases": phrases(chance)}, DEFAULT_DECODING, tokenizer, DecoderOffer({})
            )
            for kind in kinds
        ]

    def request(self, stream: int, lease: Lease, begin: int, end: int) -> DecoderRequest:
        whole, is_start = self.frames[stream], begin == 0
        options = self.options[stream] if is_start else None
        return DecoderRequest(lease, whole[begin:end], 0, is_start, end >= len(whole), options)


def words_of(result) -> tuple:
    assert not isinstance(result, StreamError), result
    return result.text, tuple(token[:2] for token in result.tokens)


def test_the_memory_of_all_lists_is_a_setting(golden_bundle):
    checkpoint = golden_bundle("rnnt_hybrid")
    tokenizer = Tokenizer(checkpoint.tokenizer_path)
    few, many = (
        StreamFusion(checkpoint, tokenizer, DecodingConfig(phrase_memory_mib=mib), 1)._phrases.automaton.states
        for mib in (16, 64)
    )
    assert many == pytest.approx(4 * few, rel=0.01)


@pytest.fixture
def streams(golden_bundle) -> Streams:
    return Streams(golden_bundle("rnnt_hybrid"))


@pytest.mark.parametrize("is_captured", [False, True])
def test_each_is_as_alone(golden_bundle, streams, is_captured, monkeypatch):
    """Searches with and without phrases change from chunk to chunk."""
    checkpoint, chance = golden_bundle("rnnt_hybrid"), random.Random(2)
    with monkeypatch.context() as patch:
        if is_captured:
            patch.setattr(decoder, "MAX_CAPTURED_BATCH", 8)
            patch.setattr(
                decoder, "select_driver", lambda *_: DriverChoice(NoWhileLoopsDriver(FakeCapture()), "a test")
            )
        together = DecoderStage(checkpoint, SLOTS, SlotLedger(SLOTS), decoding=DecodingConfig(capture_beams=True))
    assert together.driver_name == ("no_while_loops" if is_captured else "no_graphs")
    alone = DecoderStage(checkpoint, 1, SlotLedger(1))
    waiting, live, found = list(range(STREAMS)), {}, {}  # live: stream -> (lease, frames so far)
    free = list(range(SLOTS))
    while waiting or live:
        for _ in range(min(len(waiting), len(free), chance.randint(0, 8))):
            stream = waiting.pop(0)
            live[stream] = Lease(free.pop(chance.randrange(len(free))), stream + 1), 0
        rows = [stream for stream in live if chance.random() < 0.7]
        ends = [live[stream][1] + chance.randint(1, MOST_FRAMES) for stream in rows]
        requests = [streams.request(s, *live[s], end) for s, end in zip(rows, ends, strict=True)]
        results = decode(together, requests)
        for stream, end, result in zip(rows, ends, results, strict=True):
            text, tokens = words_of(result)
            found[stream] = text, found.get(stream, ("", ()))[1] + tokens
            live[stream] = live[stream][0], end
            if end >= len(streams.frames[stream]):
                free.append(live.pop(stream)[0].slot)
    plain = DecoderStage(checkpoint, STREAMS, SlotLedger(STREAMS))
    without = [
        DecoderRequest(Lease(stream, 1), whole, 0, True, True, streams.options[stream].replace(phrases=()))
        for stream, whole in enumerate(streams.frames)
    ]
    unchanged = sum(found[stream] == words_of(result) for stream, result in enumerate(decode(plain, without)))
    assert unchanged < STREAMS, "phrases make a difference"
    for stream, whole in enumerate(streams.frames):
        (result,) = decode(alone, [streams.request(stream, Lease(0, stream + 1), 0, len(whole))])
        assert found[stream] == words_of(result), stream
