"""Captures steps on the CPU as CUDA graphs do: operations are recorded over fixed memory, Python is not.

A replay runs the recorded operations on the recorded tensors. Everything that a step does outside of tensors (a
counter, a branch on a value, an attribute assigned) happens once, when it is captured, as on a GPU. Kernels of the
Triton language run in its interpreter; a launch is one operation.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from penstock.graphs.program import Program, steps_with_depth

SYNCHRONIZING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.repeat_interleave.Tensor,
    torch.ops.aten.bincount.default,
    torch.ops.aten.lift_fresh.default,
}
"""Operations that may wait for the host on a GPU; `lift_fresh` makes a tensor of Python numbers."""
INDEXING = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put_.default,
    torch.ops.aten.index_put.default,
    torch.ops.aten._index_put_impl_.default,
}
"""Operations that wait for the host if an index is a mask."""


class SynchronizesError(AssertionError):
    """A step waits for the host."""


class NoSynchronization(TorchDispatchMode):
    """Rejects operations that would wait for the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func in INDEXING and any(t is not None and t.dtype == torch.bool for t in args[1])
        if func in SYNCHRONIZING or by_mask:
            raise SynchronizesError(f"{func} waits for the host")
        return func(*args, **(kwargs or {}))


class _Recorder(NoSynchronization):
    """Runs each operation and records it, unless it only makes a view."""

    def __init__(self, recorded: "Recorded"):
        super().__init__()
        self._recorded = recorded

    def __enter__(self):
        interpreter = sys.modules.get("triton.runtime.interpreter")
        if interpreter is not None:
            self._launches = mock.patch.object(interpreter.GridExecutor, "__call__", self._launch(interpreter))
            self._launches.start()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        if "triton.runtime.interpreter" in sys.modules:
            self._launches.stop()

    def _launch(self, interpreter) -> Callable:
        """Launches and records: torch does not see what a kernel does."""
        current = interpreter.GridExecutor.__call__
        launch = getattr(current, "original", current)  # not that of the capture around this one

        def launch_and_record(executor, *args, **kwargs) -> None:
            with _disable_current_modes():
                launch(executor, *args, **kwargs)
            self._recorded.items.append(lambda: launch(executor, *args, **kwargs))

        launch_and_record.original = launch
        return launch_and_record

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = super().__torch_dispatch__(func, types, args, kwargs)
        outputs = _tensors(result)
        is_in_place = any(r.alias_info is not None and r.alias_info.is_write for r in func._schema.returns)
        memory = {_address(tensor) for tensor in _tensors((args, kwargs))}
        is_view = not is_in_place and all(_address(output) in memory for output in outputs)
        if is_view:
            return result

        def again() -> None:
            new = _tensors(func(*args, **kwargs))
            if not is_in_place:
                for place, value in zip(outputs, new, strict=True):
                    place.copy_(value)

        self._recorded.items.append(again)
        return result


class Recorded:
    """Operations and loops, in order."""

    def __init__(self):
        self.items: list[Callable[[], None]] = []

    def replay(self) -> None:
        with torch.inference_mode():
            for item in self.items:
                item()


class FakeCapture:
    """For `NoWhileLoopsDriver`."""

    def __init__(self):
        self.graphs: list[Recorded] = []

    def warm_up(self, program: Program) -> None:
        warm_up(program)

    def record(self, function: Callable[[], None]) -> Recorded:
        recorded = Recorded()
        with torch.inference_mode(), _Recorder(recorded):
            function()
        self.graphs.append(recorded)
        return recorded

    def host_flags(self, flags: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(flags)

    def synchronize(self) -> None:
        pass


class FakeBuilder:
    """For `FullGraphDriver`."""

    def __init__(self):
        self._open: list[Recorded] = []
        self.deepest = 0

    def warm_up(self, program: Program) -> None:
        warm_up(program)

    @contextmanager
    def graph(self) -> Iterator[None]:
        with torch.inference_mode(), self._capture() as self._done:
            yield

    @contextmanager
    def loop(self, flag: torch.Tensor) -> Iterator[None]:
        outside = self._open[-1]
        with self._capture() as body:
            yield

        def run() -> None:
            while flag.item():
                body.replay()

        outside.items.append(run)

    def finish(self) -> Callable[[], None]:
        return self._done.replay

    @contextmanager
    def _capture(self) -> Iterator[Recorded]:
        """Records what runs inside into the innermost capture alone."""
        recorded = Recorded()
        self.deepest = max(self.deepest, len(self._open))
        self._open.append(recorded)
        with _disable_current_modes(), _Recorder(recorded):
            yield recorded
        self._open.pop()


def warm_up(program: Program) -> None:
    """Runs every step, which leaves arbitrary values in the tensors, as on a GPU."""
    with torch.inference_mode():
        for _, step in steps_with_depth(program.body):
            step()


def _tensors(result: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
