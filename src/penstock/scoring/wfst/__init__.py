"""Decoding graphs of weighted finite-state transducers: words, a lexicon and the CTC topology as one graph."""
