"""Memory of the tensors that are alive, counted from what operators return."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):
    """Counts bytes of storages that operators return while it is active, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, weakref.ref] = {}
        self.alive_bytes = self.peak_bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def free(_: weakref.ref) -> None:
            del self._alive[key]
            self.alive_bytes -= size

        self._alive[key] = weakref.ref(storage, free)
        self.alive_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.alive_bytes)
