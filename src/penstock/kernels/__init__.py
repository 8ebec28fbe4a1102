"""Kernels of the decoder, written in the GPU language, each behind a class that also knows the plain torch way."""

from penstock.kernels.capability import available, why_unavailable

__all__ = ["available", "why_unavailable"]
