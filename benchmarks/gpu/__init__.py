"""Measurements on a GPU, for `scripts/gpu_session.py`: the machine, the encoder, the decoders, the whole system."""
