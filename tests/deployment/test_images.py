"""Dockerfile, compose files, monitoring and the table of variables: read as text, without Docker."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client import start_http_server

from penstock.cli.command_line import build_parser
from penstock.serving.settings import OTHER_VARIABLES, ServeOptions
from penstock_gateway.config import Config
from scripts import declared_tables

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
COMPOSE_TEXT = (ROOT / "compose.yaml").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load(COMPOSE_TEXT)
SERVICES = COMPOSE["services"]
GUIDE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
ELSEWHERE = {option.variable for option in declared_tables.elsewhere()}
"""Variables on the pages of searches, decoding graphs and a stream's options."""
DASHBOARD = json.loads((ROOT / "docker" / "grafana" / "dashboards" / "penstock.json").read_text(encoding="utf-8"))
DEPLOYED_FILES = [path for path in (ROOT / "docker").rglob("*") if path.is_file() and path.suffix != ".pyc"]
DEPLOYED_FILES.append(ROOT / "compose.yaml")
LOCK_FILES = sorted(set((ROOT / "locks").glob("*.txt")) - {ROOT / "locks" / "pins.txt"})
LOCKED = ["--no-deps", "--require-hashes"]


def _instructions() -> list[tuple[str, str, str]]:
    """(stage, instruction, rest) of the Dockerfile; the stage is "" before the first FROM."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    found, stage = [], ""
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, _, rest = line.partition(" ")
        stage = rest.split()[-1] if instruction == "FROM" else stage
        found.append((stage, instruction, rest.strip()))
    return found


INSTRUCTIONS = _instructions()
SERVERS = ("cpu", "gpu")


def _rest(stage: str, instruction: str) -> list[str]:
    return [rest for of, name, rest in INSTRUCTIONS if (of, name) == (stage, instruction)]


def _variables(text: str) -> set[str]:
    return set(re.findall(r"PENSTOCK_[A-Z_]+", text))


def _defaults(text: str) -> str:
    """Text as compose reads it when no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(text))


def test_the_triton_image_has_no_published_vulnerabilities():
    """hadolint and checkov (`make chart-check`) see the rest: pinned tags, users, commands without a shell."""
    (image,) = (rest for _, name, rest in INSTRUCTIONS if name == "ARG" and rest.startswith("TRITON_IMAGE="))
    assert re.fullmatch(r"TRITON_IMAGE=nvcr\.io/nvidia/tritonserver:(\d\d\.\d\d)-py3", image)[1] >= "26.07"


@pytest.mark.parametrize("stage", SERVERS)
def test_what_the_server_images_start_and_probe_are_commands_of_ours(stage):
    (entry_point,), (command,), (health,) = (_rest(stage, name) for name in ("ENTRYPOINT", "CMD", "HEALTHCHECK"))
    assert json.loads(entry_point) == ["penstock"]
    assert vars(build_parser(json.loads(command)).parse_args(json.loads(command)))["max_streams"] is None
    flags, _, probe = health.partition("CMD ")
    program, *words = json.loads(probe)
    args = build_parser(words).parse_args(words)
    assert (program, words[0]) == ("penstock", "health")
    limit_s = float(re.search(r"--timeout=(\d+)s", flags)[1])
    assert args.timeout < limit_s, "the probe is to speak before Docker kills it"


@pytest.mark.parametrize("stage", SERVERS)
def test_server_images_listen_beyond_the_container_with_the_ports_they_expose(stage):
    environment = dict(word.split("=", 1) for rest in _rest(stage, "ENV") for word in rest.split())
    assert environment["PENSTOCK_LISTEN"] == "::"
    ports = [ServeOptions.option(f"{name}_port").read(environment) for name in ("http", "grpc", "metrics")]
    assert [int(port) for port in _rest(stage, "EXPOSE")[0].split()] == ports
    assert environment["HOME"] == "/tmp"


@pytest.mark.parametrize("metrics", ["serves", "is absent"])
def test_the_probe_of_the_gateway_image_reads_its_metrics(metrics):
    (health,) = _rest("gateway", "HEALTHCHECK")
    server, _ = start_http_server(0, "127.0.0.1")
    port = server.server_port if metrics == "serves" else 1
    _, *words = json.loads(health.partition("CMD ")[2].replace(str(Config().metrics_port), str(port)))
    assert (subprocess.run([sys.executable, *words], capture_output=True).returncode == 0) is (metrics == "serves")
    server.shutdown()


