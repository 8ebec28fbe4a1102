"""Names of events and items, and the text of the item in progress. Knows no protocol's events."""

import secrets
from dataclasses import dataclass, field


class Names:
    """Names that are unique in this process and cheap: a random prefix of the connection and a count."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._count = 0

    def new(self, kind: str) -> str:
        """A name such as `item_0f3a...1`."""
        self._count += 1
        return f"{kind}_{self._prefix}{self._count}"


@dataclass
class Item:
    """The segment in progress, once it has words."""

    name: str
    sent: str = field(default="")
    """The stable text that deltas have brought so far."""
    interim: str = field(default="")
    """What was last shown behind it."""

    def advance(self, text: str, stable_chars: int) -> str:
        """Takes the segment's text so far; returns the stable text that is new. `interim` becomes the rest."""
        stable = text[:stable_chars]
        delta = stable[len(self.sent) :] if stable.startswith(self.sent) else ""
        self.sent += delta
        self.interim = text[len(self.sent) :] if text.startswith(self.sent) else ""
        return delta
