"""How long a matrix product takes: its tiles, the waves of them, and what fills a card.

    tiles   = batch x ceil(m / 128) x ceil(n / 128), each of 2 x 128 x 128 x k FLOPs
    waves   = the mean of tiles / multiprocessors and of the next whole number
    compute = waves x (FLOPs of a tile) / (achieved FLOP/s of a multiprocessor)

Libraries choose among tiles of many sizes, so about half of the last wave is lost, and sides below
128 have tiles of 32, 64 or 96. If there are few tiles, k is split. A dimension that 16 bytes do not
divide costs `unaligned`. Constants are in `data/speed.toml`.
"""

from __future__ import annotations

from math import ceil

from oomdoctor.package_data import data_of

_PRODUCTS = data_of("speed.toml")["products"]
TILE: int = _PRODUCTS["tile"]
NARROW: int = _PRODUCTS["narrow"]
SPLIT: int = _PRODUCTS["split"]
UNALIGNED: float = _PRODUCTS["unaligned"]
_GROUPED: dict[str, float] = _PRODUCTS["grouped"]
_ALIGNED_BYTES = 16


def grouped_share(name: str, capability: str | None) -> float:
    """What a product of grouped experts reaches of the rate of others; 1 where none was found."""
    return _GROUPED.get(capability or "", 1.0) if "grouped_mm" in name else 1.0


def share_of_rate(shape: tuple[int, ...], item_bytes: float, multiprocessors: int | None) -> float:
    """What a product of (batch, m, n, k) reaches of the rate of large ones, at most 1.

    1 if the shape or the card's multiprocessors are not known.
    """
    if len(shape) != 4 or not multiprocessors or not all(shape):
        return 1.0
    batch, rows, columns, depth = shape
    tile_rows, tile_columns = (min(TILE, NARROW * ceil(size / NARROW)) for size in (rows, columns))
    tiles = batch * ceil(rows / tile_rows) * ceil(columns / tile_columns)
    if tiles < multiprocessors:  # parts of k are summed apart
        tiles *= max(1, depth // SPLIT)
    full = tiles / multiprocessors
    waves = (full + ceil(full)) / 2
    filled = rows * columns / (ceil(rows / tile_rows) * ceil(columns / tile_columns))
    aligned = all(size * item_bytes % _ALIGNED_BYTES == 0 for size in (columns, depth))
    share = full / waves * filled / (tile_rows * tile_columns)
    return share * (1.0 if aligned else UNALIGNED)