def test_the_gateway_image_exposes_its_ports_and_starts_where_compose_gives_it_keys():
    ports = [Config().http_port, Config().grpc_port, Config().metrics_port]
    assert [int(port) for port in _rest("gateway", "EXPOSE")[0].split()] == ports
    published = [int(_defaults(port).split(":")[-1]) for port in SERVICES["gateway"]["ports"]]
    assert published == ports[:2], "metrics need no key"
    image = dict(word.split("=", 1) for rest in _rest("gateway", "ENV") for word in rest.split())
    config = Config.read(image | {name: _defaults(text) for name, text in SERVICES["gateway"]["environment"].items()})
    assert config.replicas[0].addresses == ("server:8001",)
    assert any(volume.endswith(f":{config.keys}:ro") for volume in SERVICES["gateway"]["volumes"])


def test_what_the_images_copy_exists_and_is_let_through():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let_through = tuple(line[1:] for line in lines if line.startswith("!"))
    copies = [rest.split()[:-1] for _, name, rest in INSTRUCTIONS if name == "COPY" and not rest.startswith("--from")]
    assert "*" in lines and len(copies) > 10
    for source in {source for sources in copies for source in sources}:
        assert (ROOT / source).exists(), source
        assert f"{source}/".startswith(tuple(f"{path}/" for path in let_through)), source


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_hardened_and_pinned(name):
    """tests/containers sees what the running ones may do."""
    service = SERVICES[name]
    assert "build" in service or re.search(r":v?\d+\.\d+\.\d+$", service["image"])
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert re.fullmatch(r"\$\{[A-Z]+_MEMORY:-\d+[mg]\}", service["mem_limit"]), "a limit, and a variable"
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc", "devices"} & set(service)
    user = _defaults(service.get("user") or _rest(service["build"]["target"], "USER")[0])
    assert int(user.split(":")[0]) > 0
    assert all(_defaults(port).startswith("127.0.0.1:") for port in service["ports"])


def test_the_server_is_given_more_time_to_stop_than_its_streams_to_end():
    grace_s = float(_defaults(SERVICES["server"]["stop_grace_period"]).removesuffix("s"))
    assert grace_s > ServeOptions.option("drain_seconds").default + 10  # then it kills what is left, and tidies up


def test_no_variable_is_unknown():
    known = {setting.variable for setting in ServeOptions.options()} | set(OTHER_VARIABLES)
    known |= {option.variable for option in Config.options()}
    assert _variables(DOCKERFILE) | _variables(COMPOSE_TEXT) | _variables(GUIDE) <= known


def test_the_guide_has_every_variable_once():
    rows = re.findall(r"^\| `(PENSTOCK_\w+)` \|", GUIDE, re.MULTILINE)
    served = [option.variable for option in ServeOptions.options() if option.variable not in ELSEWHERE]
    assert rows == [*served, *OTHER_VARIABLES]


def test_the_guide_has_every_variable_of_compose():
    used = set(re.findall(r"\$\{(\w+)", COMPOSE_TEXT + (ROOT / "docker/compose.gpu.yaml").read_text(encoding="utf-8")))
    assert not {name for name in used - ELSEWHERE if f"`{name}`" not in GUIDE}


def test_the_dashboard_shows_every_metric_of_a_server():
    """tests/server/test_dashboard.py: that what it queries exists."""
    source = (ROOT / "src" / "penstock" / "serving" / "metrics.py").read_text(encoding="utf-8")
    queries = " ".join(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])
    own = set(re.findall(r'"(penstock_\w+[a-z])"', source))
    assert own > {"penstock_streams_live", "penstock_slots_free"}
    assert not {name for name in own if not re.search(rf"\b{name}(_bucket)?\b", queries)}


