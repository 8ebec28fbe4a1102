"""Transcription over a WebSocket: OpenAI's Realtime protocol, and the dialects of Riva and vLLM on the same path."""
