"""Benchmarks of this project and its baselines (docs/benchmarks.md lists them). Not part of the wheel."""
