"""Running steps before they are captured: kernels get loaded and libraries allocate their workspaces for a stream."""

import torch

from penstock.graphs.program import Step

_ROUNDS = 2


def warm_up(steps: list[Step], stream: torch.cuda.Stream) -> None:
    """Runs the steps in order on `stream`; waits for them."""
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.inference_mode(), torch.cuda.stream(stream):
        for step in steps * _ROUNDS:
            step()
    stream.synchronize()
