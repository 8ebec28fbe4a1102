"""Training: data, augmentation, losses, heads, MWER. Only models of NeMo need the extra `train`."""
