"""The Helm chart and the proxies agree with the project; `make chart-check` and `make trials NAME=edge` run them."""

import re
from pathlib import Path

import yaml

from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.serving.settings import ServeOptions
from penstock_gateway.config import Config

ROOT = Path(__file__).parents[2]
CHART = ROOT / "kubernetes" / "penstock"


def test_variables_of_the_chart_are_settings():
    known = {option.variable for options in (ServeOptions, DecodingConfig, Config) for option in options.options()}
    texts = [path.read_text() for path in (CHART / "templates").iterdir()]
    assert {name for text in texts for name in re.findall(r"name: (PENSTOCK_[A-Z_]+[A-Z]),", text)} <= known
    for values in ((CHART / "values.yaml"), *(ROOT / "kubernetes" / "values").iterdir()):
        read = yaml.safe_load(values.read_text())
        for part, prefix in (("server", "PENSTOCK_"), ("gateway", "PENSTOCK_GATEWAY_")):
            assert {prefix + name for name in (read.get(part) or {}).get("settings", {})} <= known


def test_chart_has_the_alerts_of_compose():
    assert (CHART / "alerts.yml").resolve() == ROOT / "docker" / "prometheus" / "alerts.yml"


def test_edges_lead_to_both_ports_of_two_gateways():
    for name in ("haproxy.cfg", "envoy.yaml"):
        text = (ROOT / "docker" / "edge" / name).read_text()
        for gateway in ("gateway-1", "gateway-2"):
            assert all(re.search(rf"{gateway}(:|, port_value: ){port}\b", text) for port in (8080, 50051)), name
