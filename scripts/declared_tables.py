"""Generates what repeats declarations: tables of options, fields and errors in docs/, the environment in compose.yaml.

python -m scripts.declared_tables            # exit status 1 where a file is out of date
python -m scripts.declared_tables --write    # brings the files up to date
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from benchmarks.results import replace_parts
from penstock.pipeline.options.decoding_config import ENDPOINT_OPTIONS, DecodingConfig
from penstock.serving.settings import IMAGE_OPTIONS, ServeOptions
from penstock_client.declaration import Option
from penstock_client.options import BEAM_DECODERS, DECODERS, StreamOptions
from penstock_gateway.config import Config
from penstock_gateway.errors import ErrorCode
from penstock_gateway.openai.request import TranscriptionForm
from penstock_gateway.riva.request_mapping import FIELDS as RIVA_FIELDS
from penstock_gateway.riva.request_mapping import Treatment

ROOT = Path(__file__).resolve().parents[1]
MAKER = "scripts/declared_tables.py"


def server_options() -> str:
    """The options of `penstock serve`, without those of `search_options`."""
    elsewhere = {option.name for option in searches()}
    kept = (option for option in ServeOptions.options() if option.name not in elsewhere)
    rows = ((f"`{s.variable}`", _meaning(s), _cell(s.accepted), _default(s)) for s in kept)
    return _table(("variable", "meaning", "accepted", "default"), rows)


def searches() -> list[Option]:
    """The options of some decoders, among them a beam search."""
    chosen = (s for s in DecodingConfig.options() if s not in ENDPOINT_OPTIONS and set(s.decoders) < set(DECODERS))
    return [s for s in chosen if set(s.decoders) & set(BEAM_DECODERS)]


def search_options() -> str:
    """Options of searches."""
    return _table(("option", "decoders", "meaning", "accepted", "default"), map(_with_decoders, searches()))


def stream_options() -> str:
    """Options of a stream."""
    return _table(
        ("option", "decoders", "meaning", "accepted", "default"), map(_with_decoders, StreamOptions.options())
    )


def environment() -> str:
    """The environment of compose.yaml's server."""
    passed_on = [s for s in ServeOptions.options() if s.name not in IMAGE_OPTIONS]
    return "".join(f"      {s.variable}: ${{{s.variable}:-}}\n" for s in passed_on)


def gateway_options() -> str:
    """The options of `penstock-gateway`."""
    rows = ((f"`{s.flag}`", _meaning(s), _cell(s.accepted), _default_of_gateway(s)) for s in Config.options())
    return _table(("flag", "meaning", "accepted", "default"), rows)


def gateway_errors() -> str:
    """All codes with their status in each protocol."""
    rows = (
        (f"`{code.name.lower()}`", code.status.meaning, code.status.http, code.status.websocket, code.status.grpc)
        for code in ErrorCode
    )
    return _table(("code", "meaning", "HTTP", "WebSocket close", "gRPC"), rows)


def openai_fields() -> str:
    """The form of a transcription request."""
    fields = TranscriptionForm.model_fields.items()
    rows = ((f"`{each.alias or name}`", _cell(each.description or "")) for name, each in fields)
    return _table(("field", "effect"), rows)


def riva_fields() -> str:
    """Riva's request; a row has all fields with the same effect."""
    effects: dict[str, list[str]] = {}
    for each in RIVA_FIELDS:
        treatment = "" if each.treatment is Treatment.MAPPED else f"{each.treatment.value} "
        effects.setdefault(_cell(treatment + each.mapping).strip(), []).append(f"`{each.name}`")
    return _table(("field of `config`", "effect"), ((", ".join(fields), effect) for effect, fields in effects.items()))


GENERATED: Mapping[str, tuple[Callable[[], str], ...]] = {
    "docs/deployment.md": (server_options,),
    "docs/beam_search.md": (search_options,),
    "docs/serving.md": (stream_options,),
    "docs/gateway.md": (gateway_options, openai_fields, riva_fields, gateway_errors),
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
    return f"`{option.name}`", decoders, _meaning(option), _cell(option.accepted), _default(option)


def _meaning(option: Option) -> str:
    return _cell(f"{option.help} ([more]({option.page}))" if option.page else option.help)


def _default(option: Option) -> str:
    return option.default_text if option.default in (None, ()) else f"`{option.default_text}`"


def _default_of_gateway(option: Option) -> str:
    if option.is_switch:
        return "on" if option.default else "off"
    return option.default_text if option.default in (None, "") else f"`{option.default_text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "\n" + "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines) + "\n"


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
