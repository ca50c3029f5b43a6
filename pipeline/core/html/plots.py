"""Vector plots: bars, stacked bars and lines, each with its numbers in a table below."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.core.html.blocks import numbers
from pipeline.core.html.markup import Html, join, tag

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 480, 200, 52, 24, 8
Bins = list[tuple[str, int]]


def _place(value: float) -> float:
    return round(value, 1)


def histogram(values: NDArray[np.int64], bins: int = 24) -> Bins:
    """Count whole numbers [n] in at most ``bins`` bins of equal width; return label and count of each."""
    if not len(values):
        return []
    low, high = int(values.min()), int(values.max())
    width = max(1, -(-(high - low + 1) // bins))
    counts = np.bincount((values - low) // width)
    edges = [low + width * index for index in range(len(counts))]
    return [
        (str(edge) if width == 1 else f"{edge}\u2013{edge + width - 1}", int(count))
        for edge, count in zip(edges, counts, strict=True)
    ]


def signed_histogram(values: NDArray[np.int64]) -> Bins:
    """Count whole numbers [n] in bins that double in width away from zero, which has a bin of its own.

    Small and large differences fit one plot.
    """
    if not len(values):
        return []
    top = int(np.abs(values).max()).bit_length()
    bins: Bins = []
    for power in (*range(-top, 0), 0, *range(1, top + 1)):
        low, high = (1 << abs(power)) >> 1, (1 << abs(power)) - 1
        low, high = (-high, -low) if power < 0 else (low, high)
        label = "0" if power == 0 else f"{low:+d}" if low == high else f"{low:+d}\u2026{high:+d}"
        bins.append((label, int(((values >= low) & (values <= high)).sum())))
    return bins


def bars(title: str, bins: Bins, unit: str) -> Html:
    """Return a bar chart of counts."""
    if not bins:
        return tag("figure", tag("figcaption", title), tag("p", "Nothing to show.", class_="soft small"))
    most = max(count for _label, count in bins) or 1
    step, inner = (_WIDTH - _LEFT) / len(bins), _HEIGHT - _BOTTOM - _TOP
    marks, every = [], max(1, len(bins) // 6)
    for index, (label, count) in enumerate(bins):
        x, height = _LEFT + step * index, inner * count / most
        bar = tag(
            "rect",
            tag("title", f"{label} {unit}: {count:,}"),
            x=_place(x + 1),
            y=_place(_TOP + inner - height),
            width=_place(max(step - 2, 1)),
            height=_place(height),
            class_="f1",
        )
        marks.append(bar)
        if index % every == 0:
            marks.append(
                tag(
                    "text",
                    re.split("[\u2013\u2026]", label)[0],
                    x=_place(x + step / 2),
                    y=_HEIGHT - 6,
                    text_anchor="middle",
                )
            )
    picture = _picture(f"{title}: {len(bins)} bars, at most {most:,}", _axes(f"{most:,}"), *marks)
    return tag("figure", tag("figcaption", title), picture, numbers((unit, "rows"), bins))


def _axes(most: str, least: str = "0") -> Html:
    base = _HEIGHT - _BOTTOM
    return join(
        tag("line", x1=_LEFT, y1=_TOP, x2=_LEFT, y2=base, class_="axis"),
        tag("line", x1=_LEFT, y1=base, x2=_WIDTH, y2=base, class_="axis"),
        tag("text", most, x=_LEFT - 6, y=_TOP + 10, text_anchor="end"),
        tag("text", least, x=_LEFT - 6, y=base, text_anchor="end"),
    )


def _picture(label: str, *children: Html) -> Html:
    return tag("svg", *children, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=label)


def stacked(title: str, rows: Mapping[str, Mapping[str, int]], kinds: Sequence[str]) -> Html:
    """Return one bar of full width for each row, divided by kind, to compare shares of different totals."""
    line, left, width = 26, 130, 480
    marks = []
    for index, (name, counts) in enumerate(rows.items()):
        x, whole = float(left), sum(counts.values()) or 1
        marks.append(
            tag(
                "text",
                name if len(name) < 18 else f"{name[:17]}\u2026",
                x=left - 8,
                y=line * index + 17,
                text_anchor="end",
            )
        )
        for color, kind in enumerate(kinds, 1):
            part = (width - left) * counts.get(kind, 0) / whole
            if part:
                text = f"{name}, {kind}: {counts[kind]:,} of {whole:,}"
                marks.append(
                    tag(
                        "rect",
                        tag("title", text),
                        x=_place(x),
                        y=line * index + 3,
                        width=_place(part),
                        height=line - 6,
                        class_=f"f{color}",
                    )
                )
            x += part
    picture = tag("svg", *marks, viewBox=f"0 0 {width} {line * len(rows)}", role="img", aria_label=title)
    legend = tag(
        "ul",
        *(tag("li", tag("span", "", class_=f"key f{color}"), kind) for color, kind in enumerate(kinds, 1)),
        class_="legend",
    )
    table = numbers(("", *kinds), [(name, *(counts.get(kind, 0) for kind in kinds)) for name, counts in rows.items()])
    return tag("figure", tag("figcaption", title), legend, picture, table)


def lines(title: str, x: Sequence[float], series: Mapping[str, Sequence[float | None]], x_name: str) -> Html:
    """Return lines over a common axis; a missing value leaves a gap."""
    values = [value for ys in series.values() for value in ys if value is not None]
    if len(x) < 2 or not values:
        return tag("figure", tag("figcaption", title), tag("p", "Nothing to show.", class_="soft small"))
    low, high, inner = min(values), max(values), _HEIGHT - _BOTTOM - _TOP
    across, up = (x[-1] - x[0]) or 1, (high - low) or 1
    marks = []
    for color, ys in enumerate(series.values(), 1):
        drawn, lift = [], True
        for at, value in zip(x, ys, strict=True):
            if value is None:
                lift = True
                continue
            place_x = _place(_LEFT + (_WIDTH - _LEFT) * (at - x[0]) / across)
            place_y = _place(_TOP + inner * (high - value) / up)
            drawn.append(f"{'M' if lift else 'L'}{place_x} {place_y}")
            lift = False
        marks.append(tag("path", d=" ".join(drawn), class_=f"line l{(color - 1) % 5 + 1}"))
    ends = [
        tag("text", f"{at:g}", x=place, y=_HEIGHT - 6, text_anchor=anchor)
        for at, place, anchor in ((x[0], _LEFT, "start"), (x[-1], _WIDTH, "end"))
    ]
    legend = tag(
        "ul",
        *(
            tag("li", tag("span", "", class_=f"key f{(color - 1) % 5 + 1}"), name)
            for color, name in enumerate(series, 1)
        ),
        class_="legend",
    )
    table = numbers((x_name, *series), [(at, *(ys[index] for ys in series.values())) for index, at in enumerate(x)])
    return tag(
        "figure",
        tag("figcaption", title),
        legend,
        _picture(title, _axes(f"{high:.3g}", f"{low:.3g}"), *marks, *ends),
        table,
    )
