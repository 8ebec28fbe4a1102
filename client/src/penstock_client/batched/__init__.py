"""Many streams in few requests: the client of the Triton model `asr_batch`, for gateways and load generators."""

TICKS_PER_CHUNK = 8
"""By default, rows of different streams that are ready within an eighth of the model's chunk share a request."""
