"""The entry of `penstock-client` and of `python -m penstock_client.cli`."""

import signal
import sys


def main() -> int:
    """Runs the command; returns the exit status, 130 after Ctrl-C.

    During the imports Ctrl-C ends the process by its signal: an exception inside an import would be printed.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock_client.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, handler)
        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
