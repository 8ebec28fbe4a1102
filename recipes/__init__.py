"""Training of models: not part of the wheel."""
