#!/usr/bin/env bash
# Expected: the SDK uploads audio from a pipe (the output of ffmpeg, standard input) in chunks, or rejects it by name.
# Seen: it takes the pipe's size of 0 from fstat() for the length of the file, announces a body without the file, and
#   fails at the first audio: LocalProtocolError "Too much data for declared Content-Length", which is
#   neither an openai error nor retried.
# Hurts: `ffmpeg ... -f wav - | app`: the message points to the server or proxy, and `except openai.APIError` misses it.
# Versions: openai 3.57.0 with httpx2 2.16.2. file=("talk.wav", pipe.read()) works.
# Source: peek_filelike_length() in httpx2/_utils.py.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile openai==3.57.0 httpx2==2.16.2
cd "$work"
venv/bin/python - <<'EOF'
import contextlib
import http.server
import importlib.metadata
import subprocess
import threading
import wave

import openai

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("openai", "httpx2")))
with wave.open("talk.wav", "wb") as file:
    file.setparams((1, 2, 16000, 0, "NONE", ""))
    file.writeframes(bytes(32000))


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        received = len(self.rfile.read(length))
        text = f'{{"text": "{received} bytes"}}'.encode()
        with contextlib.suppress(ConnectionError):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
results = {}
for name in ("file", "pipe", "pipe.read()"):
    with subprocess.Popen(["cat", "talk.wav"], stdout=subprocess.PIPE) as pipe, open("talk.wav", "rb") as file:
        audio = {"file": file, "pipe": pipe.stdout, "pipe.read()": pipe.stdout.read() if "read" in name else b""}[name]
        try:
            results[name] = client.audio.transcriptions.create(model="whisper-1", file=("talk.wav", audio)).text
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error} (openai error: {isinstance(error, openai.OpenAIError)})"
    print(f"{name}: {results[name]}")
unchanged = (
    results["pipe"].startswith("LocalProtocolError: Too much data")
    and "openai error: False" in results["pipe"]
    and results["pipe.read()"] == results["file"] == "32310 bytes"
)
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
