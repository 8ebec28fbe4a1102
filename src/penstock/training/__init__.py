"""Training of the demonstration models: data, augmentation, losses, the loop. Needs extra `train`; serving never."""
