import argparse

import pytest

from penstock_gateway.config import Config, ReplicaGroup, parse_replicas
from penstock_gateway.process import serving
from penstock_gateway.process.main import main


def config(*words, environment=None):
    parser = argparse.ArgumentParser()
    for option in Config.options():
        option.add_flag(parser)
    return Config.read(environment or {}, parser.parse_args(words))


def test_the_defaults_listen_on_loopback_only():
    assert config() == Config()
    assert (Config().listen, Config().http_port, Config().grpc_port) == ("127.0.0.1", 8080, 50051)


def test_replicas_of_one_and_of_several_models():
    assert parse_replicas("a:1, b:2") == (ReplicaGroup("", ("a:1", "b:2")),)
    assert parse_replicas("low=a:1;high=[::1]:2,b:3") == (
        ReplicaGroup("low", ("a:1",)),
        ReplicaGroup("high", ("[::1]:2", "b:3")),
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--replicas", "localhost"], "--replicas is 'localhost'; accepted: HOST:PORT,... or NAME="),
        (["--replicas", "a:0"], "--replicas"),
        (["--replicas", "a:1;b:2"], "a name for each model"),
        (["--replicas", "low="], "--replicas"),
        (["--http-port", "65536"], "--http-port"),
        (["--endpoint-state", "soft"], "accepted: reset, carry"),
        (["--endpoint-silence-ms", "100"], "--endpoint-silence-ms"),
        (["--riva-boost-scale", "nan"], "--riva-boost-scale"),
        (["--tls-cert", "x.pem"], "--tls-key"),
        (["--listen", "0.0.0.0"], "needs --keys"),
    ],
)
def test_a_wrong_flag_is_named(words, named):
    with pytest.raises(ValueError, match=named):
        config(*words)


def test_an_unknown_variable_is_reported_with_the_nearest_known_one(monkeypatch, caplog):
    monkeypatch.setattr(serving, "run_gateway", lambda config, files: None)
    monkeypatch.setattr("penstock_gateway.process.main.configure_logs", lambda log_format: None)
    for name in ("GRPC_ENABLE_FORK_SUPPORT", "GRPC_EXPERIMENTS", "PENSTOCK_GATEWAY_KEY", "PENSTOCK_MAX_STREAM"):
        monkeypatch.setenv(name, "")
    assert main([]) == 0
    name = "PENSTOCK_GATEWAY_KEY"
    assert caplog.messages == [f"the environment variable {name} is not known and has no effect; is {name}S meant?"]


@pytest.mark.parametrize(("old", "new"), [("host", "listen"), ("metrics-host", "metrics-listen")])
def test_an_option_of_an_earlier_version_names_its_successor(monkeypatch, capsys, old, new):
    with pytest.raises(SystemExit, match="2"):
        main([f"--{old}", "127.0.0.1"])
    assert f"unrecognized arguments: --{old} 127.0.0.1; the nearest is --{new}\n" in capsys.readouterr().err
    before, after = (f"PENSTOCK_GATEWAY_{name.replace('-', '_').upper()}" for name in (old, new))
    with pytest.raises(ValueError, match=f"^{before} is not known any more; use {after}$"):
        config(environment={before: "127.0.0.1"})


def test_other_addresses_are_accepted_with_keys():
    assert config("--listen", "0.0.0.0", "--keys", "keys.txt").listen == "0.0.0.0"
