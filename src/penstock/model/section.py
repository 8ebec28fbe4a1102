"""An untrusted configuration: plain YAML of bounded depth and size, and mappings, every key of them accounted for."""

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import yaml

from penstock.errors import CheckpointError, shown
from penstock.model.limits import MAX_SIZE

MAX_YAML_BYTES = 16 << 20
MAX_YAML_DEPTH = 40
MAX_YAML_EVENTS, MAX_YAML_SCALAR = 1_000_000, 1 << 16
"""Values, keys and borders of lists; characters of one of them, because YAML's 1:2:3 is a number of any size."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
REQUIRED: Any = object()
"""The default of a key that must be present."""
_UNUSED: tuple[object, ...] = (None, False, [], {})


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


class Section:
    """One mapping of the configuration. Records the keys that were read, so that an unknown key can be rejected.

    `name` is its dotted path. An absent key has the default that the method is given, or is an error.
    """

    def __init__(self, name: str, values: object):
        if not isinstance(values, dict):
            raise CheckpointError(
                f"{name or 'the configuration'}: {shown(values)} is not supported; supported: a mapping"
            )
        self._name = name
        self._values = values
        self._known: set[str] = set()

    def get(self, key: str, default: object = None) -> Any:
        """Returns the value, of any type."""
        self._known.add(key)
        return self._values.get(key, default)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Returns all keys and values, of a mapping whose keys are names."""
        self._known.update(self._values)
        return iter(self._values.items())

    def section(self, key: str, optional: bool = False) -> "Section":
        """Returns the mapping under `key`; with `optional` an absent one is empty."""
        value = self.get(key)
        if value is None and optional:
            value = {}
        if value is None:
            raise CheckpointError(f"{self.path(key)} is missing")
        return Section(self.path(key), value)

    def integer(self, key: str, default: object = REQUIRED, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """Returns an integer from `minimum` to `maximum`."""
        value = self._required(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            self.reject(key, value, f"an integer from {minimum} to {maximum}")
        return value

    def number(self, key: str, default: object = REQUIRED) -> float:
        """Returns a finite number."""
        value = self._required(key, default)
        try:
            number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
        except (ValueError, OverflowError):
            number = None
        if number is None or not abs(number) < float("inf"):
            self.reject(key, value, "a number")
        return number

    def flag(self, key: str, default: object = REQUIRED) -> bool:
        """Returns a boolean."""
        value = self._required(key, default)
        if not isinstance(value, bool):
            self.reject(key, value, "true or false")
        return value

    def only(self, key: str, default: object, accepted: tuple[object, ...], why: str = "") -> Any:
        """Returns the value if it is one of `accepted`; `why` explains the rejection of any other."""
        value = self.get(key, default)
        if not any(value == one and type(value) is type(one) for one in accepted):
            self.reject(key, value, " or ".join("nothing" if one is None else repr(one) for one in accepted), why)
        return value

    def class_of(self, key: str, accepted: tuple[str, ...], others: Mapping[str, str] | None = None) -> str:
        """Returns the last part of a class's name, such as a `_target_`, if it is one of `accepted`.

        others: by the name of a class that is not accepted, what it is and what to do with it.
        """
        value = self.get(key)
        name = value.rpartition(".")[2] if isinstance(value, str) else value
        if not isinstance(name, str) or name not in accepted:
            self.reject(key, name, " or ".join(accepted), (others or {}).get(str(name), ""))
        return name

    def ignore(self, *keys: str) -> None:
        """Accepts keys that change nothing at inference."""
        self._known.update(keys)

    def reject_unknown(self) -> None:
        """Raises CheckpointError for the first key with a value that was neither read nor ignored."""
        for key, value in self._unknown():
            self.reject(key, value, "nothing, because this unknown key may change the results")

    def reject(self, key: str, value: object, supported: str, why: str = "") -> NoReturn:
        """Raises CheckpointError with key, value and what is supported."""
        reason = f"; {why}" if why else ""
        raise CheckpointError(f"{self.path(key)}: {shown(value)} is not supported; supported: {supported}{reason}")

    def path(self, key: str) -> str:
        """Returns the dotted path of a key."""
        return f"{self._name}.{key}" if self._name else key

    def _required(self, key: str, default: object) -> Any:
        value = self.get(key, default)
        if value is REQUIRED:
            raise CheckpointError(f"{self.path(key)} is missing")
        return value

    def _unknown(self) -> Iterator[tuple[str, object]]:
        for key, value in self._values.items():
            if key not in self._known and value not in _UNUSED:
                yield str(key), value


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
