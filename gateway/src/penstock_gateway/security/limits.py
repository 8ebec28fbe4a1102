"""The limits of the gateway, in one place, and a limit for writing to a client."""

MAX_UNANSWERED_S = 2.0
"""Audio of a stream that the server has not answered; `push` waits above it."""
MAX_FRAME_BYTES = 1 << 20
"""One WebSocket frame."""
MAX_MESSAGE_BYTES = 256 << 10
"""One message of a streaming protocol: the audio of one event or gRPC message."""
MAX_RECOGNIZE_BYTES = 64 << 20
"""One gRPC message with a whole recording (Recognize)."""
MAX_UPLOAD_BYTES = 25_000_000
"""One uploaded file."""
MAX_SILENT_S = 60.0
"""A stream without audio for longer is closed (STREAM_IDLE)."""
MAX_AGE_S = 4 * 3600.0
"""A stream that is older is closed (STREAM_TOO_OLD)."""
MAX_UNREAD_S = 10.0
"""A client that does not read its results for longer is closed (RESULTS_UNREAD)."""
RETRY_AFTER_S = 2.0
"""When a client is to try again after STREAMS_EXHAUSTED or NO_REPLICA."""
