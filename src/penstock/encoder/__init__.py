"""The cache-aware FastConformer encoder, chunk by chunk, with the state of each stream in a slot."""
