"""Transcription over a WebSocket: OpenAI's Realtime protocol, and the dialect of vLLM on the same path."""
