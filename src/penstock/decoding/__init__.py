"""Transducer decoding: greedy and beam search as steps over tensors, with the state of each stream in slots."""
