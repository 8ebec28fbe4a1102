"""The JavaScript examples as processes, and the words in what they print."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
CERTIFICATES = Path(__file__).parents[1] / "helpers" / "tls"
TIMEOUT_S = 60.0


def run_examples(node: Path, recording: Path, gateway: str, secure: str) -> Iterator[tuple[str, str]]:
    """Name, and the words or the error, of each example; the gateways are HOST:PORT, `secure` with TLS."""
    calls = {
        "realtime_ws.mjs": ("realtime_ws.mjs", f"ws://{gateway}"),
        "realtime_ws.mjs with TLS": ("realtime_ws.mjs", f"wss://{secure}"),
        "realtime_openai.mjs": ("realtime_openai.mjs", f"https://{secure}"),
    }
    trust = {"NODE_EXTRA_CA_CERTS": str(CERTIFICATES / "cert.pem")}
    for name, (program, address) in calls.items():
        command = [node, EXAMPLES / program, address, recording]
        done = subprocess.run(command, env=os.environ | trust, capture_output=True, text=True, timeout=TIMEOUT_S)
        told = re.findall(r"^(.*)\nfinal: (.*)$", done.stdout, re.MULTILINE)
        is_right = done.returncode == 0 and all(deltas == final for deltas, final in told)
        yield name, " ".join(final for _, final in told) if is_right else done.stdout + done.stderr
