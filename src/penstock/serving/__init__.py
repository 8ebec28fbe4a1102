"""Running the pipeline behind Triton Inference Server."""
