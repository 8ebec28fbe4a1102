"""Calls of NVIDIA's own package, as its scripts make them. Runs in the environment `.venv-compat`.

python riva_calls.py GRPC_ADDRESS HTTP_ADDRESS FOLDER MUTE_S: FOLDER has `recording.wav`, `recording.flac`, `date.wav`
and, with a speaker in each channel, `stereo.wav`. A call with a mute sends nothing for MUTE_S between two recordings.
Prints a JSON object for each call: its name, and the words or the error.
"""

import argparse
import asyncio
import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import riva.client
from call_rows import print_rows
from riva.client.argparse_utils import (
    add_asr_config_argparse_parameters,
    add_connection_argparse_parameters,
    add_realtime_config_argparse_parameters,
)
from riva.client.realtime import RealtimeClientASR

CHUNK_FRAMES = 1600


def calls(grpc_address: str, http_address: str, folder: Path, mute_s: float) -> dict[str, Callable[[], str]]:
    """Each call by name; it returns its words."""
    service = riva.client.ASRService(riva.client.Auth(uri=grpc_address))

    def configuration(**more):
        options = {"verbatim_transcripts": True, "enable_word_time_offsets": True}
        return riva.client.RecognitionConfig(**(options | more))

    def models() -> str:
        request = riva.client.proto.riva_asr_pb2.RivaSpeechRecognitionConfigRequest()
        found = service.stub.GetRivaSpeechRecognitionConfig(request).model_config
        return ",".join(sorted({config.model_name for config in found if config.parameters["type"] == "online"}))

    def chunks(ending: str, has_mute: bool) -> Iterator[bytes]:
        for wait_s in [0.0, mute_s] if has_mute else [0.0]:
            time.sleep(wait_s)
            with riva.client.AudioChunkFileIterator(folder / f"recording.{ending}", CHUNK_FRAMES) as file:
                yield from file
            yield bytes(2 * 16_000 * 2) if has_mute else b""  # ends its segment

    def stream(ending: str, has_mute: bool = False) -> str:
        config = riva.client.StreamingRecognitionConfig(config=configuration(), interim_results=True)
        out = io.StringIO()
        responses = service.streaming_response_generator(audio_chunks=chunks(ending, has_mute), streaming_config=config)
        riva.client.print_streaming(responses=responses, output_file=[out])
        lines = [line for line in out.getvalue().splitlines() if "(alternative" not in line]
        return " ".join(line.removeprefix("##").strip() for line in lines)

    def whole(file: str, **more) -> str:
        response = service.offline_recognize((folder / file).read_bytes(), configuration(**more))
        best = [result.alternatives[0] for result in response.results]
        assert (
            " ".join(word.word for each in best for word in each.words)
            == "".join(each.transcript for each in best).strip()
        )
        return "".join(each.transcript for each in best).strip()

    each = {"audio_channel_count": 2, "enable_separate_recognition_per_channel": True}

    def stereo_stream() -> str:
        config = riva.client.StreamingRecognitionConfig(config=configuration(**each), interim_results=True)
        with riva.client.AudioChunkFileIterator(folder / "stereo.wav", CHUNK_FRAMES) as file:
            responses = list(service.streaming_response_generator(audio_chunks=file, streaming_config=config))
        return by_channel(result for response in responses for result in response.results if result.is_final)

    def stereo_file() -> str:
        return by_channel(
            service.offline_recognize((folder / "stereo.wav").read_bytes(), configuration(**each)).results
        )

    return {
        "list of models": models,
        "streaming_response_generator wav": lambda: stream("wav"),
        "streaming_response_generator flac": lambda: stream("flac"),
        "streaming_response_generator with a mute": lambda: stream("wav", has_mute=True),
        "offline_recognize wav": lambda: whole("recording.wav"),
        "offline_recognize flac": lambda: whole("recording.flac"),
        "offline_recognize of a date": lambda: whole("date.wav", verbatim_transcripts=False, profanity_filter=True),
        "streaming_response_generator of two speakers": stereo_stream,
        "offline_recognize of two speakers": stereo_file,
        "RealtimeClientASR": lambda: asyncio.run(realtime(http_address, folder / "recording.wav")),
    }


def by_channel(results: Iterable) -> str:
    """The words of both channels."""
    words = {1: "", 2: ""}
    for result in results:
        words[result.channel_tag] += " " + result.alternatives[0].transcript
    return " | ".join(" ".join(text.split()) for text in words.values())


async def realtime(address: str, recording: Path) -> str:
    """Does what `realtime_asr_client.py` does with a file."""
    parser = add_connection_argparse_parameters(argparse.ArgumentParser())
    parser = add_asr_config_argparse_parameters(parser, True, True, True)
    args = add_realtime_config_argparse_parameters(parser).parse_args(["--server", address])
    wav = riva.client.get_wav_file_parameters(recording)
    args.mic, args.prompt, args.sample_rate_hz, args.num_channels = False, "", wav["framerate"], wav["nchannels"]
    client = RealtimeClientASR(args=args)
    await client.connect()
    chunks = riva.client.AudioChunkFileIterator(recording, CHUNK_FRAMES)
    await asyncio.gather(client.send_audio_chunks(chunks), client.receive_responses())
    await client.disconnect()
    return client.final_transcript.strip()


def main(grpc_address: str, http_address: str, folder: str, mute_s: str) -> None:
    print_rows(calls(grpc_address, http_address, Path(folder), float(mute_s)))


if __name__ == "__main__":
    main(*sys.argv[1:])
