"""Transcribes one recording and prints each word with its time.

python transcribe_file.py call.wav localhost:8001
"""

import sys

from penstock_client import Client, ClientError


def main(path: str, url: str = "localhost:8001") -> None:
    """Streams the file as fast as the server takes it."""
    with Client(url) as client:
        transcript = client.transcribe(path)
    print(transcript.text)
    for word in transcript.words:
        print(f"{word.start_ms / 1000:8.2f} s  {word.text}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ClientError as error:
        sys.exit(f"error: {error}")
