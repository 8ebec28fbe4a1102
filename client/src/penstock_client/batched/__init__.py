"""Many streams in few requests: the client of the Triton model `asr_batch`, for gateways and load generators."""

TICKS_PER_CHUNK = 16
"""By default, rows of different streams that are ready within a sixteenth of the model's chunk share a request."""
