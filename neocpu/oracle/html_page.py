"""What does a report look like in a browser? One page, no script, nothing loaded: a table of cases,
and for each failed one where it is wrong (a map of |error| / bound, one picture per output or
table) and what explains it.
"""

from collections.abc import Iterator
from html import escape

import numpy as np
from numpy.typing import NDArray

from neocpu.oracle.operator import Case
from neocpu.oracle.report import CaseReport, Report, ranked, told

# |error| / bound beyond which an element has this colour; the first is right.
SCALE = (
    (0.0, "#e8efe9", "right"),
    (1.0, "#f6d98b", "up to 10 bounds"),
    (10.0, "#ee9b4a", "to 1,000"),
    (1e3, "#d1493f", "to a million"),
    (1e6, "#6b1a4a", "beyond, or NaN"),
)
WIDEST = 128
TALLEST = 64
MOST_PANELS = 6
# pixels: a cell, of large maps and small; how far cells grow a map
SMALLEST = 6
LARGEST = 16
ACROSS = 768
DOWN = 320

STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:2rem 0 .3rem;border-top:1px solid #ddd;padding-top:1rem;scroll-margin-top:3rem}
h1,h2,p,li,td{overflow-wrap:anywhere}small{font-weight:400;color:#555}a{color:#1a4f8a}code{font-size:.92em}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;min-width:40rem}
td,th{text-align:left;padding:.2rem .9rem .2rem 0;vertical-align:top}td:nth-child(-n+3),th{overflow-wrap:normal}
th{border-bottom:1px solid #999}th:nth-child(4){width:6.5rem}
th:nth-child(4),td:nth-child(4){text-align:right;padding-right:1.6rem}tr+tr td{border-top:1px solid #eee}
.passed{color:#26734d}.failed{color:#b3261e;font-weight:600}.unanswered{color:#666}
.jump{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;margin:.3rem 0 1rem}
.why{background:#fbf4e6;border-left:4px solid #ee9b4a;padding:.5rem .8rem;margin:.6rem 0}.why b{font-family:monospace}
.maps{display:flex;flex-wrap:wrap;gap:1rem 2rem;margin:.6rem 0}figure{margin:0;max-width:100%}
figcaption{font-size:.8rem;color:#555}svg{border:1px solid #b9c4bc;max-width:100%;height:auto;display:block}
.key{position:sticky;top:0;background:#fff;border-bottom:1px solid #ddd;margin:0;padding:.4rem 0;font-size:.9rem}
.key span{white-space:nowrap;margin-left:1em}
.key i{display:inline-block;width:.9em;height:.9em;margin-right:.35em;vertical-align:-.1em;border:1px solid #b9c4bc}
@media print{h2{break-after:avoid}.key{position:static}}
"""


def page(report: Report) -> str:
    """The whole page as text."""
    explains = dict(report.likely())
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>oracle: {escape(report.headline())}</title><style>{STYLE}</style></head><body>",
        (
            "<h1>Oracle: <span "
            f'class="{"passed" if report else "failed"}">{escape(report.headline())}</span></h1>'
        ),
        f"<p>Answers: <code>{escape(report.source)}</code></p>",
        *_unknown(report),
        *_summary(report),
        *(_failure(found, explains) for found in report.failures),
        _table(report),
        "</body></html>",
    ]
    return "\n".join(parts)


def _unknown(report: Report) -> Iterator[str]:
    if report.unknown:
        keys = "".join(f"<li><code>{escape(key)}</code></li>" for key in report.unknown)
        yield f"<p class=failed>Answers to no question:</p><ul>{keys}</ul>"


def _summary(report: Report) -> Iterator[str]:
    if report.failures:
        failed = len(report.failures)
        lines = [
            f"<li><code>{escape(names)}</code> explains {n} of {failed}</li>"
            for names, n in report.likely()[:5]
        ]
        yield (
            "<p>Likely causes of the failed "
            f"cases:</p><ul>{''.join(lines) or '<li>none that is known</li>'}</ul>"
        )
        names = "".join(
            f'<a href="#{escape(c.case.name)}">{escape(c.case.name)}</a>' for c in report.failures
        )
        yield f'<p>Failed:</p><div class="jump">{names}</div>'
        keys = "".join(
            f'<span><i style="background:{colour}"></i>{words}</span>' for _, colour, words in SCALE
        )
        yield f'<p class="key">Maps show |error| / bound, rows downwards:{keys}</p>'


def _failure(found: CaseReport, explains: dict[str, int]) -> str:
    case = found.case
    parts = []
    parts.append(
        f'<h2 id="{escape(case.name)}">{escape(case.name)} <small>({escape(case.op)})</small></h2>'
    )
    if case.about:
        parts.append(f"<p>{escape(case.about)}</p>")
    for d in ranked(found, explains)[:3]:
        fix = f"<br>{escape(d.fix)}" if d.fix else ""
        parts.append(
            f'<div class="why"><b>{escape(" + ".join(d.names))}</b> ({d.kind}): '
            f"{escape(d.about)}{fix}</div>"
        )
    for v in found.verdicts:
        if v.message:
            parts.append(f"<p><code>{escape(v.output)}</code>: {escape(v.message)}</p>")
        if v.first is not None and v.worst is not None:
            first = escape(told(v.first))
            worst = escape(told(v.worst))
            named = (
                f"First and worst: {first}"
                if first == worst
                else f"First: {first}<br>Worst: {worst}"
            )
            parts.append(
                f"<p><code>{escape(v.output)}</code>: {v.wrong:,} of {v.elements:,} "
                f"wrong.<br>{named}</p>"
            )
        if v.ratio is not None:
            drawn = [_figure(title, cells) for title, cells in panels(case, v.output, v.ratio)]
            parts.append(f'<div class="maps">{"".join(drawn)}</div>')
    return "\n".join(parts)


def panels(
    case: Case, output: str, ratio: NDArray[np.float64]
) -> list[tuple[str, NDArray[np.float64]]]:
    """Pictures of an output: one per table where it is a flat run of tables, else rows by the last
    axis.
    """
    rows = case.inputs.get("rows")
    dims = case.inputs.get("dims")
    if ratio.ndim == 1 and rows is not None and dims is not None:
        for widths in (np.asarray(dims), np.ones(rows.size, np.int64)):
            if int((rows * widths).sum()) == ratio.size and ratio.size:
                pieces = np.split(ratio, np.cumsum(rows * widths)[:-1])
                shaped = [
                    piece.reshape(int(r), int(w)) for piece, r, w in zip(pieces, rows, widths)
                ]
                wrong = [(f"{output}, table {t}", p) for t, p in enumerate(shaped) if p.any()]
                return wrong[:MOST_PANELS]
    cells = ratio.reshape(-1, ratio.shape[-1]) if ratio.ndim > 1 else ratio.reshape(1, -1)
    return [(output, cells)] if cells.size else []


def _figure(title: str, cells: NDArray[np.float64]) -> str:
    """A map as SVG: cells of the worst element they cover, equal neighbours in a row joined."""
    if cells.shape[0] == 1 and cells.shape[1] > WIDEST:  # a long line is folded
        folded = np.zeros((-(-cells.shape[1] // WIDEST), WIDEST))
        folded.reshape(-1)[: cells.size] = cells
        cells = folded
    small = shrunk(shrunk(cells, TALLEST, 0), WIDEST, 1)
    level = (
        np.digitize(small, [low for low, _, _ in SCALE][1:], right=True)
        if small.size
        else small.astype(int)
    )
    level = np.where((small > 0) & (level == 0), 1, level)
    height, width = small.shape
    rects = []
    for y in range(height):
        cuts = np.flatnonzero(np.diff(level[y])) + 1
        for x0, x1 in zip([0, *cuts.tolist()], [*cuts.tolist(), width]):
            if level[y, x0]:
                fill = SCALE[level[y, x0]][1]
                rects.append(f'<rect x="{x0}" y="{y}" width="{x1 - x0}" height="1" fill="{fill}"/>')
    cell = max(SMALLEST, min(LARGEST, ACROSS // max(width, 1), DOWN // max(height, 1)))
    size = f'width="{width * cell}" height="{height * cell}" viewBox="0 0 {width} {height}"'
    ground = f'<rect width="{width}" height="{height}" fill="{SCALE[0][1]}"/>'
    svg = f'<svg {size} shape-rendering="crispEdges" role="img">{ground}{"".join(rects)}</svg>'
    return (
        f"<figure>{svg}<figcaption>{escape(title)}: {cells.shape[0]} by "
        f"{cells.shape[1]}</figcaption></figure>"
    )


def shrunk(cells: NDArray[np.float64], most: int, axis: int) -> NDArray[np.float64]:
    """At most so many cells along an axis, each the largest of those it covers."""
    if cells.shape[axis] <= most:
        return cells
    starts = np.arange(most) * cells.shape[axis] // most
    return np.maximum.reduceat(cells, starts, axis)


def _table(report: Report) -> str:
    rows = []
    for found in report.cases:
        name = escape(found.case.name)
        status = found.status
        link = f'<a href="#{name}">{name}</a>' if status == "failed" else name
        worst = max((v.worst_ratio for v in found.verdicts), default=0.0)
        about = f"{found.case.about} ({found.note})" if found.note else found.case.about
        rows.append(
            f"<tr><td>{link}<td><code>{escape(found.case.op)}</code><td "
            f'class="{status}">{status}<td>{worst:.3g}'
            f"<td>{escape(about)}</tr>"
        )
    rows += [
        f'<tr><td>{escape(name)}<td><td class="unanswered">unanswered<td><td></tr>'
        for name in report.unanswered
    ]
    head = "<tr><th>case<th>operator<th>outcome<th>worst |error| / bound<th>what it breaks</tr>"
    return f'<h2>All cases</h2><div class="wide"><table>{head}{"".join(rows)}</table></div>'
