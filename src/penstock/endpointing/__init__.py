"""Endpointing: where the segments of a stream end by themselves."""
