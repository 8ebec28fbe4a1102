"""Kernels of the decoder in the Triton language, each with its PyTorch reference."""

from penstock.kernels.capability import available, why_unavailable

__all__ = ["available", "why_unavailable"]
