"""The recipe of the bundled demonstration models: AN4 data, synthesis, NeMo models, training."""
