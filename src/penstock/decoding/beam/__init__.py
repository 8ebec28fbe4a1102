"""ALSD++ and AES++ beam search, and the hypotheses they extend."""
