"""The whole path at the size of the published 0.6 B models, with random weights: write, import, recognize, serve.

    python -m scripts.full_size build/full_size [--kind english] [--rights 13 6 1 0] [--serve 13]

It needs 5 GB of disk and 4 GB of memory. A folder from an earlier run is used again.
"""

import argparse
import io
import json
import os
import random
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece
import soundfile
import torch
from safetensors.torch import save_file

from penstock.model.bundle import Checkpoint
from penstock.model.transformers.config import read_transformers_config
from penstock.model.transformers.importer import import_transformers
from penstock.model.transformers.weights import sources_of
from penstock.pipeline.memory.server_memory import server_memory
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING
from penstock.recognizer import StreamingRecognizer
from penstock_client import Client, StreamOptions
from tests.helpers.transformers_files import (
    PLAIN,
    WITH_PROMPTS,
    config_document,
    processor_document,
    tokenizer_document,
)
from trials.server.running import running_server
from trials.server.throwaway import processes


class Kind(NamedTuple):
    """What differs between the published models."""

    files: str
    labels: int
    left: int
    rights: tuple[int, ...]
    languages: tuple[str, ...] = ()

    @property
    def language(self) -> str | None:
        """The language of the stream: the last one, which is no default."""
        return self.languages[-1] if self.languages else None


_LANGUAGES = ("auto", *(f"{a}{b}-{a.upper()}{b.upper()}" for a in "bdefhi" for b in "aeilors"))
KINDS = {
    "english": Kind(PLAIN, 1024, 70, (13, 6, 1, 0)),
    "multilingual": Kind(WITH_PROMPTS, 13_087, 56, (3, 0, 6, 13), _LANGUAGES[:41]),
}
_PROMPTS = 128
_AUDIO = Path(__file__).resolve().parents[1] / "tests" / "data" / "an4" / "flac"
_AUDIO_S = 10
_STEP_SAMPLES = 1600


