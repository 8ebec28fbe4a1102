"""One CUDA graph for each stretch of steps between two loop borders; the loops stay on the host.

The flags come to the host in pinned memory, as the last node of each graph, so a round costs one launch and one wait.
Needs nothing but torch. How steps are captured is behind `Capture`, which tests replace.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from penstock.graphs.driver import CapturedProgram, Runner
from penstock.graphs.program import Program, Step, While, steps_with_depth
from penstock.graphs.warm_up import warm_up


class Replay(Protocol):
    """Steps that were captured."""

    def replay(self) -> None:
        """Runs them again over the same tensors, in the order of the current stream."""


class Capture(Protocol):
    """Turns steps into something that can be replayed."""

    def warm_up(self, program: Program) -> None:
        """Runs every step, so that libraries allocate and load what they need outside of a capture."""

    def record(self, function: Callable[[], None]) -> Replay:
        """Captures what `function` does, without doing it."""

    def host_flags(self, flags: torch.Tensor) -> torch.Tensor:
        """Memory of the host like `flags`, that a captured copy can write to."""

    def synchronize(self) -> None:
        """Waits for all that was replayed."""


class StagedDriver:
    """Graphs with the loop on the host."""

    name = "staged"

    def __init__(self, capture: Capture):
        self._capture = capture

    def prepare(self, program: Program) -> Runner:
        """Captures every stretch of steps."""
        self._capture.warm_up(program)
        host_flags = self._capture.host_flags(program.flags)
        body = self._record(program.body, program.flags, host_flags)

        def read(flag: int) -> bool:
            self._capture.synchronize()
            return bool(host_flags[flag])

        return CapturedProgram(program, lambda: _run(body, read))

    def _record(self, body: tuple[Step | While, ...], flags: torch.Tensor, host_flags: torch.Tensor) -> list:
        """The body with each stretch of steps as one replay."""
        recorded: list[Replay | While] = []
        for stretch in _stretches(body):
            if isinstance(stretch, While):
                recorded.append(While(stretch.flag, tuple(self._record(stretch.body, flags, host_flags))))
                continue

            def run(steps: list[Step] = stretch) -> None:
                for step in steps:
                    step()
                host_flags.copy_(flags, non_blocking=True)

            recorded.append(self._capture.record(run))
        return recorded


def _stretches(body: tuple[Step | While, ...]) -> list[list[Step] | While]:
    stretches: list[list[Step] | While] = []
    for item in body:
        if isinstance(item, While):
            stretches.append(item)
        elif stretches and isinstance(stretches[-1], list):
            stretches[-1].append(item)
        else:
            stretches.append([item])
    return stretches


def _run(body: list[Replay | While], read: Callable[[int], bool]) -> None:
    for item in body:
        if isinstance(item, While):
            while read(item.flag):
                _run(item.body, read)
        else:
            item.replay()


class TorchCapture:
    """Captures with torch.cuda.CUDAGraph; all graphs share one memory pool and must run one after another."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, program: Program) -> None:
        """On the stream that captures."""
        warm_up([step for _, step in steps_with_depth(program.body)], self._stream)

    def record(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Into a graph of its own."""
        graph = torch.cuda.CUDAGraph()
        # Only this thread's calls are forbidden to do what a capture cannot hold: others may be serving.
        capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with torch.inference_mode(), torch.cuda.device(self._device), capture:
            function()
        return graph

    def host_flags(self, flags: torch.Tensor) -> torch.Tensor:
        """Pinned."""
        return torch.zeros(flags.shape, dtype=flags.dtype, pin_memory=True)

    def synchronize(self) -> None:
        """Waits for the current stream alone."""
        torch.cuda.current_stream(self._device).synchronize()
