"""Imports checkpoints in the format of Transformers without it: JSON and safetensors, which execute nothing."""
