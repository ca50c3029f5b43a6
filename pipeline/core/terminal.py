"""Tables in a terminal of 80 columns: numbers stand right and whole, only texts are folded."""

from rich import box
from rich.table import Table


def plain_table(title: str, texts: list[str], numbers: list[str]) -> Table:
    """Give an empty table with columns of texts, then columns of numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table
