"""Many streams in few requests: carries the streams of all clients, over the Triton model `asr_batch`."""
