"""OpenAI's HTTP API: transcriptions of files, and the list of models."""
