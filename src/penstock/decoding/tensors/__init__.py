"""Tensors of searches: states by slot, copies to the host, trees of tensors, sizes of captured graphs."""
