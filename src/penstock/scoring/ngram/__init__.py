"""N-gram language models over a recognizer's tokens as automata."""