def main() -> None:
    """Prints time and memory of each step, the latter with the mapped files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kind", choices=tuple(KINDS), default="english")
    parser.add_argument("--rights", type=int, nargs="*", help="right contexts to recognize with (all)")
    parser.add_argument("--serve", type=int, help="right context to serve with (the first)")
    chosen = parser.parse_args()
    kind = KINDS[chosen.kind]
    checkpoint, bundle = chosen.directory / "checkpoint", chosen.directory / "bundle"
    if not (checkpoint / "model.safetensors").is_file():
        _report("write", write_checkpoint, checkpoint, kind)
    _report("import", import_bundle, checkpoint, bundle)
    for right in kind.rights if chosen.rights is None else chosen.rights:
        _report(f"one stream, [{kind.left},{right}]", recognize, bundle, (kind.left, right), kind.language)
    right = kind.rights[0] if chosen.serve is None else chosen.serve
    print(f"serve, one stream, [{kind.left},{right}]: {serve(bundle, (kind.left, right), kind.language)}", flush=True)


def write_checkpoint(directory: Path, kind: Kind) -> str:
    """A random checkpoint in Transformers format."""
    directory.mkdir(parents=True, exist_ok=True)
    config, processor = config_document(kind.files), processor_document(kind.files)
    config["encoder_config"] |= {
        "attention_bias": False, "convolution_bias": False, "hidden_size": 1024, "intermediate_size": 4096,
        "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 24, "num_mel_bins": 128,
        "scale_input": False, "sliding_window": kind.left + 1, "subsampling_conv_channels": 256,
        "conv_kernel_size": 9, "subsampling_factor": 8,
        "default_num_lookahead_tokens": kind.rights[0],
    }  # fmt: skip
    config |= {
        "vocab_size": kind.labels + 1,
        "blank_token_id": kind.labels,
        "decoder_hidden_size": 640,
        "num_decoder_layers": 2,
    }
    processor["feature_extractor"]["feature_size"] = 128
    processor |= {
        "supported_num_lookahead_tokens": list(kind.rights),
        "default_num_lookahead_tokens": kind.rights[0],
    }
    if kind.languages:
        config |= {"num_prompts": _PROMPTS, "prompt_intermediate_size": 2048, "default_prompt_id": 0}
        dictionary = {language: prompt for prompt, language in enumerate(kind.languages)}
        processor |= {"num_prompts": _PROMPTS, "prompt_dictionary": dictionary}
    documents = {
        "config": config,
        "processor_config": processor,
        "tokenizer": tokenizer_document(_tokenizer(kind)),
    }
    for name, document in documents.items():
        (directory / f"{name}.json").write_text(json.dumps(document, indent=2))
    generator, state = torch.Generator().manual_seed(0), {}
    model = read_transformers_config(directory).model
    for source in sources_of(model):
        state[source.name] = _random_tensor(source.name, source.shape, generator)
    save_file(state, directory / "model.safetensors", {"format": "pt"})
    return f"{sum(tensor.numel() for tensor in state.values()) / 1e6:.1f} M parameters"


def import_bundle(checkpoint: Path, bundle: Path) -> str:
    """What `penstock import --force` does."""
    import_transformers(checkpoint, bundle, replace=True)
    return ""


def recognize(bundle: Path, context: tuple[int, int], language: str | None) -> str:
    """Streams audio in requests of 100 ms through one thread; the first two seconds warm up."""
    torch.set_num_threads(1)
    recognizer, audio, warm_up = StreamingRecognizer(bundle, context, max_streams=1), _audio(), 2 * 16000
    with recognizer.open_stream(options=_options(language)) as stream:
        for start in range(0, len(audio), _STEP_SAMPLES):
            if start == warm_up:
                cpu_s = time.process_time()
            stream.push(audio[start : start + _STEP_SAMPLES])
        stream.finish()
    return f"{(time.process_time() - cpu_s) / _AUDIO_S:.2f} CPU seconds per second of audio"


def serve(bundle: Path, context: tuple[int, int], language: str | None) -> str:
    """Streams the audio once to a server, as fast as it takes it."""
    config, started_s = Checkpoint(bundle).config, time.monotonic()
    memory = server_memory(config, config.encoder.select_context(context), DEFAULT_DECODING, 1)
    for server in running_server(bundle, 1, 60.0, {"PENSTOCK_CONTEXT": "{},{}".format(*context)}):
        start_s, start_cpu_s = time.monotonic() - started_s, _cpu_s(server.process_id)
        audio, path = _audio(), bundle.parent / "audio.wav"
        soundfile.write(path, audio, 16000)
        with Client(server.url("grpc")) as client:
            client.transcribe(path, options=StreamOptions(language=language))
        cpu_s = (_cpu_s(server.process_id) - start_cpu_s) * 16000 / len(audio)
        return (
            f"ready after {start_s:.1f} s and {start_cpu_s:.1f} CPU s, {cpu_s:.2f} CPU seconds per second of audio, "
            f"{_resident_mib(server.process_id)} MiB; stated: {memory.at_start >> 20} MiB and "
            f"{memory.streams >> 20} MiB of state"
        )
    raise AssertionError("running_server yields once")


def _options(language: str | None) -> dict[str, str]:
    return {} if language is None else {"language": language}


def _audio() -> np.ndarray:
    parts = [soundfile.read(path, dtype="float32")[0] for path in sorted(_AUDIO.glob("*.flac"))]
    return np.concatenate(parts)[: (_AUDIO_S + 2) * 16000]


def _cpu_s(group: int) -> float:
    """CPU time of a process group."""
    fields = [Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split() for process in processes(group)]
    return sum(int(field) for each in fields for field in each[11:13]) / os.sysconf("SC_CLK_TCK")


def _resident_mib(group: int) -> int:
    """Resident memory of a process group, shared pages counted once."""
    lines = [Path(f"/proc/{process}/smaps_rollup").read_text().splitlines() for process in processes(group)]
    return sum(int(line.split()[1]) for each in lines for line in each if line.startswith("Pss:")) >> 10


def _report(label: str, function: Callable[..., str], *args: object) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        result, wall_s, cpu_s, peak_mib = process.submit(_measured, function, *args).result()
    print(f"{label}: {wall_s:.1f} s, {cpu_s:.1f} CPU s, peak {peak_mib:.0f} MiB  {result}", flush=True)


def _measured(function: Callable[..., str], *args: object) -> tuple[str, float, float, float]:
    started_s, cpu_s = time.monotonic(), time.process_time()
    result = function(*args)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result, time.monotonic() - started_s, time.process_time() - cpu_s, peak_mib


def _tokenizer(kind: Kind) -> bytes:
    labels, tags = kind.labels, [f"<{language}>" for language in kind.languages[1:]]
    draw, writer = random.Random(0), io.BytesIO()
    words = ["".join(draw.choices("etaoinshrdlucmfwypvbgk", k=draw.randint(2, 9))) for _ in range(4 * labels)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(" ".join(draw.choices(words, k=12)) for _ in range(4 * labels)), model_writer=writer,
        model_type="bpe", vocab_size=labels, minloglevel=2, bos_id=-1, eos_id=-1, user_defined_symbols=tags,
    )  # fmt: skip
    return writer.getvalue()


def _random_tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return 1 + 0.2 * noise if "norm" in name and name.endswith("weight") else 0.2 * noise
    return 1.4 * noise / noise[0].numel() ** 0.5


if __name__ == "__main__":
    main()
