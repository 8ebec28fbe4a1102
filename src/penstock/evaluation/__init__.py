"""WER of a model on recordings with reference texts, in this process or through a running server."""
