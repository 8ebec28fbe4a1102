"""The computed memory on a CUDA device: buffers to the byte, activations from below, and the rejection."""

from types import SimpleNamespace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from penstock.decoding.greedy.memory import GreedyBuffers
from penstock.decoding.sizes import WfstSizes
from penstock.decoding.tensors.tensor_tree import leaves
from penstock.decoding.transducer.networks import open_network
from penstock.decoding.wfst.captured_search import _empty_chunk
from penstock.encoder.state import EncoderState
from penstock.encoder.torch_step import TorchStep
from penstock.model.bundle import Checkpoint
from penstock.model.config import FACTORIZED, AttentionContext
from penstock.pipeline.memory.device_memory import (
    DeviceMemory,
    activations,
    device_memory,
    greedy_buffer_bytes,
    wfst_bytes,
)
from penstock.pipeline.options.decoding_config import DecodingConfig
from tests.helpers.random_models import random_checkpoint

ROWS, FRAMES, LABELS = 5, 7, 21
META = torch.device("meta")


def size_of(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class PeakMemory(TorchDispatchMode):
    """Bytes of all storages that operations have made and that are alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {each.untyped_storage()._cdata for each in tree_leaves(args) if isinstance(each, torch.Tensor)}
        found = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage())._cdata not in given:
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return found


@pytest.mark.parametrize("kind", ["rnnt_hybrid", "tdt_hybrid", FACTORIZED])
def test_buffers_of_a_captured_greedy_search(golden_bundle, tmp_path, kind):
    checkpoint = random_checkpoint(tmp_path, 1, kind=kind) if kind == FACTORIZED else golden_bundle(kind)
    buffers = GreedyBuffers(open_network(checkpoint), ROWS, FRAMES, LABELS)
    tensors = [tensor for value in vars(buffers).values() if not isinstance(value, int) for tensor in leaves(value)]
    assert greedy_buffer_bytes(checkpoint.config.transducer, ROWS, FRAMES, LABELS) == size_of(tensors)


def test_buffers_of_a_captured_graph_search():
    sizes, labels = WfstSizes(128, 256, 64), 30
    search = SimpleNamespace(graph=SimpleNamespace(device=torch.device("cpu"), vocabulary_size=labels), sizes=sizes)
    assert ROWS * wfst_bytes(sizes, labels, FRAMES) == size_of(leaves(_empty_chunk(search, ROWS, FRAMES)))


@pytest.mark.parametrize("context", [(70, 0), (70, 6), (70, 13)])
def test_activations_of_an_encoder_step_are_between_half_and_all_of_its_memory(bundled_model, context):
    """On tensors without data, where the whole batch is subsampled at once, as on a GPU."""
    checkpoint, chosen = Checkpoint(bundled_model), AttentionContext(*context)
    config = checkpoint.config.encoder
    state = EncoderState(config, chosen, ROWS, META, torch.float32)
    step = TorchStep(checkpoint, state, torch.float32)
    mel = torch.zeros(ROWS, config.subsampling_factor * chosen.chunk_encoder_frames, config.mel_bins, device=META)
    slots = torch.arange(ROWS, device=META)
    with torch.inference_mode(), PeakMemory() as memory:
        step(slots, mel, torch.full_like(slots, mel.shape[1]))
    computed = 4 * ROWS * activations(config, chosen)
    assert 0.5 * memory.peak <= computed <= memory.peak


def test_parts_grow_with_what_they_depend_on(golden_bundle):
    config = golden_bundle("rnnt_hybrid").config
    context = config.encoder.contexts[0]

    def memory(streams: int = 64, number_bytes: int = 4, **decoding) -> DeviceMemory:
        return device_memory(config, context, DecodingConfig(**decoding), streams, number_bytes)

    assert memory(number_bytes=2).weights < memory().weights
    assert memory(number_bytes=2).streams < memory().streams < memory(streams=128).streams
    assert memory(streams=2000).encoder_step == memory(streams=1500).encoder_step > memory().encoder_step
    assert memory(streams=2000).searches == memory(streams=1500).searches > memory().searches
    assert memory(capture_beams=True).searches > memory().searches > memory(cuda_graphs="no_graphs").searches == 0
    assert memory(phrase_memory_mib=64).phrases == 64 * 2**20
