"""Word boosting: the phrase lists of streams as automata over labels."""
