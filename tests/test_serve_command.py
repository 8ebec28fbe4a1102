import re
import socket
import time
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.commands import serve
from penstock.decoding.beam_sizes import BeamSizes
from penstock.decoding.beam_state import BeamState
from penstock.decoding.greedy_state import GreedyState
from penstock.decoding.networks import TransducerNetwork
from penstock.encoder.state import EncoderState
from penstock.ports import Ports
from penstock.triton_install import TritonInstall


@pytest.fixture
def busy_port():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        yield busy.getsockname()[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere"], "nowhere: no such file or directory"),
        (["--model", "MODEL", "--context", "70,7"], r"context \[70,7\] is not one of this checkpoint's: \[70,13\]"),
        (["--model", "MODEL", "--context", "wide"], "context 'wide': expected LEFT,RIGHT"),
        (["--model", "MODEL", "--max-streams", "0"], "--max-streams is 0, expected a positive number"),
        (["--model", "MODEL", "--idle-seconds", "nan"], "--idle-seconds is nan, expected a positive number"),
        (["--model", "MODEL", "--model-repository", "src"], "src: not a model repository"),
        (["--model", "MODEL", "--http-port", "BUSY"], r"http port \d+ is in use"),
        ([], "--model is missing"),
    ],
)
def test_what_can_be_checked_first_is_refused_at_once(
    bundled_model, busy_port, capsys, monkeypatch, arguments, message
):
    monkeypatch.delenv("PENSTOCK_MODEL", raising=False)
    monkeypatch.setattr(serve, "find_triton", lambda: TritonInstall(Path("tritonserver")))
    known = {"MODEL": str(bundled_model), "BUSY": str(busy_port)}
    ports = [f"--{name}-port=0" for name in Ports._fields]
    started = time.monotonic()
    assert main(["serve", *ports, *(known.get(argument, argument) for argument in arguments)]) == 1
    assert time.monotonic() - started < 1
    assert re.match(f"penstock: error: {message}", capsys.readouterr().err)


@pytest.mark.parametrize("case", ["rnnt_hybrid", "tdt_hybrid"])
def test_bytes_per_stream_is_what_the_states_take(golden_bundle, case):
    checkpoint = golden_bundle(case)
    config = checkpoint.config
    network = TransducerNetwork(checkpoint)
    for context in config.encoder.contexts:
        encoder = EncoderState(config.encoder, context, 3, "cpu", network.dtype)
        states = (encoder, GreedyState(network, 3), BeamState(network, 3, BeamSizes(3)))
        assert serve.bytes_per_stream(config, context, 3) == sum(state.bytes_per_slot for state in states)
