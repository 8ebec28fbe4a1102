"""Reads model_config.yaml as untrusted data: no aliases, no tags, bounded depth, and as many values as take seconds."""

from typing import Any

import yaml

from penstock.errors import CheckpointError

MAX_YAML_BYTES = 16 << 20
MAX_YAML_DEPTH = 40
MAX_YAML_EVENTS, MAX_YAML_SCALAR = 1_000_000, 1 << 16
"""Values, keys and borders of lists; characters of one of them, because YAML's 1:2:3 is a number of any size."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(data: bytes) -> dict[str, Any]:
    """Returns the mapping in `data`; raises CheckpointError for aliases, tags that build objects, or anything else."""
    try:
        _reject_bombs(data)
        document = yaml.load(data, Loader=_Loader)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:  # the last two: explicit tags
        raise CheckpointError(f"model_config.yaml: not plain YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"model_config.yaml: contains a {type(document).__name__}; accepted: a mapping")
    return document


def _reject_bombs(data: bytes) -> None:
    depth = 0
    for count, event in enumerate(yaml.parse(data, Loader=_Loader)):
        if count > MAX_YAML_EVENTS:
            raise CheckpointError(f"model_config.yaml: has more than {MAX_YAML_EVENTS} values")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_YAML_SCALAR:
            raise CheckpointError(f"model_config.yaml: has a value of more than {MAX_YAML_SCALAR} characters")
        if isinstance(event, yaml.AliasEvent):
            raise CheckpointError("model_config.yaml: aliases are not accepted")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            raise CheckpointError(f"model_config.yaml: nested deeper than {MAX_YAML_DEPTH}")
