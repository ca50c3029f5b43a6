"""The building blocks of reports: cards, sortable tables, filters, folds and lists of facts."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipeline.core.html.markup import Html, join, tag


class Cell(NamedTuple):
    """A cell of a table that shows one value and sorts by another."""

    shown: object
    value: float | str


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """Format a number with separators and a unit; None becomes a dash."""
    return "\u2013" if value is None else f"{value:,.{digits}f}{unit}"


def percent(value: float | None, digits: int = 1) -> Cell:
    """Format a share as a percentage that sorts by the share; None becomes a dash and sorts first."""
    return Cell("\u2013" if value is None else f"{value:.{digits}%}", -1.0 if value is None else value)


def money(value: float | None, digits: int = 4) -> Cell:
    """Format an amount in dollars that sorts by the amount; None becomes a dash and sorts first."""
    return Cell("\u2013" if value is None else f"${value:,.{digits}f}", -1.0 if value is None else value)


def badge(text: str, kind: str) -> Html:
    """Return a coloured word; the colour adds nothing to its meaning."""
    return tag("span", text, class_=f"badge {kind}")


def cards(items: Iterable[tuple[object, str]]) -> Html:
    """Return large figures, each with its description."""
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
    """Return a table whose columns sort by a click or Enter on their head.

    ``kinds`` has the words of each row by which `row_filter` selects; ``body_id`` is the filter's target.
    """
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


def row_filter(target: str, label: str, kinds: Sequence[str]) -> Html:
    """Return a form that hides children of the element ``target`` by their words and their kind.

    ``label`` names the kinds.
    """
    options = [tag("option", f"any {label}", value=""), *(tag("option", kind, value=kind) for kind in kinds)]
    return tag(
        "div",
        tag("label", "Words", tag("input", type="search", autocomplete="off")),
        tag("label", label.capitalize(), tag("select", *options)),
        tag("output", "", class_="small soft", aria_live="polite"),
        class_="filter",
        data_filter=target,
    )


def fold(summary: str, body: Html) -> Html:
    """Return content that opens by a click on its heading."""
    return tag("details", tag("summary", summary), body)


def facts(items: Iterable[tuple[str, object]]) -> Html:
    """Return a list of names and values."""
    return tag("dl", *(join(tag("dt", name), tag("dd", value)) for name, value in items), class_="facts")


def numbers(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Return the numbers of a plot as a table behind a click."""
    body = [tag("tr", *map(_cell, row)) for row in rows]
    head = tag("tr", *(tag("th", text, scope="col") for text in heads))
    return tag(
        "details",
        tag("summary", "Numbers"),
        tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll", tabindex=0),
    )
