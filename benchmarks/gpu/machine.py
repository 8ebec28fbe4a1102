"""Ceilings of the device (copies, matrix products), the cost of graph nodes and loops, and trials of the drivers."""

import sys

import torch

from benchmarks.gpu import predictions
from benchmarks.gpu.recorder import Recorder, median_ms, run_program
from penstock.graphs.full_graph import CudaGraphBuilder, FullGraphDriver
from penstock.graphs.no_while_loops import NoWhileLoopsDriver, TorchCapture
from penstock.graphs.program import Program, While
from penstock.graphs.select import missing_for_graphs, missing_for_while_nodes, try_out
from penstock.kernels import trial
from penstock.kernels.capability import why_unavailable

INNER, COLUMNS = 1024, 4096
ROWS = (64, 512, 2000, 7000)
COPY_BYTES = 2**32
NODES = ROUNDS = 1000
_BUDGET_S = 0.5


def measure(recorder: Recorder, device: str, is_tiny: bool) -> None:
    """Everything, cheapest first."""
    budget_s = 0.0 if is_tiny else _BUDGET_S
    recorder.attempt("copy", {}, lambda: measure_copy(recorder, device, COPY_BYTES if not is_tiny else 2**20, budget_s))
    for dtype in predictions.DTYPES:
        for rows in ROWS if not is_tiny else (4,):
            case = {"rows": rows, "dtype": dtype}
            recorder.attempt(
                "matrix product", case, lambda case=case: measure_product(recorder, device, case, budget_s)
            )
    recorder.attempt("trial of a kernel", {}, lambda: try_kernel(recorder, device))
    for driver in ("no_while_loops", "full_graph"):
        recorder.attempt("trial of a driver", {"driver": driver}, lambda d=driver: try_driver(recorder, device, d))
    if torch.device(device).type != "cuda":
        recorder.skip("graph of empty kernels", {"nodes": NODES}, "no CUDA device")
        return
    recorder.attempt("graph of empty kernels", {"nodes": NODES}, lambda: measure_graph(recorder, device, budget_s))
    for driver in ("no_while_loops", "full_graph"):
        for depth in (1, 2):
            case = {"driver": driver, "rounds": ROUNDS, "depth": depth}
            recorder.attempt(
                "loop of empty steps", case, lambda case=case: measure_loop(recorder, device, case, budget_s)
            )


def measure_copy(recorder: Recorder, device: str, count: int, budget_s: float) -> None:
    """A copy of `count` bytes within the device."""
    source = torch.randint(0, 255, (count,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    ms = median_ms(lambda: target.copy_(source), device, budget_s)
    recorder.add("copy", {"bytes": count}, 2e-6 * count / ms, "GB/s", predictions.COPY_GB_PER_S)


def measure_product(recorder: Recorder, device: str, case: dict, budget_s: float) -> None:
    """[rows, 1024] x [1024, 4096], float32 without TF32."""
    dtype = predictions.DTYPES[case["dtype"]]
    left = torch.randn(case["rows"], INNER, device=device).to(dtype)
    right = torch.randn(INNER, COLUMNS, device=device).to(dtype)
    out = torch.empty(case["rows"], COLUMNS, dtype=dtype, device=device)
    ms = median_ms(lambda: torch.mm(left, right, out=out), device, budget_s)
    predicted = predictions.matrix_product_ms(case["rows"], INNER, COLUMNS, case["dtype"])
    teraflops = 2e-9 * case["rows"] * INNER * COLUMNS / ms
    recorder.add("matrix product", case, ms, "ms", predicted, teraflops=teraflops)


def try_kernel(recorder: Recorder, device: str) -> None:
    """Whether a kernel of the Triton language compiles and runs."""
    reason = why_unavailable(device)
    if reason:
        recorder.skip("trial of a kernel", {}, reason)
        return
    failure = trial.try_out(torch.device(device))
    if failure:
        raise RuntimeError(failure)
    recorder.add("trial of a kernel", {}, 1.0, "passed", 1.0)


def try_driver(recorder: Recorder, device: str, name: str) -> None:
    """Whether nested loops count right under a driver."""
    missing = missing_for_graphs(torch.device(device)) or (missing_for_while_nodes() if name == "full_graph" else None)
    if missing:
        recorder.skip("trial of a driver", {"driver": name}, missing)
        return
    try_out(_driver(name, device), torch.device(device))
    recorder.add("trial of a driver", {"driver": name}, 1.0, "passed", 1.0)


def measure_graph(recorder: Recorder, device: str, budget_s: float) -> None:
    """A graph of kernels that each add to one number."""
    value = torch.zeros(1, device=device)
    graph = torch.cuda.CUDAGraph()
    value.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(NODES):
            value.add_(1)
    ms = median_ms(graph.replay, device, budget_s)
    recorder.add("graph of empty kernels", {"nodes": NODES}, ms, "ms", predictions.graph_ms(NODES))


def measure_loop(recorder: Recorder, device: str, case: dict, budget_s: float) -> None:
    """A loop of steps that add to one number; depth 2: the loop is the body of another one, of one round."""
    count = torch.zeros((), dtype=torch.int64, device=device)
    flags = torch.ones(2, dtype=torch.bool, device=device)

    def begin() -> None:
        count.zero_()
        flags.fill_(True)

    def step() -> None:
        count.add_(1)
        torch.lt(count, ROUNDS, out=flags[0])

    inner = While(0, (step,))
    outer = inner if case["depth"] == 1 else While(1, (inner, lambda: flags[1].fill_(False)))
    run = _driver(case["driver"], device).prepare(Program(flags, (begin, outer)))
    ms = median_ms(run, device, budget_s)
    if int(count) != ROUNDS:
        raise RuntimeError(f"{int(count)} rounds, expected {ROUNDS}")
    recorder.add("loop of empty steps", case, ms, "ms", predictions.loop_ms(ROUNDS, case["driver"]))


def _driver(name: str, device: str) -> FullGraphDriver | NoWhileLoopsDriver:
    where = torch.device(device)
    return FullGraphDriver(CudaGraphBuilder(where)) if name == "full_graph" else NoWhileLoopsDriver(TorchCapture(where))


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    description = "Ceilings of the device, the cost of graph nodes, and trials of kernels and drivers."
    return run_program(arguments, description, lambda recorder, chosen: measure(recorder, chosen.device, chosen.tiny))


if __name__ == "__main__":
    sys.exit(main())
