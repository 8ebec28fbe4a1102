"""Child processes that Ctrl-C reaches."""

import signal
import subprocess


def start_interruptible(command: list[str], **options) -> subprocess.Popen:
    """Starts a command with pipes for its texts, also where the tests run in the background and so ignore SIGINT.

    Not by `preexec_fn`: the copy of this process would run gRPC's threads up to `exec`, and they log to its stderr.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    finally:
        signal.signal(signal.SIGINT, before)


SLOW_IMPORT = "import sys, time\nprint('importing', flush=True)\ntime.sleep(60)\n"
"""The source of a module whose import takes a minute."""
SILENT_ENDS = (130, -signal.SIGINT)
"""The exit status after Ctrl-C: by the program, or by the signal (a shell shows 130 for it)."""
