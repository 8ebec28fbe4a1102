"""Model configuration, the bundle a model is served from, and the sources of models."""
