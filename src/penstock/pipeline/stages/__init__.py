"""The three stages of the pipeline, and the rows of their batches."""
