"""Word errors of a model on recordings whose words are known: in this process, or through a running server."""
