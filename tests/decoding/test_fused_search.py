"""Greedy search by kernels finds what it finds in torch; the option is read and rejected by name."""

import random

import pytest
import torch

from benchmarks.penstock_decoders import FrameLooping, UnprojectedNetwork
from penstock.decoding.greedy.captured_search import CapturedSearch
from penstock.decoding.greedy.memory import fresh_states
from penstock.decoding.greedy.search import LabelLooping
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.decoding.transducer.networks import open_network
from penstock.errors import PenstockError
from penstock.graphs.select import select_driver
from penstock.kernels import capability
from tests.helpers.automata import fusion_states, random_fusion
from tests.helpers.decoding import assert_same_labels, decode_in_chunks, labels_of, random_streams
from tests.helpers.random_models import random_checkpoint
from tests.kernels.conftest import kernel_device  # noqa: F401 - a fixture

SEARCHES = (LabelLooping, FrameLooping)
DURATIONS = ((), (0, 2, 4))
LENGTHS = (9, 0, 6)
WEIGHTS, PHRASES = [0.4, 0.0, -0.3], [1, 0, 2]


def decode(network: TransducerNetwork, kind: type, has_fusion: bool, driver: str | None = None) -> list[list]:
    """Decodes three streams whole, with NaN after their ends."""
    device = network.device
    fusion = random_fusion(network.blank, device) if has_fusion else None
    search = kind(network, max_symbols=3, fusion=fusion)
    if driver is not None:
        search = CapturedSearch(search, select_driver(driver, device).driver, 4, 5)
    streams = random_streams(1, LENGTHS)
    encoded = torch.nn.utils.rnn.pad_sequence(streams, batch_first=True, padding_value=torch.nan).to(device)
    states = fresh_states(network, 3)
    if has_fusion:
        states = states._replace(fusion=fusion_states(WEIGHTS, PHRASES, device))
    hyps, _ = search.decode(network.project_encoder(encoded), torch.tensor(LENGTHS, device=device), states)
    host = hyps.to_host()
    return [labels_of(host, row) for row in range(3)]


@pytest.mark.parametrize("has_fusion", [False, True])
@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("kind", SEARCHES)
def test_fused_is_torch(tmp_path, kernel_device, kind, durations, has_fusion):  # noqa: F811
    checkpoint = random_checkpoint(tmp_path, 1, durations=durations, blank_rate=0.5)
    plain, fused = (open_network(checkpoint, kernel_device, kernels=k) for k in ("torch", "fused"))
    assert (plain.kernels, fused.kernels) == ("torch", "fused")
    expected = decode(plain, kind, has_fusion)
    assert sum(map(len, expected)) > 3
    assert_same_labels(decode(fused, kind, has_fusion), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("driver", ["no_while_loops", "full_graph"])
@pytest.mark.parametrize("has_fusion", [False, True])
@pytest.mark.parametrize("durations", DURATIONS)
def test_captured_fused_is_torch(tmp_path, durations, has_fusion, driver):
    if not capability.available("cuda"):
        pytest.skip(capability.why_unavailable("cuda"))
    checkpoint = random_checkpoint(tmp_path, 1, durations=durations, blank_rate=0.5)
    plain, fused = (open_network(checkpoint, "cuda", kernels=k) for k in ("torch", "fused"))
    assert_same_labels(decode(fused, LabelLooping, has_fusion, driver), decode(plain, LabelLooping, has_fusion))


def test_torch_chooses_with_extra_among_labels_alone(tmp_path):
    network = open_network(random_checkpoint(tmp_path, 3, durations=(0, 2, 4)))
    frames = network.project_encoder(torch.stack(random_streams(2, (4, 4))))
    predictions, extra = network.start(2).projected, torch.zeros(2, network.blank)
    extra[:, 7] = 99.0
    plain, chosen = network.choose(frames, predictions), network.choose(frames, predictions, extra)
    assert (chosen.label == 7).all()
    assert torch.equal(chosen.score, plain.labels[..., 7])
    assert torch.equal(chosen.is_blank, plain.is_blank)
    assert torch.equal(chosen.duration, plain.duration)


def test_a_cpu_takes_torch_and_rejects_by_name(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    checkpoint = random_checkpoint(tmp_path, 1)
    assert open_network(checkpoint).kernels == "torch"
    assert UnprojectedNetwork(checkpoint).kernels == "torch"
    with pytest.raises(PenstockError, match='kernels "fused" are not possible: '):
        open_network(checkpoint, kernels="fused")
    with pytest.raises(PenstockError, match="'quick' are unknown: one of auto, torch, fused"):
        open_network(checkpoint, kernels="quick")


def test_auto_depends_on_the_device(monkeypatch, caplog):
    monkeypatch.setattr(capability, "why_unavailable", lambda device: None)
    assert capability.resolve("auto", "cuda") == "fused"
    assert capability.resolve("auto", "cuda", torch.float64) == "torch"
    assert capability.resolve("torch", "cuda") == "torch"
    monkeypatch.setattr(capability, "why_unavailable", lambda device: "no C compiler")
    assert capability.resolve("auto", "cuda") == "torch" and "kernels do not run here" in caplog.text


@pytest.mark.parametrize("kind", SEARCHES)
def test_fused_in_chunks(tmp_path, monkeypatch, kind):
    pytest.importorskip("triton", reason="the Triton language is not installed: extra `kernels`")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    checkpoint = random_checkpoint(tmp_path, 2, durations=(0, 2, 4), blank_rate=0.5)
    streams, found = random_streams(4, (7, 5)), []
    for kernels in ("fused", "torch"):
        network = open_network(checkpoint, kernels=kernels)
        found.append(decode_in_chunks(network, kind(network), streams, random.Random(1)))
    assert_same_labels(*found)
