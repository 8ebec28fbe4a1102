"""PagePool: which of a fixed number of equal pages are free. Knows nothing of what lies in them."""

import heapq
from collections.abc import Iterable


class PagePool:
    """Pages 0 .. count-1 except the reserved ones, lent one by one, the lowest free one first."""

    def __init__(self, count: int, reserved: int = 0):
        """reserved: pages 0 .. reserved-1 are never lent."""
        self._free = list(range(reserved, count))
        self._is_free = [page >= reserved for page in range(count)]
        self.lendable = count - reserved

    @property
    def free(self) -> int:
        """Pages that can be taken."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Lends `count` pages; which ones has no meaning. ValueError where fewer are free, and none is lent."""
        if count > len(self._free):
            raise ValueError(f"{count} pages wanted, {len(self._free)} are free")
        pages = [heapq.heappop(self._free) for _ in range(count)]
        for page in pages:
            self._is_free[page] = False
        return pages

    def give_back(self, pages: Iterable[int]) -> None:
        """Takes lent pages back; ValueError where one is not lent."""
        for page in pages:
            if self._is_free[page]:
                raise ValueError(f"page {page} is not lent")
            self._is_free[page] = True
            heapq.heappush(self._free, page)
