"""Tables for a terminal of 80 columns: numbers are right-aligned and never folded, texts fold."""

from rich import box
from rich.table import Table


def plain_table(title: str, texts: list[str], numbers: list[str]) -> Table:
    """Make an empty table with columns for texts, followed by columns for numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table
