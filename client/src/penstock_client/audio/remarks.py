"""What a reader tells of a file beside its samples: what is missing, where, and how much."""

from collections.abc import Iterable
from typing import NamedTuple

CUT, DAMAGED, GAP, UNREAD, CANCELLED = "cut", "damaged", "gap", "unread", "cancelled"
"""Codes: the file ends before its end; parts could not be decoded; its times have a hole; bytes at the end were not
read; the channels cancel in the mix."""
MIN_LOST_S = 0.05
"""Programs write lengths that are off by a header or by a frame of their encoding."""
_MAX_REMARKS = 10
_TEXTS = {
    CUT: "is cut: ends at {start_s:.2f} s{lost}",
    DAMAGED: "is damaged at {start_s:.2f} s{lost}",
    GAP: "has no audio at {start_s:.2f} s for {lost_s:.2f} s",
    UNREAD: "has more data after {start_s:.2f} s, which is not read",
    CANCELLED: "its channels cancel in the mix (opposite phase): choose one, or each",
}


class Remark(NamedTuple):
    """One remark; `code` is stable."""

    code: str
    start_s: float
    """Its place in the file."""
    lost_s: float
    """Seconds of audio that are missing, silence in their place; 0 where that is not known."""

    @property
    def text(self) -> str:
        """For a user, without the file's name."""
        lost = f", {self.lost_s:.2f} s are missing" if self.lost_s else ""
        return _TEXTS[self.code].format(start_s=self.start_s, lost_s=self.lost_s, lost=lost)

    @property
    def document(self) -> dict[str, object]:
        """For JSON."""
        numbers = {"start_s": round(self.start_s, 3), "lost_s": round(self.lost_s, 3)}
        return {"code": self.code, **numbers, "message": self.text}


def header(remarks: Iterable[Remark]) -> str:
    """Remarks as the value of a header: `cut; start=4.35; lost=4.35, gap; ...`."""
    return ", ".join(f"{each.code}; start={each.start_s:.2f}; lost={each.lost_s:.2f}" for each in remarks)


class Remarks(list[Remark]):
    """The remarks of one file, in order; neighbours of one code are one remark, and there are at most ten."""

    def note(self, code: str, start_s: float, lost_s: float = 0.0) -> None:
        """Adds a remark, or adds its seconds to that before."""
        last = self[-1] if self else None
        if last is not None and last.code == code and (start_s - last.start_s < 1.0 or len(self) >= _MAX_REMARKS):
            self[-1] = Remark(code, last.start_s, last.lost_s + lost_s)
        elif len(self) < _MAX_REMARKS:
            self.append(Remark(code, start_s, lost_s))
