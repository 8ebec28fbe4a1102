"""External scores for labels: the n-gram language model and per-stream phrase boosting, and how a search adds them."""
