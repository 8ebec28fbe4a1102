"""Many streams in few requests: the client of the Triton model `asr_batch`, for gateways and load generators."""

DEFAULT_TICK_MS = 10.0
"""Rows of different streams that are ready within this time share a request; the end of a segment does not wait."""
