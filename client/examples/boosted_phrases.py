"""Transcribes one recording twice: plain, and with boosted phrases.

python boosted_phrases.py call.wav localhost:8001 "ada lovelace" "penstock"
"""

import sys

from penstock_client import Client, ClientError, StreamOptions


def main(path: str, url: str, *phrases: str) -> None:
    """Prints both texts."""
    options = StreamOptions(boosted_phrases=phrases, boost=3.0)
    with Client(url) as client:
        print("plain:  ", client.transcribe(path).text)
        print("boosted:", client.transcribe(path, options=options).text)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ClientError as error:
        sys.exit(f"error: {error}")
