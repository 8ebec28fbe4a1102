"""Counts what operations of PyTorch launch on a device: a view and an allocation launch nothing."""

from torch.utils._python_dispatch import TorchDispatchMode

ALLOCATIONS = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty_strided")


class Launches(TorchDispatchMode):
    """Counts operations that launch something."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aliases = [result.alias_info for result in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        self.count += not (is_view or func._schema.name in (*ALLOCATIONS, "aten::_unsafe_view"))
        return func(*args, **(kwargs or {}))
