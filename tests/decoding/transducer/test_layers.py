"""Language prompts before a head are the two layers written out plainly, folded into the head or not; int8."""

import dataclasses
import itertools

import pytest
import torch

from penstock.decoding.ctc import CtcHead
from penstock.decoding.transducer.layers import FrameProjection, Lstm
from penstock.decoding.transducer.networks import open_network
from penstock.encoder import int8
from penstock.encoder.int8 import activation_bits
from penstock.encoder.precision import relative_error
from penstock.model.bundle import Checkpoint
from penstock.model.config import FACTORIZED, STANDARD, PromptConfig
from tests.helpers.random_models import SMALL_ENCODER, random_checkpoint, with_prompts

WIDTH, HIDDEN, PROMPTS = 16, 40, 5
PROMPT = PromptConfig(PROMPTS, HIDDEN, {"en": 0, "de": 4}, "en")


@pytest.fixture
def checkpoint(tmp_path) -> Checkpoint:
    return with_prompts(tmp_path / "prompts", random_checkpoint(tmp_path, 1), PROMPT)


def prompted(checkpoint: Checkpoint, frames: torch.Tensor, prompt: int) -> torch.Tensor:
    """`W2 relu(W1 [x; onehot(p)] + b1) + b2` of frames [T, D], float64; the bundle's table is W1's columns and b1."""
    tensors = {name: tensor.double() for name, tensor in checkpoint.tensors("prompt.").items()}
    wide = torch.cat([tensors["prompt.in.weight"], tensors["prompt.table"].t()], dim=1)
    one_hot = torch.nn.functional.one_hot(torch.tensor(prompt), PROMPTS).expand(len(frames), -1)
    hidden = torch.relu(torch.cat([frames.double(), one_hot.double()], dim=1) @ wide.t())
    return hidden @ tensors["prompt.out.weight"].t() + tensors["prompt.out.bias"]


@pytest.mark.parametrize("outputs", [3, 26, 27, 200])
def test_each_row_has_its_own_prompt_whatever_is_folded(checkpoint, outputs):
    """W2 is folded where outputs * HIDDEN < WIDTH * HIDDEN + outputs * WIDTH: below 26.7 outputs."""
    generator = torch.Generator().manual_seed(outputs)
    weight, bias = torch.randn(outputs, WIDTH, generator=generator), torch.randn(outputs, generator=generator)
    projection = FrameProjection(checkpoint, weight, bias)
    assert projection.is_folded == (outputs <= 26)
    encoded, prompts = torch.randn(4, 7, WIDTH, generator=generator), torch.tensor([4, 0, 4, 2])
    found = projection(encoded, prompts)
    for row, prompt in enumerate(prompts.tolist()):
        expected = prompted(checkpoint, encoded[row], prompt) @ weight.double().t() + bias.double()
        torch.testing.assert_close(found[row].double(), expected, rtol=1e-5, atol=1e-4)
    assert projection(encoded[:, :0], prompts).shape == (4, 0, outputs)
    assert not torch.allclose(found[0], projection(encoded, torch.tensor([0, 0, 4, 2]))[0])


@pytest.mark.parametrize("kind", [STANDARD, FACTORIZED])
def test_a_transducer_projects_prompted_frames(tmp_path, kind):
    checkpoint = with_prompts(tmp_path / "prompts", random_checkpoint(tmp_path, 2, kind=kind), PROMPT)
    network = open_network(checkpoint)
    encoded = torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(0))
    found = network.project_encoder(encoded, torch.tensor([1, 3]))
    assert found.shape == (2, 6, network.frame_width)
    names = ("joint.encoder",) if kind == STANDARD else ("blank.encoder", "acoustic")
    tensors = checkpoint.tensors(*names)
    weight = torch.cat([tensors[f"{name}.weight"] for name in names]).double()
    bias = torch.cat([tensors[f"{name}.bias"] for name in names]).double()
    for row, prompt in enumerate((1, 3)):
        expected = prompted(checkpoint, encoded[row], prompt) @ weight.t() + bias
        torch.testing.assert_close(found[row].double(), expected, rtol=1e-5, atol=1e-4)


