"""The transports: gRPC and HTTP, for threads and asyncio."""
