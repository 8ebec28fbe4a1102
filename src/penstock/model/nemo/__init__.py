"""Imports .nemo checkpoints without NeMo; everything in the file is untrusted data."""
