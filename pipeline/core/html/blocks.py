"""What reports are made of: cards, tables that sort, filters, and plots whose numbers can be read as text."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipeline.core.html.markup import Html, join, tag


class Cell(NamedTuple):
    """A table's cell that shows one thing and sorts by another."""

    shown: object
    value: float | str


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """Give a number for people, or a dash for nothing known."""
    return "\u2013" if value is None else f"{value:,.{digits}f}{unit}"


def percent(value: float | None, digits: int = 1) -> Cell:
    """Share as a percentage that sorts by the share."""
    return Cell("\u2013" if value is None else f"{value:.{digits}%}", -1.0 if value is None else value)


def money(value: float | None, digits: int = 4) -> Cell:
    """Dollars."""
    return Cell("\u2013" if value is None else f"${value:,.{digits}f}", -1.0 if value is None else value)


def badge(text: str, kind: str) -> Html:
    """Coloured word; the colour says nothing that the word does not."""
    return tag("span", text, class_=f"badge {kind}")


def cards(items: Iterable[tuple[object, str]]) -> Html:
    """Big figures, each with what it is."""
    return tag("ul", *(tag("li", tag("b", figure), tag("span", what)) for figure, what in items), class_="cards")


def _numeric(value: object) -> bool:
    return isinstance(value.value if isinstance(value, Cell) else value, int | float)


def _cell(value: object) -> Html:
    shown, key = value if isinstance(value, Cell) else (value, None)
    if isinstance(value, int):
        shown, key = f"{value:,}", value
    elif isinstance(value, float):
        shown, key = f"{value:,.3g}", value
    return tag("td", "\u2013" if shown is None else shown, class_="n" if _numeric(value) else None, data_v=key)


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    caption: str,
    body_id: str | None = None,
    kinds: Sequence[str] | None = None,
) -> Html:
    """Table whose columns sort by a click or Enter on their head; ``kinds`` tags each row for a filter."""
    rows = list(rows)
    right = [bool(rows) and _numeric(rows[0][column]) for column in range(len(heads))]
    buttons = [tag("button", text, type="button") for text in heads]
    head = tag(
        "tr",
        *(
            tag("th", button, scope="col", aria_sort="none", class_="n" if n else None)
            for button, n in zip(buttons, right, strict=True)
        ),
    )
    body = [tag("tr", *map(_cell, row), data_kind=kinds[index] if kinds else None) for index, row in enumerate(rows)]
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body, id=body_id), data_sort=True)
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def row_filter(target: str, what: str, kinds: Sequence[str]) -> Html:
    """Words and a kind that hide the children of ``target`` which do not have them."""
    options = [tag("option", f"any {what}", value=""), *(tag("option", kind, value=kind) for kind in kinds)]
    return tag(
        "div",
        tag("label", "Words", tag("input", type="search", autocomplete="off")),
        tag("label", what.capitalize(), tag("select", *options)),
        tag("output", "", class_="small soft", aria_live="polite"),
        class_="filter",
        data_filter=target,
    )


def fold(summary: str, body: Html) -> Html:
    """Something that most readers can do without, behind its heading."""
    return tag("details", tag("summary", summary), body)


def facts(items: Iterable[tuple[str, object]]) -> Html:
    """Names and values."""
    return tag("dl", *(join(tag("dt", name), tag("dd", value)) for name, value in items), class_="facts")


def numbers(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Give a plot's numbers as text."""
    body = [tag("tr", *map(_cell, row)) for row in rows]
    head = tag("tr", *(tag("th", text, scope="col") for text in heads))
    return tag(
        "details",
        tag("summary", "Numbers"),
        tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll", tabindex=0),
    )
