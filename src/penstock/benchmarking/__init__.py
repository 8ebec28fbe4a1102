"""Benchmarks of parts of the recogniser, ours and others' side by side."""
