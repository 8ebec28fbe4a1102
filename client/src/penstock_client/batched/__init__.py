"""Many streams in few requests: the client of the Triton model `asr_batch`, for gateways and load generators."""
