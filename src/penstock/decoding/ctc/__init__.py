"""CTC decoding: the head's log-probabilities and greedy search."""
