"""model_config.yaml as untrusted data: parsed without aliases, tags or depth, then read key by key."""

from collections.abc import Iterator

import yaml

from penstock.errors import CheckpointError

LARGEST_YAML_BYTES = 16 << 20
DEEPEST_YAML = 40
LARGEST_SIZE = 1 << 20
_REQUIRED = object()
_UNUSED = (None, False, [], {})
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(data: bytes) -> dict:
    """The mapping in `data`; CheckpointError for anything else, for aliases, for any tag that builds objects."""
    try:
        _refuse_bombs(data)
        document = yaml.load(data, Loader=_Loader)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise CheckpointError(f"model_config.yaml: not plain YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"model_config.yaml: holds a {type(document).__name__}; accepted: a mapping")
    return document


def _refuse_bombs(data: bytes) -> None:
    depth = 0
    for event in yaml.parse(data, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise CheckpointError("model_config.yaml: aliases are not accepted")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_YAML:
            raise CheckpointError(f"model_config.yaml: nested deeper than {DEEPEST_YAML}")


class Section:
    """One mapping of the configuration, read key by key, so that a key nobody knows cannot pass unseen.

    `name` is its dotted path. Every reader takes the default that NeMo's constructor has for an absent key.
    """

    def __init__(self, name: str, values: object):
        if not isinstance(values, dict):
            raise CheckpointError(f"{name or 'model_config.yaml'}: {values!r} is not supported; supported: a mapping")
        self._name = name
        self._values = values
        self._known: set[str] = set()

    def get(self, key: str, default: object = None) -> object:
        """The value as it is, whatever its type."""
        self._known.add(key)
        return self._values.get(key, default)

    def section(self, key: str, optional: bool = False) -> "Section":
        """A mapping below this one; with `optional` an absent one is empty."""
        value = self.get(key)
        if value is None and optional:
            value = {}
        if value is None:
            raise CheckpointError(f"{self.path(key)} is missing")
        return Section(self.path(key), value)

    def integer(self, key: str, default: object = _REQUIRED, least: int = 1, most: int = LARGEST_SIZE) -> int:
        """A whole number from `least` to `most`."""
        value = self._required(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(key, value, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: object = _REQUIRED) -> float:
        """A finite number."""
        value = self._required(key, default)
        try:
            number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
        except (ValueError, OverflowError):
            number = None
        if number is None or not abs(number) < float("inf"):
            self.refuse(key, value, "a number")
        return number

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, value, "true or false")
        return value

    def only(self, key: str, default: object, accepted: tuple, why: str = "") -> object:
        """The value if it is one of `accepted`; `why` is said of any other."""
        value = self.get(key, default)
        if not any(value == one and type(value) is type(one) for one in accepted):
            self.refuse(key, value, " or ".join("nothing" if one is None else repr(one) for one in accepted), why)
        return value

    def ignore(self, *keys: str) -> None:
        """Marks keys that change nothing at inference."""
        self._known.update(keys)

    def refuse_unknown(self) -> None:
        """Raises CheckpointError for the first key that nobody asked for and that is switched on."""
        for key, value in self._unknown():
            self.refuse(key, value, "nothing, for this key is not known here and may change the results")

    def refuse(self, key: str, value: object, supported: str, why: str = "") -> None:
        """Raises CheckpointError."""
        reason = f"; {why}" if why else ""
        raise CheckpointError(f"{self.path(key)}: {value!r} is not supported; supported: {supported}{reason}")

    def path(self, key: str) -> str:
        """Dotted path of a key."""
        return f"{self._name}.{key}" if self._name else key

    def _required(self, key: str, default: object) -> object:
        value = self.get(key, default)
        if value is _REQUIRED:
            raise CheckpointError(f"{self.path(key)} is missing")
        return value

    def _unknown(self) -> Iterator[tuple[str, object]]:
        for key, value in self._values.items():
            if key not in self._known and value not in _UNUSED:
                yield str(key), value
