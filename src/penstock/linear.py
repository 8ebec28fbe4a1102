"""Linear: a product with a constant matrix, in the layout that is fastest on the device."""

import torch

MIN_PACKED_NUMBERS = 1 << 18
"""On the CPU, smaller matrices fit into a core's cache and are faster in their plain layout."""


class Linear:
    """x @ weight.T + bias.

    For a few rows MKL rearranges the whole matrix in every product, which takes more time than the product itself. So a
    large one is rearranged once, by oneDNN: 1.2 to 3.5 times as fast for 2 to 200 rows, and up to twice as slow for a
    single row. Either way the last bits of a row may depend on how many rows there are.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, has_single_rows: bool = False):
        """weight: [out, in]; bias: [out]. Stores a copy of `weight`; with `has_single_rows` one in each layout."""
        self.bias = bias
        self._outputs = len(weight)
        self._packed: torch.Tensor | None = None
        self._weight: torch.Tensor | None = None
        if _is_packed(weight):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        if self._packed is None or has_single_rows:
            self._weight = weight.t().contiguous()  # [in, out]: several times faster on the CPU for few rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Maps x [M, in] to [M, out]."""
        if (plain := self._plain_weight(x)) is not None:
            return torch.mm(x, plain) if self.bias is None else torch.addmm(self.bias, x, plain)
        if not x.shape[0]:  # oneDNN has no product without rows
            return x.new_zeros(0, self._outputs)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Returns residual [M, out] + self(x)."""
        if (plain := self._plain_weight(x)) is not None:
            out = torch.addmm(residual, x, plain)
            return out if self.bias is None else out.add_(self.bias)
        if not x.shape[0]:
            return residual.clone()
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, self.bias, "add")

    @property
    def weight(self) -> torch.Tensor:
        """The matrix [out, in], a copy where it is stored in another layout."""
        if self._weight is not None:
            return self._weight.t()
        assert self._packed is not None
        return self._packed.to_dense()

    def _plain_weight(self, x: torch.Tensor) -> torch.Tensor | None:
        """The weight where its plain layout is the only one, or the faster one for x."""
        return self._weight if self._packed is None or x.shape[0] == 1 else None


def _is_packed(weight: torch.Tensor) -> bool:
    is_supported = weight.is_cpu and weight.dtype == torch.float32 and _has_packed_product()
    return is_supported and weight.numel() >= MIN_PACKED_NUMBERS


def _has_packed_product() -> bool:
    """False in builds of torch without oneDNN. The operators have no public name, so they may change, too."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    has_all = all(hasattr(torch.ops.mkldnn, name) for name in names)
    return torch.backends.mkldnn.is_available() and has_all and hasattr(torch.ops.mkldnn._linear_pointwise, "binary")
