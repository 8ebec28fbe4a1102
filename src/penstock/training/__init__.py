"""Training of Transducer models with NeMo modules: data, augmentation, losses, the loop. Needs the extra `train`."""
