"""Audio in a client's format to mono samples at the model's rate."""
