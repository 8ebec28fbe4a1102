"""Assignment of slots to streams, and their release."""
