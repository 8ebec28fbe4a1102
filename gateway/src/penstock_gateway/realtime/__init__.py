"""Transcription over a WebSocket: OpenAI's Realtime protocol, and Riva's dialect on the same path."""
