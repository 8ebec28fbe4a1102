"""Reads audio files and computes log-mel chunks of samples."""
