"""Estimates an n-gram language model over a recognizer's tokens from plain text."""