def test_prometheus_and_grafana_find_each_other():
    def load(path: str) -> dict:
        return yaml.safe_load((ROOT / "docker" / path).read_text(encoding="utf-8"))

    found = [of["dns_sd_configs"][0] for of in load("prometheus/prometheus.yml")["scrape_configs"]]
    ports = {"server": ServeOptions.option("metrics_port").default, "gateway": Config().metrics_port}
    assert {of["names"][0]: of["port"] for of in found} == ports
    assert all(of["type"] == "A" and len(of["names"]) == 1 for of in found)
    (source,) = load("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    uids = {target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel["targets"]}
    assert uids == {source["uid"]}
    (provider,) = load("grafana/provisioning/dashboards/penstock.yaml")["providers"]
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert mounted["./docker/grafana/dashboards"] == provider["options"]["path"]
    assert {"server", "prometheus"} <= set(SERVICES)


def test_no_package_index_is_written_down():
    for path in [*DEPLOYED_FILES, *LOCK_FILES]:
        text = path.read_text(encoding="utf-8")
        hosts = re.findall(r"https?://([\w.-]+)", text)
        assert set(hosts) <= {"server", "prometheus", "localhost"}, path
        assert "index-url" not in text, path


@pytest.fixture
def installer(monkeypatch, tmp_path):
    """The build stages' installer, in a project of its own: the pip commands it would run, and its exit status."""
    spec = importlib.util.spec_from_file_location("installer", ROOT / "docker" / "install_dependencies.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "pins.txt").write_text("# pins\nsetuptools==84.2.1\ntorch==2.13.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_PYTHON", str(tmp_path / "venv" / "bin" / "python"))

    def install(*arguments: str, pip_statuses: tuple[int, ...] = ()) -> tuple[list[list[str]], int]:
        commands, statuses = [], iter(pip_statuses)

        def run(command, check):
            commands.append(command[2:])
            return SimpleNamespace(returncode=next(statuses, 0))

        monkeypatch.setattr(module.subprocess, "run", run)
        monkeypatch.setattr(sys, "argv", ["install_dependencies.py", *arguments])
        try:
            return commands, module.main()
        except SystemExit as ended:
            return commands, ended.code

    return install


@pytest.mark.parametrize(
    ("build", "statuses", "torch", "output"),
    [
        ("cpu", (), ["torch==2.13.0+cpu"], "^$"),
        ("default", (), ["torch==2.13.0"], "^$"),
        ("auto", (), ["torch==2.13.0+cpu"], "^$"),
        ("auto", (0, 1, 0), ["torch==2.13.0+cpu", "torch==2.13.0"], "which may be the one for CUDA: 4.7 GB installed"),
        ("cpu", (0, 1), ["torch==2.13.0+cpu"], "torch build 'cpu' is not offered.*PIP_EXTRA_INDEX_URL.*TORCH_BUILD"),
    ],
)
def test_the_build_of_torch_is_the_one_asked_for(installer, capsys, build, statuses, torch, output):
    commands, status = installer("a.txt", "b.txt", "--torch-build", build, pip_statuses=statuses)
    assert commands == [[*LOCKED, "-r", "a.txt", "-r", "b.txt"], *([choice] for choice in torch)]
    assert status == int(statuses == (0, 1))
    assert re.search(output, capsys.readouterr().out)


def _locked(path: Path) -> dict[str, set[str]]:
    """Package -> its versions, which are several where they depend on that of Python."""
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", path.read_text(encoding="utf-8"), re.MULTILINE):
        versions.setdefault(name, set()).add(version)
    return versions


@pytest.mark.parametrize("path", LOCK_FILES, ids=lambda path: path.name)
def test_lock_files_have_a_hash_for_everything_and_keep_to_the_pins(path):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    blocks = re.split(r"\n(?=\S)", "\n".join(lines).strip())
    assert all(re.match(r"[\w.-]+==\S+( ; .*)? \\\n\s+--hash=sha256:", block) for block in blocks)
    locked, pins = _locked(path), _locked(ROOT / "locks" / "pins.txt")
    assert "torch" not in locked, "its builds differ in their hashes"
    for name, version in pins.items():
        assert locked.get(name.replace("_", "-"), version) == version


@pytest.mark.parametrize("name", ["server", "openvino", "client", "gateway", "loadtest"])
def test_images_have_the_versions_that_are_tested(name):
    assert _locked(ROOT / "locks" / f"{name}.txt").items() <= _locked(ROOT / "locks" / "dev.txt").items()
