"""The encoder step by OpenVINO on a CPU: reads the state where it lies, and writes it back as the PyTorch step does."""

import functools
from typing import Any

import openvino as ov
import torch

from penstock.encoder.openvino_graph import StepGraph
from penstock.encoder.state import EncoderState
from penstock.encoder.torch_step import Encoded
from penstock.model.bundle import Checkpoint

_ANY_BATCH = -1


@functools.cache
def _core() -> ov.Core:
    """One for the process, never freed.

    Each takes a stack for signals and gives back that of the one before, which may have been freed by then: the next
    signal would end the process.
    """
    return ov.Core()


class OpenVinoStep:
    """One step of the network over the state.

    One model is compiled for one stream and one for several, each when it is first needed. Shapes that are fixed make
    a step of one stream a third faster (docs/log.md); every further fixed batch size would cost half a second at the
    start and a copy of the weights.
    """

    def __init__(self, checkpoint: Checkpoint, state: EncoderState):
        self._tensors = checkpoint.tensors("encoder.")  # now: the file may be gone when the second model is compiled
        self._state = state
        self._requests: dict[int, Any] = {}

    def __call__(self, slots: torch.Tensor, mel: torch.Tensor, valid_mel_frames: torch.Tensor) -> Encoded:
        """As `StreamingEncoder.step`."""
        state, batch, pages = self._state, len(slots), self._state.pages_per_slot
        # 1) the pages of the streams, by their ages
        seen = state.chunks_seen.index_select(0, slots)
        page = torch.remainder(seen, pages)
        row = torch.where(seen < pages, page, page + pages)
        # 2) run the network
        inputs = {
            "mel": mel.float(),
            "valid_mel_frames": valid_mel_frames.int(),
            "slots": slots.int(),
            "row": row.int(),
        }
        request = self._request(1 if batch == 1 else _ANY_BATCH)
        for name, values in inputs.items():
            inputs[name] = values.contiguous()  # keeps the memory until the request has run
            request.set_tensor(name, ov.Tensor(inputs[name].numpy(), shared_memory=True))
        request.infer()
        # 3) write the state back; outputs are the request's memory, which its next run overwrites
        encoded, new, tails, *columns = (torch.from_numpy(tensor.data) for tensor in request.output_tensors)
        layers = state.config.n_layers
        new, tails = new.view(layers, batch, new.shape[1], -1), tails.view(layers, batch, *tails.shape[1:])
        state.scatter_chunk(slots, seen, page, new, tails, columns)
        factor = state.config.subsampling_factor
        return Encoded(encoded.clone(), (valid_mel_frames + (factor - 1)) // factor)

    def _request(self, batch: int) -> Any:
        """The compiled model for a batch size, with the state's memory as inputs."""
        if batch in self._requests:
            return self._requests[batch]
        # Float32 on CPUs that have bfloat16, too; no thread is tied to a core that another process may need.
        options = {
            "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "ENABLE_CPU_PINNING": False,
        }  # fmt: skip
        model = StepGraph(self._tensors, self._state, batch).build()
        request = _core().compile_model(model, "CPU", options).create_infer_request()
        state = self._state
        memory = {f"column.{layer}": columns for layer, columns in enumerate(state.subsampling_columns)}
        for layer in range(state.config.n_layers):
            memory[f"tail.{layer}"] = state.conv_tails[layer]
            memory[f"kv.{layer}"] = state.keys_values(layer)
        for name, values in memory.items():
            request.set_tensor(name, ov.Tensor(values.numpy(), shared_memory=True))
        self._requests[batch] = request
        return request
