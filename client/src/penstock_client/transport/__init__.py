"""Streams of `Client` and `AsyncClient` over the batched engine, and the messages of gRPC and HTTP."""
