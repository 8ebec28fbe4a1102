"""CTC beam search over a decoding graph of words."""
