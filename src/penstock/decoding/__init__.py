"""Greedy Transducer decoding as step functions over tensors, with the state of each stream in slots."""
