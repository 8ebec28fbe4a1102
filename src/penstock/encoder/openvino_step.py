"""The encoder step by OpenVINO on a CPU: reads the state where it lies, and writes it back as the PyTorch step does."""

import functools
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import torch

from penstock.encoder.openvino_graph import StepGraph
from penstock.encoder.state import EncoderState
from penstock.encoder.torch_step import Encoded
from penstock.model.bundle import Checkpoint
from penstock.runtime import trim_heap, use_huge_pages

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""A model of fixed shapes is up to 1.6 times as fast as one for any batch. Each takes half a second to compile, and
memory of about twice the weights."""
_FRAMES_PER_RUN = 14
"""One more run of a model costs about as much as this many more frames in a run."""
_ANY_BATCH = -1


@functools.cache
def _core() -> ov.Core:
    """The core of the process, never freed.

    Each takes a stack for signals and gives back that of the one before, which may have been freed by then: the next
    signal would end the process.
    """
    return ov.Core()


def plan_batches(chunk_frames: int) -> list[list[int]]:
    """For each number of streams up to the largest size: the sizes of the batches that cost least, the largest first.

    The last one may have streams to spare.
    """
    plans: list[list[int]] = [[]]
    costs = [0]
    for streams in range(1, BATCH_SIZES[-1] + 1):
        rests = [max(0, streams - size) for size in BATCH_SIZES]
        candidates = [
            (_FRAMES_PER_RUN + size * chunk_frames + costs[rest], -size, [size, *plans[rest]])
            for size, rest in zip(BATCH_SIZES, rests, strict=True)
        ]
        cost, _, plan = min(candidates)
        plans.append(plan)
        costs.append(cost)
    return plans


class _BatchRun(NamedTuple):
    """A compiled model of one batch size B, with the memory of its inputs and outputs."""

    request: Any
    mel: torch.Tensor
    """[B, N, F] float32."""
    valid_mel_frames: np.ndarray
    """[B] int32, as the others."""
    slots: np.ndarray
    row: np.ndarray
    frames: torch.Tensor
    """[B, T, D] float32, as the others. The next run overwrites them."""
    keys_values: torch.Tensor
    """[layers, B * 2 * heads, T * dh]"""
    tails: torch.Tensor
    """[layers, B, k - 1, D]"""
    columns: list[torch.Tensor]
    """[B, F, C] of each subsampling layer."""

    def first(self, batch: int) -> "_BatchRun":
        """The memory of the first `batch` streams."""
        if batch == len(self.slots):
            return self
        return self._replace(
            mel=self.mel[:batch],
            valid_mel_frames=self.valid_mel_frames[:batch],
            slots=self.slots[:batch],
            row=self.row[:batch],
            frames=self.frames[:batch],
            keys_values=self.keys_values[:, : self.keys_values.shape[1] // len(self.slots) * batch],
            tails=self.tails[:, :batch],
            columns=[column[:batch] for column in self.columns],
        )


class OpenVinoStep:
    """One step of the network over the state, by models of `BATCH_SIZES`, each compiled when it is first needed."""

    def __init__(self, checkpoint: Checkpoint, state: EncoderState):
        self._state = state
        # In the state's memory
        self._chunks_seen, self._first_pages = state.chunks_seen.numpy(), state.first_pages.numpy()
        # Built now, because the file may be gone when a model is compiled; all models share its weights.
        self._model = StepGraph(checkpoint.tensors("encoder."), state, _ANY_BATCH).build()
        self._plans = plan_batches(state.context.chunk_encoder_frames)
        self._runs: dict[int, _BatchRun] = {}

    def __call__(self, slots: torch.Tensor, mel: torch.Tensor, valid_mel_frames: torch.Tensor) -> Encoded:
        """Implements `StreamingEncoder.step`."""
        batch, valid, parts, first = slots.shape[0], valid_mel_frames.numpy(), [], 0
        while first < batch:
            for size in self._plans[min(batch - first, BATCH_SIZES[-1])]:
                part = slice(first, first + size)
                whole = (slots, mel) if size >= batch else (slots[part], mel[part])
                parts.append(self._step(size, *whole, valid[part]))
                first += size
        frames = parts[0] if len(parts) == 1 else torch.cat(parts)
        return Encoded(frames, torch.from_numpy(-(-valid // self._state.config.subsampling_factor)))

    def _step(self, size: int, slots: torch.Tensor, mel: torch.Tensor, valid_mel_frames: np.ndarray) -> torch.Tensor:
        """Runs the model of `size` streams for B <= size of them and writes their state; frames [B, T, D].

        Numbers per stream are NumPy arrays, whose operations take less time than torch's.
        """
        own = slots.numpy()
        state, pages, run = self._state, self._state.pages_per_slot, self._run(size).first(len(own))
        # 1) the inputs; streams to spare keep what was there, and their results are dropped
        seen = self._chunks_seen[own]
        page = seen % pages
        run.mel.copy_(mel)
        run.valid_mel_frames[:] = valid_mel_frames
        run.slots[:] = own
        run.row[:] = page + pages * (seen >= pages)  # the pages of the streams, by their ages
        rows = torch.from_numpy((self._first_pages[own] + page[:, np.newaxis]).ravel())
        # 2) run the network
        run.request.infer(share_outputs=True)  # they are in `run`: no copies
        # 3) write the state back
        self._chunks_seen[own] = seen + 1
        state.scatter_chunk(slots, rows, run.keys_values, run.tails, run.columns)
        return run.frames.clone()

    def _run(self, size: int) -> _BatchRun:
        if size not in self._runs:
            self._runs[size] = self._compile(size)
        return self._runs[size]

    def _compile(self, size: int) -> _BatchRun:
        """The model of a batch size. It reads the state's memory in place."""
        # Float32 on CPUs that have bfloat16, too; no thread is tied to a core that another process may need.
        options = {
            "INFERENCE_PRECISION_HINT": "f32",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "ENABLE_CPU_PINNING": False,
        }
        state, config = self._state, self._state.config
        mel = torch.zeros(size, config.subsampling_factor * state.context.chunk_encoder_frames, config.mel_bins)
        numbers = {name: np.zeros(size, np.int32) for name in ("valid_mel_frames", "slots", "row")}
        memory = {"mel": mel.numpy()} | numbers
        model = self._model.clone()
        model.reshape({name: ov.PartialShape(list(values.shape)) for name, values in memory.items()})
        request = _core().compile_model(model, "CPU", options).create_infer_request()
        memory |= {f"column.{layer}": columns.numpy() for layer, columns in enumerate(state.subsampling_columns)}
        for layer in range(config.n_layers):
            memory[f"tail.{layer}"] = state.conv_tails[layer].numpy()
            memory[f"kv.{layer}"] = state.keys_values(layer).numpy()
        for name, values in memory.items():
            request.set_tensor(name, ov.Tensor(values, shared_memory=True))
        outputs = [torch.zeros(list(port.shape)) for port in request.model_outputs]
        for i, output in enumerate(outputs):
            request.set_output_tensor(i, ov.Tensor(output.numpy(), shared_memory=True))
        trim_heap()  # a compilation leaves five times the weights behind
        use_huge_pages()
        frames, keys_values, tails, *columns = outputs
        keys_values = keys_values.view(config.n_layers, size * keys_values.shape[1], -1)
        tails = tails.view(config.n_layers, size, *tails.shape[1:])
        return _BatchRun(request, mel, **numbers, frames=frames, keys_values=keys_values, tails=tails, columns=columns)
