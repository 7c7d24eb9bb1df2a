"""N-gram lookups of one run as a table for the terminal: a row per window, a column per number of candidates.

Shows what the views say; computes nothing but the shade of a cell.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

_SHADES = ("grey93", "light_steel_blue1", "sky_blue2", "steel_blue1", "dodger_blue2", "blue3")
_DARK = 4  # from this shade on the digits are white


def heat_map(rows: Sequence[dict[str, Any]], number: str, write: Callable[[Any], str]) -> Table | None:
    """A cell per lookup; None where there are not two windows and two numbers of candidates to compare.

    Args:
        rows: of proposer_summary with proposer_settings; other methods are passed over, as are lookups whose cell an
            earlier row of the same method has; where both methods are there, `ngram` is shown.
        number: the column shown.
        write: its value as text.
    """
    methods = [row["method"] for row in rows if row["method"] in ("ngram", "ngram_gpu")]
    if not methods:
        return None
    cells: dict[tuple[tuple[int, int], int], Any] = {}
    for row in rows:
        if row["method"] == min(methods):
            window = row["prompt_lookup_min"], row["prompt_lookup_max"]
            cells.setdefault((window, row["num_speculative_tokens"]), row[number])
    windows, depths = sorted({w for w, _ in cells}), sorted({k for _, k in cells})
    if len(windows) < 2 or len(depths) < 2:
        return None
    known = [value for value in cells.values() if value is not None]
    low, high = min(known, default=0), max(known, default=0)
    table = Table(box=None, header_style="dim", pad_edge=False, padding=0)
    table.add_column("window ", no_wrap=True)
    for k in depths:
        table.add_column(f" k={k} ", justify="right", no_wrap=True)
    for window in windows:
        texts = []
        for k in depths:
            value = cells.get((window, k), "")  # no such lookup
            shade = None if value in (None, "") else _shade(value, low, high)
            texts.append(Text("" if value == "" else f" {write(value)} ", style=shade or ""))
        table.add_row(f"{window[0]} to {window[1]} ", *texts)
    return table


def _shade(value: float, low: float, high: float) -> str:
    at = 0 if high == low else min(len(_SHADES) - 1, int((value - low) / (high - low) * len(_SHADES)))
    return f"{'white' if at >= _DARK else 'black'} on {_SHADES[at]}"
