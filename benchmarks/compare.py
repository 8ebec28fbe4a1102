"""Compares the speed of two checkouts of this project, samples to text in one process, in interleaved rounds.

    python -m benchmarks.compare --base CHECKOUT [--streams 8 32] [--decoders greedy alsd] [--context 70,6] [--rounds 9]
        [--phrases 0] [--model BUNDLE] [--device cpu] [--threads 1] [--json FILE]

Each checkout (base, and this one as head) runs in a child process with its own sources and model. In every round each
child transcribes the same recordings once, in alternating order. A ratio is base time to head time of one round: above
1 the head is faster. On a busy machine the CPU ratio, the median of the ratios of CPU time, varies less. The texts must
be equal. Children use only public names of `penstock`, so that old checkouts work.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from operator import truediv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AUDIO = ROOT / "tests" / "data" / "an4" / "flac"
SAMPLE_RATE_HZ, ENCODER_FRAME_SAMPLES = 16000, 1280
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", *"abcdefghijklmnopqrstuvwxyz")
WARM_UP_ROUNDS, CLOCKS = 1, ("seconds", "cpu_s")
STATISTICS = {"ratio_median": statistics.median, "ratio_min": min, "ratio_max": max}
RATIOS = (*STATISTICS, "cpu_ratio_median")


def main() -> int:
    """Command line; returns the exit status, 1 if the texts differ."""
    arguments = parse_arguments()
    if arguments.child:
        return serve_rounds(json.loads(arguments.child))
    from benchmarks.results import describe, environment, publish
    from penstock.reporting import markdown_table

    command = ["git", "-C", str(arguments.base), "describe", "--always", "--dirty"]
    base = subprocess.run(command, capture_output=True, text=True, check=False)
    here = environment(arguments.threads, arguments.device) | {"base": base.stdout.strip()}
    results = [compare(arguments, decoder, n) for decoder in arguments.decoders for n in arguments.streams]
    header = ["decoder", "streams", "base RTFx", "head RTFx", "ratio", "min", "max", "CPU ratio", "equal texts"]
    names = ["decoder", "streams", "base_rtfx", "head_rtfx"]
    rows = [[*map(r.get, names), *(f"{r[name]:.3f}" for name in RATIOS), r["has_equal_texts"]] for r in results]
    note = f"base {here['base']}; context [{arguments.context}], {arguments.rounds} rounds; {describe(here)}"
    table = markdown_table(header, rows, left=1)
    publish(f"{table}\n\n{note}", {"environment": here, "results": results}, arguments.json)
    return 0 if all(r["has_equal_texts"] for r in results) else 1


def parse_arguments() -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, metavar="CHECKOUT", help="the checkout to compare this one with")
    parser.add_argument("--model", default="models/an4-rnnt-hybrid", help="bundle, relative to each checkout")
    parser.add_argument("--context", default="70,6", metavar="L,R", help="attention context (70,6)")
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 32], metavar="N", help="concurrent streams")
    parser.add_argument(
        "--decoders", nargs="+", default=["greedy", "alsd"], metavar="NAME", help="decoders to compare (greedy alsd)"
    )
    parser.add_argument(
        "--rounds", type=int, default=9, metavar="N", help="counted rounds, after one warm-up round (9)"
    )
    parser.add_argument("--phrases", type=int, default=0, metavar="N", help="boosted phrases per stream (0)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads per child (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.child and not (arguments.base and arguments.base.is_dir()):
        parser.error("--base: expected the folder of another checkout")
    return arguments


def compare(arguments: argparse.Namespace, decoder: str, streams: int) -> dict:
    """One line of the result."""
    checkouts = {"base": arguments.base, "head": ROOT}
    children = {name: start(arguments, path.resolve(), decoder, streams) for name, path in checkouts.items()}
    rounds = []
    for number in range(WARM_UP_ROUNDS + arguments.rounds):
        order = ("base", "head") if number % 2 else ("head", "base")
        rounds.append({name: run_round(children[name]) for name in order})
    for child in children.values():
        child.communicate()
    audio_s, texts = rounds[0]["head"]["audio_s"], {str(each[name]["texts"]) for each in rounds for name in children}
    counted = rounds[WARM_UP_ROUNDS:]
    seconds, cpu_s = ({name: [each[name][clock] for each in counted] for name in children} for clock in CLOCKS)
    ratios, cpu_ratios = (list(map(truediv, each["base"], each["head"])) for each in (seconds, cpu_s))
    result = {"decoder": decoder, "streams": streams, "audio_s": audio_s, "has_equal_texts": len(texts) == 1}
    result |= {f"{name}_rtfx": audio_s / statistics.median(taken) for name, taken in seconds.items()}
    result |= {name: statistic(ratios) for name, statistic in STATISTICS.items()}
    result["cpu_ratio_median"] = statistics.median(cpu_ratios)
    print(f"{decoder}, {streams} streams: {result['ratio_median']:.3f}", file=sys.stderr, flush=True)
    return result | {"seconds": seconds, "cpu_s": cpu_s}


def start(arguments: argparse.Namespace, checkout: Path, decoder: str, streams: int) -> subprocess.Popen:
    """Starts a child on the sources of a checkout."""
    child = {"model": str(checkout / arguments.model), "context": arguments.context, "decoder": decoder}
    child |= {
        "streams": streams,
        "device": arguments.device,
        "threads": arguments.threads,
        "phrases": arguments.phrases,
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--child", json.dumps(child)]
    environment = os.environ | {"PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{checkout / 'client' / 'src'}"}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run_round(child: subprocess.Popen) -> dict:
    """One round in a child: its seconds and texts."""
    child.stdin.write("\n")
    child.stdin.flush()
    line = child.stdout.readline()
    if not line:
        raise SystemExit(f"a child ended with status {child.wait()}")
    return json.loads(line)


def serve_rounds(child: dict) -> int:
    """Runs in a child: transcribes all recordings on every stream for each line on stdin; prints seconds and texts."""
    import soundfile
    import torch

    from penstock import StreamingRecognizer

    torch.set_num_threads(child["threads"])
    recordings = [soundfile.read(path, dtype="float32")[0] for path in sorted(AUDIO.glob("*.flac"))]
    left, right = map(int, child["context"].split(","))
    recognizer = StreamingRecognizer(child["model"], (left, right), child["streams"], child["device"])
    options = [stream_options(child["decoder"], child["phrases"], stream) for stream in range(child["streams"])]
    for _ in sys.stdin:
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        texts = transcribe(recognizer, recordings, child["streams"], (right + 1) * ENCODER_FRAME_SAMPLES, options)
        seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
        audio_s = child["streams"] * sum(map(len, recordings)) / SAMPLE_RATE_HZ
        print(json.dumps({"seconds": seconds, "cpu_s": cpu_s, "audio_s": audio_s, "texts": texts}), flush=True)
    return 0


def stream_options(decoder: str, phrases: int, stream: int) -> dict:
    """Options of one stream: its decoder and a list of its own, phrases of two to four letters and digits."""
    chance = random.Random(stream)
    texts = {" ".join(chance.choices(WORDS, k=chance.randint(2, 4))) for _ in range(phrases)}
    return {"decoder": decoder} | ({"boosted_phrases": sorted(texts), "boost": 0.5} if texts else {})


def transcribe(recognizer, recordings: list, streams: int, chunk_samples: int, options: list[dict]) -> list[str]:
    """All recordings on every stream. Each stream starts with another one, so that a batch has streams of all ages."""
    from penstock import AudioRequest

    queues = {s: [recordings[(s + i) % len(recordings)] for i in range(len(recordings))] for s in range(streams)}
    starts, texts = [0] * streams, []
    while queues := {stream: queue for stream, queue in queues.items() if queue}:
        requests = []
        for stream, (samples, *_) in queues.items():
            start, end = starts[stream], starts[stream] + chunk_samples
            is_end = end >= len(samples)
            starts[stream] = 0 if is_end else end
            requests.append(
                AudioRequest(stream, samples[start:end], not start, is_end, {} if start else options[stream])
            )
        for request, result in zip(requests, recognizer.process(requests), strict=True):
            if isinstance(result, Exception):
                raise result
            if request.is_end:
                texts.append(result.text)
                del queues[request.stream_id][0]
    return texts


if __name__ == "__main__":
    sys.exit(main())
