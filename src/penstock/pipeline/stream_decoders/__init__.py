"""Stream decoders: a search with the states of its streams, and how they are built."""
