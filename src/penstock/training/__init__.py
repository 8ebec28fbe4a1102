"""Training: data, augmentation, losses, heads, internal language models. Only models of NeMo need the extra `train`."""
