"""The recipe of a small speaker model: mixtures of AN4's speakers, training, error rate."""
