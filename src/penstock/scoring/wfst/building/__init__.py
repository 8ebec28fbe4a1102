"""Builds decoding graphs offline, on a CPU, with kaldifst (extra `graph`)."""
