"""One CUDA graph per stretch of steps between two loop borders; the loops run on the host.

The last node of each graph copies the flags to pinned host memory, so a round costs one launch and one wait. Needs
only torch.
"""

from collections.abc import Callable

import torch

from penstock.graphs.program import CapturedProgram, Program, Runner, Step, While, run_body, steps_with_depth, warm_up


class TorchCapture:
    """Captures with torch.cuda.CUDAGraph; all graphs share one memory pool and must run one after another."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, program: Program) -> None:
        """Runs every step on the stream that captures."""
        warm_up([step for _, step in steps_with_depth(program.body)], self._stream)

    def record(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Captures what `function` launches into a graph of its own, without running it."""
        graph = torch.cuda.CUDAGraph()
        # A capture forbids some calls. thread_local leaves them to other threads, which may be serving.
        capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with torch.inference_mode(), torch.cuda.device(self._device), capture:
            function()
        return graph

    def host_flags(self, flags: torch.Tensor) -> torch.Tensor:
        """Allocates pinned memory of the shape and dtype of `flags`, which a captured copy can write to."""
        return torch.zeros(flags.shape, dtype=flags.dtype, pin_memory=True)

    def synchronize(self) -> None:
        """Waits for everything replayed on the current stream, and for no other."""
        torch.cuda.current_stream(self._device).synchronize()


class NoWhileLoopsDriver:
    """Captures each stretch of steps as a graph and runs the loops on the host."""

    name = "no_while_loops"

    def __init__(self, capture: TorchCapture):
        self._capture = capture

    def prepare(self, program: Program) -> Runner:
        """Captures every stretch of steps."""
        self._capture.warm_up(program)
        host_flags = self._capture.host_flags(program.flags)
        body = self._record(program.body, program.flags, host_flags)

        def read(flag: int) -> bool:
            self._capture.synchronize()
            return bool(host_flags[flag])

        return CapturedProgram(program, lambda: run_body(body, read))

    def _record(
        self, body: tuple[Step | While, ...], flags: torch.Tensor, host_flags: torch.Tensor
    ) -> tuple[Step | While, ...]:
        """The body with each stretch of steps as one replay."""
        recorded: list[Step | While] = []
        for stretch in _stretches(body):
            if isinstance(stretch, While):
                recorded.append(While(stretch.flag, self._record(stretch.body, flags, host_flags)))
                continue

            def run(steps: list[Step] = stretch) -> None:
                for step in steps:
                    step()
                host_flags.copy_(flags, non_blocking=True)

            recorded.append(self._capture.record(run).replay)
        return tuple(recorded)


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
