"""Benchmarks of this project and its baselines; `python -m benchmarks` lists them. Not part of the wheel."""
