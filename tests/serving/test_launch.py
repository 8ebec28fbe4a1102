"""Ports differ and are free; a limit of the system that is too low is named before the start."""

import resource
import socket
from pathlib import Path

import pytest

from penstock.errors import PenstockError, SettingError
from penstock.serving.launch import OtherPort, Ports, ServerOptions, claim_ports, launch_command, raise_open_file_limit
from penstock.serving.triton_install import TritonInstall


def test_zero_is_replaced_by_different_free_ports():
    ports = claim_ports(Ports(), "127.0.0.1")[0]
    assert len(set(ports)) == 3
    assert all(20000 <= port < 32768 for port in ports)  # no outgoing connection takes one while the server restarts
    assert claim_ports(ports, "127.0.0.1")[0] == ports  # given back


def test_a_busy_port_is_named_with_its_option():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(PenstockError, match=rf"grpc port {port} is in use on 127.0.0.1; .*--grpc-port"):
            claim_ports(Ports(0, port, 0), "127.0.0.1")
        with pytest.raises(PenstockError, match=rf"http port {port} is in use on 0.0.0.0"):
            claim_ports(Ports(port, 0, 0), "0.0.0.0")


def test_tritons_addresses_of_ipv6_have_its_prefix_or_brackets():
    for address, http, grpc in (("::1", "ipv6:::1", "[::1]"), ("127.0.0.1", "127.0.0.1", "127.0.0.1")):
        options = ServerOptions(Path(), address=address)
        command = launch_command(TritonInstall(Path("tritonserver")), options, Ports(1, 2, 3), "", "")
        assert {f"--http-address={http}", f"--grpc-address={grpc}", f"--metrics-address={http}"} <= {*command}


def test_the_same_port_twice_is_rejected():
    port = claim_ports(Ports(), "127.0.0.1")[0].http
    with pytest.raises(PenstockError, match=rf"--http-port and --metrics-port are both {port}; choose two ports"):
        claim_ports(Ports(port, 0, port), "127.0.0.1")


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_number_that_is_no_port_is_named(port):
    with pytest.raises(PenstockError, match=f"http port {port} "):
        claim_ports(Ports(port, 0, 0), "127.0.0.1")


def test_ports_of_other_processes_are_checked_too():
    other = OtherPort("PENSTOCK_GATEWAY_HTTP_PORT", "127.0.0.1", 0)
    ports, (free,) = claim_ports(Ports(), "127.0.0.1", [other])
    assert free not in ports
    with pytest.raises(PenstockError, match=rf"--http-port and PENSTOCK_GATEWAY_HTTP_PORT are both {free}; choose two"):
        claim_ports(Ports(http=free), "127.0.0.1", [other._replace(port=free)])
    in_use = rf"PENSTOCK_GATEWAY_HTTP_PORT {free} is in use on 127.0.0.1; choose"
    with socket.create_server(("127.0.0.1", free)), pytest.raises(PenstockError, match=in_use):
        claim_ports(Ports(), "127.0.0.1", [other._replace(port=free)])


@pytest.fixture
def limits(monkeypatch) -> dict[str, tuple[int, int]]:
    """The limit on open files, as (soft, hard), of a process that is not this one."""
    found = {"files": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: found["files"])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: found.update(files=pair))
    return found


def test_a_hard_limit_below_the_streams_is_rejected(limits):
    limits["files"] = (64, 64)
    with pytest.raises(SettingError, match=r"the limit on open files is 64 \(`ulimit -n`\); accepted: 133 or more"):
        raise_open_file_limit(5)


def test_the_soft_limit_is_raised_as_far_as_needed(limits):
    raise_open_file_limit(64)
    assert limits["files"] == (1024, 4096)
    raise_open_file_limit(3000)
    assert limits["files"] == (3128, 4096)
    limits["files"] = (256, resource.RLIM_INFINITY)
    raise_open_file_limit(200)
    assert limits["files"] == (328, resource.RLIM_INFINITY)
