"""The limits of the gateway, each with its reason.

Read them as `limits.NAME`. Those of a connection to a server are the engine's.
"""

import resource

MAX_UNANSWERED_S = 2.0
"""Audio of a stream that the server has not answered; `push` waits above it."""
MAX_CHANNELS = 8
"""Channels of a recording, or of samples without a header."""
MAX_EVENT_BYTES = 1 << 20
"""One event of a WebSocket without audio: it takes long to parse."""
MAX_HEAD_BYTES, MAX_HEAD_FIELDS = 64 << 10, 100
"""The header of an HTTP request with its line."""
MAX_CONNECTIONS, MAX_UNKNOWN_CONNECTIONS = 5_000, 500
"""Open connections of each port of a process; of one address, at the HTTP port, those that have shown no key."""
MESSAGES_PER_S, MAX_MESSAGE_BURST = 200.0, 2_000.0
"""Messages and pings of one WebSocket; above it the gateway stops reading."""
MAX_ERRORS_IN_A_ROW = 50
"""Wrong messages of one WebSocket; then it is closed."""
MESSAGES_PER_TURN = 32
"""Messages of one WebSocket before other connections have their turn."""
MAX_MESSAGE_BYTES = 4 << 20
"""One message of a gRPC stream, as gRPC's own default, or of a WebSocket: 3 MiB of audio in base64."""
MAX_RECOGNIZE_BYTES = 64 << 20
"""One gRPC message with a whole recording (Recognize), or less by `--max-upload-mb`: it is in memory.

gRPC takes this much of a message of any call before the gateway sees it.
"""
MAX_UNARY_BYTES = 4 * MAX_RECOGNIZE_BYTES
"""Unary messages at the same time in a process, half of them of one key; others wait."""
MAX_FIELDS_BYTES = 1 << 20
"""The fields beside a recording, in a form or in a message."""
MAX_RECORDINGS_BYTES = 500_000_000
"""Uploads and compressed audio of gRPC streams that a process keeps, and half of them of one key; uploads wait.

Two uploads of the largest size, if that is more.
"""
REJECTIONS_PER_S = 20
"""Lines of the log for requests that end with an error; further ones are counted."""

# Times

TICK_S = 1.0
"""Between two rounds of what is watched: streams, sockets, addresses, files. Names are queried every fifth time.

A round that begins half a tick late: the process was stopped, as by SIGSTOP.
"""
POLL_S = 0.1
"""Between two looks at what sends no event: a server that starts, room that an arriving message may lose."""
PROBE_S = 2.0
"""Between two probes of a replica: one that is down or drains is seen before most clients try again."""
RETRY_AFTER_S = 2.0
"""Until a client is to try again, after an error that passes: by then each replica has been probed."""
UNRESPONSIVE_S = 10.0
"""For what takes a healthy peer no time. One that takes longer is dead: a client that sends a header or reads its
results, a decoder with its next block, a server with the last text of a stream, or that is slow beyond its timeout."""
CLOSE_S = 1.0
"""For each step of an end: last texts, last spans, a socket that closes, a second signal that is the first again."""
LATE_S = 1.0
"""Beyond a pause in the audio without a message where its segment ends: messages may be late by as much."""
KEEP_ALIVE_S = 15.0
"""Between two signs of life to a client: bytes of a reply that takes long, for proxies that end a silent one after
60 s, and pings, which show that a client has vanished and holds a stream of its key."""
MAX_WAIT_S = 30.0
"""For room for a message or a recording, then STREAMS_EXHAUSTED; for the process of the decoders to start."""
MAX_SILENT_S = 60.0
"""Until the first message of a call, and between two parts of an upload (STREAM_IDLE)."""
MAX_UPLOAD_S = 600.0
"""Until the body of a request is complete."""
MAX_IDLE_S = 3600.0
"""A live call or socket without any message for longer is closed (STREAM_IDLE), as OpenAI's."""
MAX_AGE_S = 4 * 3600.0
"""A stream that is older is closed (STREAM_TOO_OLD)."""

MINUTE_S, DAY_S = 60, 86_400
"""Periods of quotas; each minute freed memory is given back, and a replica that is down has at most one line."""


def max_connections() -> int:
    """Open connections of a port: all descriptors are for both ports, uploads and decoders."""
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
