"""Runs the pipeline on Triton Inference Server."""
