"""Reads model_config.yaml as untrusted data: no aliases, no tags, bounded depth."""

from typing import Any

import yaml

from penstock.errors import CheckpointError

MAX_YAML_BYTES = 16 << 20
MAX_YAML_DEPTH = 40
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
    for event in yaml.parse(data, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise CheckpointError("model_config.yaml: aliases are not accepted")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            raise CheckpointError(f"model_config.yaml: nested deeper than {MAX_YAML_DEPTH}")
