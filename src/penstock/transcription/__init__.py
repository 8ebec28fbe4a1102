"""Transcribes audio files: what to read, how files share streams and processes, progress, results."""
