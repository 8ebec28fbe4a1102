"""NVIDIA Riva's gRPC protocol (`nvidia.riva.asr`)."""
