"""Figures as a person reads them."""

from __future__ import annotations


def size_text(count_bytes: float) -> str:
    """Bytes in the unit that keeps the figure short: 512 B, 64.0 MiB, 1.5 GiB."""
    size = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
