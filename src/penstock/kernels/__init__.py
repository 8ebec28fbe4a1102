"""Kernels of the decoder and of the encoder in the Triton language, each with its PyTorch reference."""