def test_a_ctc_head_reads_prompted_frames(golden_bundle):
    checkpoint = golden_bundle("prompt_hybrid")
    head, tensors = CtcHead(checkpoint), checkpoint.tensors("ctc.", "prompt.")
    encoded = torch.randn(1, 9, checkpoint.config.encoder.d_model, generator=torch.Generator().manual_seed(0))
    for prompt in (0, 3):
        rows = encoded[0] @ tensors["prompt.in.weight"].t() + tensors["prompt.table"][prompt]
        frames = torch.relu(rows) @ tensors["prompt.out.weight"].t() + tensors["prompt.out.bias"]
        expected = torch.log_softmax(frames @ tensors["ctc.weight"].t() + tensors["ctc.bias"], dim=-1)
        found = head.log_probs(encoded, torch.tensor([prompt]))[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_model_without_prompts_ignores_them(tmp_path):
    network = open_network(random_checkpoint(tmp_path, 3))
    encoded = torch.randn(2, 3, SMALL_ENCODER.d_model)
    assert torch.equal(network.project_encoder(encoded), network.project_encoder(encoded, torch.tensor([1, 0])))


def test_bundles_without_prompts_stay_of_version_1(tmp_path, checkpoint):
    plain = random_checkpoint(tmp_path / "plain", 1)
    assert '"version": 1' in (plain.directory / "config.json").read_text()
    assert '"prompt"' not in (plain.directory / "config.json").read_text()
    assert '"version": 2' in (checkpoint.directory / "config.json").read_text()
    assert Checkpoint(checkpoint.directory).config.prompt == PROMPT
    assert dataclasses.replace(checkpoint.config, prompt=None) == plain.config


def lstm(hidden: int, labels: int) -> Lstm:
    """Two layers of width `hidden` after an embedding, random, in NeMo's scale."""
    generator = torch.Generator().manual_seed(hidden)
    tensors = {"predictor.embedding.weight": torch.randn(labels + 1, hidden, generator=generator)}
    for layer, part in itertools.product(range(2), ("input", "hidden")):
        weight = 2 * torch.rand(4 * hidden, hidden, generator=generator) - 1
        tensors[f"predictor.lstm.{layer}.{part}_weight"] = weight * 2 / hidden**0.5
        tensors[f"predictor.lstm.{layer}.{part}_bias"] = torch.zeros(4 * hidden)
    return Lstm(tensors, 2)


def follow(predictor: Lstm, labels: torch.Tensor) -> torch.Tensor:
    """Outputs [U, N, H] after each of labels [U, N]."""
    state = tuple(torch.zeros(labels.shape[1], 2, predictor.label_gates.shape[1] // 4) for _ in range(2))
    outputs = []
    for step in labels:
        output, state = predictor.step(step, state)
        outputs.append(output)
    return torch.stack(outputs)


@pytest.mark.skipif(not activation_bits(), reason="this torch has no int8 product for this CPU")
def test_a_predictor_in_int8_follows_that_of_float32(monkeypatch):
    small, predictor, exact = lstm(256, 30), lstm(264, 30), lstm(264, 30)
    assert small.use_int8().products == {"int8": 0, "float32": 0}
    assert predictor.use_int8().products == {"int8": 3, "float32": 0}
    labels = torch.randint(31, (40, 5), generator=torch.Generator().manual_seed(1))
    found, expected = follow(predictor, labels), follow(exact, labels)
    for steps in (slice(0, 10), slice(30, 40)):  # errors do not add up
        assert 0 < relative_error(found[steps], expected[steps]) < 0.05
    assert torch.equal(follow(predictor, labels[:, 3:4])[:, 0], found[:, 3]), "a row depends on the others"
    monkeypatch.setattr(int8, "MAX_ERROR", 0.0)
    assert exact.use_int8().products == {"int8": 0, "float32": 3}
