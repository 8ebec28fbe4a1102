"""Operations that steps launch on a device, counted on tensors without data, and programs that are captured.

A view and an allocation launch nothing. The counts are those of a batch of any size.
"""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from penstock import runtime
from penstock.decoding.beam.memory import BeamBuffers
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch
from penstock.decoding.greedy.memory import GreedyBuffers
from penstock.decoding.greedy.search import LabelLooping
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.transducer.networks import open_network
from penstock.encoder.state import EncoderState
from penstock.encoder.torch_step import TorchStep
from penstock.encoder.window.encoder import WindowEncoder
from penstock.graphs.program import EagerDriver, Program, steps_with_depth
from penstock.graphs.select import DriverChoice
from penstock.kernels.capability import TORCH
from penstock.model.bundle import Checkpoint
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.stages import decoder
from tests.helpers.decoding_graphs import write_word_loop
from tests.helpers.launches import Launches
from tests.helpers.offline_models import random_offline_encoder
from tests.helpers.random_models import head, random_checkpoint, random_encoder, with_encoder

META = torch.device("meta")
BATCH, FRAMES = 128, 7
SEED = 2
"""With it the predictor has one layer, as in published models."""
LAYER, OUTSIDE_OF_LAYERS, WINDOW_LAYER = 34, 90, 44
GREEDY_SEARCH, GREEDY_EMIT, ALSD_STEP = 25, 38, 117
PROGRAMS, BEAM_PROGRAMS = 15, 18
"""Programs of a hybrid model with a decoding graph."""


def launches(function: Callable[[], object]) -> int:
    with torch.inference_mode(), Launches() as counted:
        function()
    return counted.count


@pytest.fixture(autouse=True)
def meta_is_a_device(monkeypatch) -> None:
    monkeypatch.setattr(runtime, "check_device", lambda *_: None)


def encoder_launches(tmp_path, layers: int, dtype: torch.dtype) -> int:
    """Launches of a step of the encoder with this number of layers."""
    sizes = {"n_layers": layers, "subsampling_factor": 8, "use_bias": True, "has_conv_layer_norm": True}
    checkpoint = random_checkpoint(tmp_path, 1, with_encoder(random_encoder(1), **sizes))
    config = checkpoint.config.encoder
    state = EncoderState(config, config.contexts[0], BATCH, META, dtype)
    step = TorchStep(checkpoint, state, dtype)
    size = config.subsampling_factor * config.contexts[0].chunk_encoder_frames
    numbers = torch.zeros(BATCH, dtype=torch.int64, device=META)
    return launches(partial(step, numbers, torch.zeros(BATCH, size, config.mel_bins, device=META), numbers))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_encoder_step(tmp_path, dtype):
    one, two = (encoder_launches(tmp_path / str(layers), layers, dtype) for layers in (1, 2))
    assert 10 < two - one <= LAYER
    assert 10 < one - (two - one) <= OUTSIDE_OF_LAYERS


def window_launches(tmp_path, layers: int, mel_frames: list[int]) -> int:
    """Launches for windows of an offline model with this number of layers."""
    config = with_encoder(random_offline_encoder(1), n_layers=layers)
    encoder = WindowEncoder(random_checkpoint(tmp_path, 1, config), META, torch.float16)
    mels = [torch.zeros(frames, config.mel_bins, device=META) for frames in mel_frames]
    return launches(partial(encoder.encode, mels))


@pytest.mark.parametrize(("mel_frames", "budget"), [([640] * 32, WINDOW_LAYER), (range(600, 700, 3), WINDOW_LAYER + 1)])
def test_windows_of_similar_lengths(tmp_path, mel_frames, budget):
    one, two = (window_launches(tmp_path / str(layers), layers, list(mel_frames)) for layers in (1, 2))
    assert 10 < two - one <= budget


def step_launches(program: Program) -> dict[str, int]:
    """Launches of each step by its name; of steps of one name the most."""
    found: dict[str, int] = {}
    for _, step in steps_with_depth(program.body):
        name = next(iter(names_of(step)))
        found[name] = max(found.get(name, 0), launches(step))
    return found


def names_of(step: Callable) -> Iterator[str]:
    """The innermost names first: a step may wrap another one."""
    if isinstance(step, partial):
        for argument in step.args:
            if callable(argument):
                yield from names_of(argument)
        yield from names_of(step.func)
    else:
        yield step.__qualname__


def test_greedy_search(tmp_path):
    network = open_network(random_checkpoint(tmp_path, SEED, **head(())), META, kernels=TORCH)
    search = LabelLooping(network)
    workspace = GreedyBuffers(network, BATCH, FRAMES, FRAMES * search.max_symbols).workspace(BATCH)
    found = step_launches(search.program(workspace))
    assert 5 < found["LabelLooping._search_window"] <= GREEDY_SEARCH
    assert 5 < found["GreedySearch._emit"] <= GREEDY_EMIT


def test_alsd_step(tmp_path):
    network = open_network(random_checkpoint(tmp_path, SEED, **head(())), META, kernels=TORCH)
    search, sizes = BeamSearch(network, BeamAlgorithm.ALSD), BeamSizes()
    in_reach = sizes.carried_encoder_frames + FRAMES
    labels, columns = search.algorithm.max_labels(in_reach), search.algorithm.max_columns(in_reach)
    buffers = BeamBuffers(network, BATCH, FRAMES, sizes, labels, columns)
    found = step_launches(search.program(buffers.workspace(BATCH)))
    assert 50 < found["AlsdSearch.step"] <= ALSD_STEP


class Counting(EagerDriver):
    """Counts the programs that are captured."""

    name = "no_while_loops"

    def __init__(self):
        self.programs = 0

    def prepare(self, program: Program):
        self.programs += 1
        return super().prepare(program)


@pytest.mark.parametrize("has_beams", [False, True])
def test_captured_programs_of_a_hybrid_model_with_a_graph(golden_bundle, tmp_path, monkeypatch, has_beams):
    checkpoint: Checkpoint = golden_bundle("rnnt_hybrid")
    path = write_word_loop(tmp_path / "words.safetensors", checkpoint.tokenizer_path, ("a", "be"))
    driver, slots = Counting(), 600
    monkeypatch.setattr(decoder, "select_driver", lambda *_: DriverChoice(driver, "counted"))
    decoding = DecodingConfig(graph=str(path), wfst_max_active=64, capture_beams=has_beams)
    stage = decoder.DecoderStage(checkpoint, slots, SlotLedger(slots), decoding=decoding)
    assert set(stage.decoders) == {"greedy", "alsd", "aes", "ctc", "ctc_beam", "wfst"}
    assert 10 < driver.programs <= PROGRAMS + has_beams * BEAM_PROGRAMS
