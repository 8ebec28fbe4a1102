"""An old stream is as good and as cheap as a new one."""

import numpy as np
import pytest
import torch

from penstock import StreamingRecognizer, Token
from penstock.decoding.greedy.memory import fresh_states
from penstock.decoding.greedy.search import LabelLooping
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.decoding.transducer.networks import open_network
from penstock.pipeline.stages.decoder import DecoderStage
from tests.helpers.decoding import labels_of
from tests.helpers.golden import golden_samples
from tests.helpers.recognition import recognize_alone
from tests.helpers.streaming import cut

CHUNK_SAMPLES, CHUNK_ENCODER_FRAMES = 17920, 14
REQUEST_CHUNKS = 25  # 28 s, almost the most that a request may hold
REQUESTS = 5  # more than two minutes: pages are overwritten some twenty times


@pytest.fixture
def encoded(monkeypatch) -> list[torch.Tensor]:
    """The frames that reach the decoder."""
    frames: list[torch.Tensor] = []
    process = DecoderStage.process_tickets

    def record(stage: DecoderStage, tickets: list, encoded: list[torch.Tensor]) -> list:
        frames.extend(encoded)
        return process(stage, tickets, encoded)

    monkeypatch.setattr(DecoderStage, "process_tickets", record)
    return frames


def held_bytes(thing: object, seen: set[int] | None = None) -> int:
    """Bytes of all tensors and arrays that can be reached from an object of ours."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor | np.ndarray):
        return thing.nbytes
    parts = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
    if isinstance(thing, dict):
        parts += thing.values()
    elif isinstance(thing, list | tuple | set):
        parts += thing
    return sum(held_bytes(part, seen) for part in parts)


def request(number: int) -> np.ndarray:
    """Audio that does not repeat itself soon."""
    signal = golden_samples("long").numpy()
    gain = np.float32(0.6 + 0.4 * np.cos(number))
    return np.resize(np.roll(signal, 997 * number), CHUNK_SAMPLES * REQUEST_CHUNKS) * gain


def decoded_at_once(network: TransducerNetwork, encoded: torch.Tensor) -> list[tuple[int, int, int]]:
    rows, length = network.project_encoder(encoded[None]), torch.tensor([len(encoded)])
    hyps, _ = LabelLooping(network).decode(rows, length, fresh_states(network, 1))
    return [label[:3] for label in labels_of(hyps, 0)]


def test_minutes_of_audio(golden_bundle, encoded):
    """No state grows; frames are those of a later start, and tokens those of one decoding of all frames."""
    checkpoint = golden_bundle("tdt_hybrid")
    recognizer = StreamingRecognizer(checkpoint.directory, (70, 13), max_streams=2)
    stages = [recognizer._features, recognizer._encoder, recognizer._decoder, recognizer.table]
    stream, sizes = recognizer.open_stream(), []
    tokens: list[Token] = []
    for number in range(REQUESTS):
        tokens += stream.push(request(number)).tokens
        sizes.append(held_bytes(stages))
    tokens += stream.finish().tokens
    assert len(set(sizes)) == 1
    assert sizes[0] > 100_000

    whole = torch.cat(encoded)
    assert len(whole) == REQUESTS * REQUEST_CHUNKS * CHUNK_ENCODER_FRAMES + 1
    assert decoded_at_once(open_network(checkpoint), whole) == [token[:3] for token in tokens]
    assert tokens[-1].timestamp > len(whole) - 100

    encoded.clear()
    late = np.concatenate([request(REQUESTS - 2), request(REQUESTS - 1)])
    recognize_alone(recognizer, late, cut(len(late), 400000))
    assert_same_end(whole, torch.cat(encoded), reach_encoder_frames=2 * (70 + 14 + 7))


def assert_same_end(whole: torch.Tensor, later: torch.Tensor, reach_encoder_frames: int) -> None:
    """Compares the frames for which both streams received all audio within reach."""
    common = len(later) - reach_encoder_frames
    assert common > 300
    torch.testing.assert_close(later[-common:], whole[-common:], atol=1e-4, rtol=0)
    assert (later[:common] - whole[-len(later) :][:common]).abs().max() > 0.1  # the later one has less to look back on
