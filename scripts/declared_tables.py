"""Generates what repeats declarations: tables of options, fields and errors in docs/, the environment in compose.yaml.

python -m scripts.declared_tables            # exit status 1 where a file is out of date
python -m scripts.declared_tables --write    # brings the files up to date
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from benchmarks.results import replace_parts
from penstock.pipeline.options.decoding_config import ENDPOINT_OPTIONS, DecodingConfig
from penstock.serving.settings import IMAGE_OPTIONS, ServeOptions
from penstock_common.declaration import Option
from penstock_common.options import BEAM_DECODERS, DECODERS, StreamOptions
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayCode
from penstock_gateway.openai.request import TranscriptionForm
from penstock_gateway.riva.request_mapping import FIELDS as RIVA_FIELDS

ROOT = Path(__file__).resolve().parents[1]
VALUES = ("meaning", "accepted; **default**")
"""The last columns of a table of options."""
MAKER = "scripts/declared_tables.py"


def server_options() -> str:
    """The options of `penstock serve` that no other page has."""
    left_out = {option.name for option in elsewhere()}
    kept = (option for option in ServeOptions.options() if option.name not in left_out)
    return _table(("variable", *VALUES), ((f"`{s.variable}`", *_values(s)) for s in kept))


def elsewhere() -> list[Option]:
    """Options of the server in the tables of searches and graphs, and the defaults of a stream's options."""
    by_stream = {option.name for option in StreamOptions.options()}
    defaults = (option for option in DecodingConfig.options() if option.name in by_stream)
    return [*searches(), *graph_searches(), *defaults]


def graph_searches() -> list[Option]:
    """The options of the search of a decoding graph alone."""
    return [option for option in DecodingConfig.options() if option.decoders == ("wfst",)]


def searches() -> list[Option]:
    """The options of some decoders, among them a beam search."""
    chosen = (s for s in DecodingConfig.options() if s not in ENDPOINT_OPTIONS and set(s.decoders) < set(DECODERS))
    return [s for s in chosen if set(s.decoders) & set(BEAM_DECODERS)]


def search_options() -> str:
    """Options of searches."""
    return _table(("option", "decoders", *VALUES), map(_with_decoders, searches()))


def graph_options() -> str:
    """Options of the search of a decoding graph."""
    return _table(("option", *VALUES), ((f"`{option.name}`", *_values(option)) for option in graph_searches()))


def stream_options() -> str:
    """Options of a stream."""
    return _table(("option", "decoders", *VALUES), map(_with_decoders, StreamOptions.options()))


def environment() -> str:
    """The environment of compose.yaml's server."""
    passed_on = [s for s in ServeOptions.options() if s.name not in IMAGE_OPTIONS]
    return "".join(f"      {s.variable}: ${{{s.variable}:-}}\n" for s in passed_on)


def gateway_options() -> str:
    """The options of `penstock-gateway`."""
    return _table(("flag", *VALUES), ((f"`{s.flag}`", *_values(s)) for s in Config.options()))


def gateway_errors() -> str:
    """All codes with their status in each protocol."""
    rows = (
        (f"`{code.name.lower()}`", status.meaning, f"{status.http}, {status.websocket}, {status.grpc}")
        for code, status in ((each, each.status) for each in GatewayCode)
    )
    return _table(("code", "meaning", "HTTP, WebSocket, gRPC"), rows)


def openai_fields() -> str:
    """The form of a transcription request."""
    fields = TranscriptionForm.model_fields.items()
    rows = ((f"`{each.alias or name}`", _cell(each.description or "")) for name, each in fields)
    return _table(("field", "effect"), rows)


def riva_fields() -> str:
    """Riva's request; a row has all fields with the same effect."""
    effects: dict[str, list[str]] = {}
    for path, effect in RIVA_FIELDS.items():
        effects.setdefault(_cell(effect), []).append(f"`{path}`")
    return _table(("field of `config`", "effect"), ((", ".join(fields), effect) for effect, fields in effects.items()))


GENERATED: Mapping[str, tuple[Callable[[], str], ...]] = {
    "docs/deployment.md": (server_options,),
    "docs/beam_search.md": (search_options,),
    "docs/wfst.md": (graph_options,),
    "docs/serving.md": (stream_options,),
    "docs/gateway.md": (openai_fields, riva_fields, gateway_errors),
    "docs/gateway_operations.md": (gateway_options,),
    "compose.yaml": (environment,),
}


def up_to_date(name: str) -> str:
    """The text of a file with its generated parts as they should be; SystemExit where one has no place."""
    parts = {make.__name__.replace("_", " "): make() for make in GENERATED[name]}
    try:
        return replace_parts((ROOT / name).read_text(encoding="utf-8"), MAKER, parts)
    except ValueError as error:
        raise SystemExit(f"{name}: {error}") from None


def _with_decoders(option: Option) -> tuple[str, ...]:
    others = set(DECODERS) - set(option.decoders)
    is_shorter = len(others) < len(option.decoders) < len(DECODERS)
    named = [f"`{name}`" for name in DECODERS if (name in others) == is_shorter and option.decoders]
    decoders = f"{'all but ' if is_shorter else ''}{', '.join(named)}"
    return f"`{option.name}`", decoders, *_values(option)


def _values(option: Option) -> tuple[str, str]:
    """Meaning with a link to the option's page, and the accepted values with the default, as in VALUES."""
    meaning = f"[{option.help}]({option.page})" if option.page else option.help
    accepted = "1, 0" if option.is_switch else re.sub(r"(?:integers|numbers) from (\S+ to)", r"\1", option.accepted)
    default = f"; **{option.default_text}**" if option.default_text else ""
    return _cell(meaning), _cell(f"{accepted}{default}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    first, *others = (f"| {' | '.join(map(str, line))} |\n" for line in (head, *rows))
    return f"\n{first}|{'---|' * len(head)}\n{''.join(others)}\n"


def main() -> int:
    """Checks or writes all files."""
    status = 0
    for name in GENERATED:
        text = up_to_date(name)
        if text == (ROOT / name).read_text(encoding="utf-8"):
            continue
        if "--write" in sys.argv[1:]:
            (ROOT / name).write_text(text, encoding="utf-8")
        else:
            print(f"{name} is out of date: run python -m scripts.declared_tables --write", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
