"""Limits in seconds of the client, each with its reason. Read as `limits.NAME`, so that a test can change one."""

TIMEOUT_S = 10.0
"""To connect, and to wait for a reply, where the caller names no other: several steps of a loaded server."""
ALIVE_S = 1.0
"""A server answers an empty stream over another connection within this time, or it is dead."""
STALL_S = 0.5
"""A watch that wakes this late has not seen whether the server replies: this process or its machine was stalled."""
CLOSE_S = 1.0
"""Closing waits this long for the server to take the ends of unfinished streams; later their slots expire."""
POLL_S = 0.01
"""Between two looks for what has no signal, while something is closed."""
MAX_APART_S = 0.25
"""Between two requests, however far the server is behind: after a stall, rows do not wait for as long again."""
DOWN_S = 5.0
"""A server that was lost or not reached is the last choice for this long: a restart takes about as long."""
MAX_UNANSWERED_S = 20.0
"""Audio of a stream on its way: a request may have 30 s, together with what waits for a whole chunk."""
MAX_QUEUED_S = 60.0
"""Audio of a `Client`'s stream on its way, and as much before it is open: a recording is sent ahead of its replies."""
MAX_REPEATED_S = 8.0
"""Audio of a moved stream on its way at a time: enough for few round trips, and others are not delayed for long."""
REPLAY_S = 120.0
"""Audio kept for a move, by default: the longest segment of the rule for long ones, twice."""
MOVE_S = 15.0
"""A lost stream looks this long for a server with room: one that is late or full, or that starts again."""
FIRST_PAUSE_S = 0.05
"""Before the second attempt to connect, to get a slot or to move; later pauses are longer."""
LONGEST_PAUSE_S = 1.0
"""Between two attempts: a server that returns is found soon, and many clients do not flood it."""
OFFER_S = 2.0
"""To find out what a server is, where that only makes an error clearer: the error itself does not wait longer."""
KEEPALIVE_ANSWER_S = 10.0
"""A connection whose keepalive probe has no answer for this long is lost: gRPC's answer comes from its core."""
SPEAKER_FILE_S = 300.0
"""For a reply about speakers of a file, of a live server: a step has half a minute of audio of each of its files."""
SPEAKER_CONTEXT_S = 60
"""Audio before a segment that a move repeats in a stream with speakers: those heard in it keep their numbers."""
WARM_UP_S = 10
"""Audio before a segment that gives the encoder its context in a move: with it, 0 of some 500 words change."""
WARM_UP_MARGIN_S = 3
"""Kept before the warm-up: chunks end up to one of their durations after the audio that they cover."""
