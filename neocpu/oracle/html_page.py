"""What does a report look like in a browser? One page, no script, nothing loaded.

A table of all cases, and for each failed one where it is wrong (a map of |error| / bound, one
picture per output or table) and what explains it.
"""

from collections.abc import Iterator
from html import escape

import numpy as np
from numpy.typing import NDArray

from neocpu.oracle.operator import Case
from neocpu.oracle.outcome import CaseOutcome, CheckOutcome, described, told
from neocpu.oracle.verdicts.compare import Verdict

# |error| / bound beyond which an element has this colour; the first is right.
SCALE = (
    (0.0, "#e8efe9", "right"),
    (1.0, "#f6d98b", "up to 10 bounds"),
    (10.0, "#ee9b4a", "to 1,000"),
    (1e3, "#d1493f", "to a million"),
    (1e6, "#6b1a4a", "beyond, or NaN"),
)
WIDEST = 128  # cells of a map
TALLEST = 64
MOST_PANELS = 6
SMALLEST_CELL = 6  # pixels of a cell, in large maps
LARGEST_CELL = 16  # and in small ones
MAP_WIDTH = 768  # pixels that cells grow to fill
MAP_HEIGHT = 320

STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;
  color:#222;background:#fff}
h1{font-size:1.4rem}
h2{font-size:1.1rem;margin:2rem 0 .3rem;border-top:1px solid #ddd;padding-top:1rem;
  scroll-margin-top:3rem}
h1,h2,p,li,td{overflow-wrap:anywhere}
small{font-weight:400;color:#555}
a{color:#1a4f8a}
code{font-size:.92em}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;min-width:40rem}
td,th{text-align:left;padding:.2rem .9rem .2rem 0;vertical-align:top}
td:nth-child(-n+3),th{overflow-wrap:normal}
th{border-bottom:1px solid #999}
th:nth-child(4){width:6.5rem}
th:nth-child(4),td:nth-child(4){text-align:right;padding-right:1.6rem}
tr+tr td{border-top:1px solid #eee}
.passed{color:#26734d}
.failed{color:#b3261e;font-weight:600}
.unanswered{color:#666}
.jump{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;margin:.3rem 0 1rem}
.why{background:#fbf4e6;border-left:4px solid #ee9b4a;padding:.5rem .8rem;margin:.6rem 0;
  list-style:none}
.why b{font-family:monospace}
.maps{display:flex;flex-wrap:wrap;gap:1rem 2rem;margin:.6rem 0}
figure{margin:0;max-width:100%}
figcaption{font-size:.8rem;color:#555}
svg{border:1px solid #b9c4bc;max-width:100%;height:auto;display:block}
.key{position:sticky;top:0;background:#fff;border-bottom:1px solid #ddd;margin:0;padding:.4rem 0;
  font-size:.9rem}
.key span{white-space:nowrap;margin-left:1em}
.key i{display:inline-block;width:.9em;height:.9em;margin-right:.35em;vertical-align:-.1em;
  border:1px solid #b9c4bc}
@media print{h2{break-after:avoid}.key{position:static}}
"""


def page(check: CheckOutcome) -> str:
    """The whole page as text."""
    headline = escape(check.headline())
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>oracle: {headline}</title><style>{STYLE}</style></head><body>",
        f'<h1>Oracle: <span class="{"passed" if check else "failed"}">{headline}</span></h1>',
        f"<p>Answers: <code>{escape(check.source)}</code></p>",
        *_unknown(check),
        *_summary(check),
        *(_failure(outcome) for outcome in check.failures),
        _table(check),
        "</body></html>",
    ]
    return "\n".join(parts)


def _unknown(check: CheckOutcome) -> Iterator[str]:
    if check.unknown:
        keys = "".join(f"<li><code>{escape(key)}</code></li>" for key in check.unknown)
        yield f"<p class=failed>Answers to no question:</p><ul>{keys}</ul>"


def _summary(check: CheckOutcome) -> Iterator[str]:
    """Likely causes, links to the failed cases, and the key of the maps."""
    if not check.failures:
        return
    conclusion = "".join(f"<li>{escape(line.strip())}</li>" for line in check.conclusion())
    if conclusion:
        yield f'<ul class="why">{conclusion}</ul>'
    names = [escape(outcome.case.name) for outcome in check.failures]
    links = "".join(f'<a href="#{name}">{name}</a>' for name in names)
    yield f'<p>Failed:</p><div class="jump">{links}</div>'
    colours = "".join(
        f'<span><i style="background:{colour}"></i>{words}</span>' for _, colour, words in SCALE
    )
    yield f'<p class="key">Maps show |error| / bound, rows downwards:{colours}</p>'


def _failure(outcome: CaseOutcome) -> str:
    """The section of a failed case."""
    case = outcome.case
    name = escape(case.name)
    parts = [f'<h2 id="{name}">{name} <small>({escape(case.op)})</small></h2>']
    if case.about:
        parts.append(f"<p>{escape(case.about)}</p>")
    for diagnosis in told(outcome)[:3]:
        fix = f"<br>{escape(diagnosis.fix)}" if diagnosis.fix else ""
        parts.append(
            f'<div class="why"><b>{escape(diagnosis.title)}</b> ({diagnosis.kind}): '
            f"{escape(diagnosis.about)}{fix}</div>"
        )
    for verdict in outcome.verdicts:
        parts += _wrong_output(case, verdict)
    return "\n".join(parts)


def _wrong_output(case: Case, verdict: Verdict) -> Iterator[str]:
    """Message, first and worst element, and maps of one output."""
    output = escape(verdict.output)
    if verdict.message:
        yield f"<p><code>{output}</code>: {escape(verdict.message)}</p>"
    if verdict.first is not None and verdict.worst is not None:
        first = escape(described(verdict.first))
        worst = escape(described(verdict.worst))
        elements = f"First: {first}<br>Worst: {worst}"
        if first == worst:
            elements = f"First and worst: {first}"
        count = f"{verdict.wrong:,} of {verdict.elements:,} wrong."
        yield f"<p><code>{output}</code>: {count}<br>{elements}</p>"
    if verdict.ratio is not None:
        figures = [_figure(*panel) for panel in panels(case, verdict.output, verdict.ratio)]
        yield f'<div class="maps">{"".join(figures)}</div>'


def panels(
    case: Case, output: str, ratio: NDArray[np.float64]
) -> list[tuple[str, NDArray[np.float64]]]:
    """Pictures of an output, by title: one per table where it is a flat run of tables, else one.

    ratio : |error| / bound of each element. A picture has the rows of a table, or rows by the
        last axis.
    """
    rows = case.inputs.get("rows")
    dims = case.inputs.get("dims")
    if ratio.ndim == 1 and rows is not None and dims is not None:
        # elements of the tables, or one number per row (states of row-wise rules)
        for widths in (np.asarray(dims), np.ones(rows.size, np.int64)):
            sizes = rows * widths
            if int(sizes.sum()) == ratio.size and ratio.size:
                pieces = np.split(ratio, np.cumsum(sizes)[:-1])
                tables = [
                    piece.reshape(int(h), int(w)) for piece, h, w in zip(pieces, rows, widths)
                ]
                wrong = [(f"{output}, table {t}", x) for t, x in enumerate(tables) if x.any()]
                return wrong[:MOST_PANELS]
    cells = ratio.reshape(-1, ratio.shape[-1]) if ratio.ndim > 1 else ratio.reshape(1, -1)
    return [(output, cells)] if cells.size else []


def _figure(title: str, cells: NDArray[np.float64]) -> str:
    """A map as SVG: cells of the worst element they cover, equal neighbours in a row joined."""
    if cells.shape[0] == 1 and cells.shape[1] > WIDEST:  # a long line is folded
        folded = np.zeros((-(-cells.shape[1] // WIDEST), WIDEST))
        folded.reshape(-1)[: cells.size] = cells
        cells = folded
    caption = f"{escape(title)}: {cells.shape[0]} by {cells.shape[1]}"
    small = shrunk(shrunk(cells, TALLEST, 0), WIDEST, 1)
    limits = [lowest for lowest, _, _ in SCALE][1:]
    level = np.digitize(small, limits, right=True)
    level = np.where((small > 0) & (level == 0), 1, level)
    height, width = small.shape
    rects = []
    for y in range(height):
        cuts = np.flatnonzero(np.diff(level[y])) + 1
        for x0, x1 in zip([0, *cuts.tolist()], [*cuts.tolist(), width]):
            if level[y, x0]:
                fill = SCALE[level[y, x0]][1]
                rects.append(f'<rect x="{x0}" y="{y}" width="{x1 - x0}" height="1" fill="{fill}"/>')
    cell = max(
        SMALLEST_CELL, min(LARGEST_CELL, MAP_WIDTH // max(width, 1), MAP_HEIGHT // max(height, 1))
    )
    size = f'width="{width * cell}" height="{height * cell}" viewBox="0 0 {width} {height}"'
    ground = f'<rect width="{width}" height="{height}" fill="{SCALE[0][1]}"/>'
    svg = f'<svg {size} shape-rendering="crispEdges" role="img">{ground}{"".join(rects)}</svg>'
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def shrunk(cells: NDArray[np.float64], most: int, axis: int) -> NDArray[np.float64]:
    """At most `most` cells along an axis, each the largest of those it covers."""
    if cells.shape[axis] <= most:
        return cells
    starts = np.arange(most) * cells.shape[axis] // most
    return np.maximum.reduceat(cells, starts, axis)


def _notes(outcome: CaseOutcome) -> str:
    """Warnings about a case, and what its answers cannot show."""
    notes = []
    for verdict in outcome.verdicts:
        notes += [f"warning: {verdict.output}: {warning}" for warning in verdict.warnings]
        notes += [f"not tested: {verdict.output}: {what}" for what in verdict.untested]
    return "".join(f"<br><small>{escape(note)}</small>" for note in notes)


def _table(check: CheckOutcome) -> str:
    rows = []
    for outcome in check.cases:
        name = escape(outcome.case.name)
        status = outcome.status
        link = f'<a href="#{name}">{name}</a>' if status == "failed" else name
        worst = max((verdict.worst_ratio for verdict in outcome.verdicts), default=0.0)
        about = outcome.case.about
        if outcome.note:
            about = f"{about} ({outcome.note})"
        rows.append(
            f"<tr><td>{link}<td><code>{escape(outcome.case.op)}</code>"
            f'<td class="{status}">{status}<td>{worst:.3g}<td>{escape(about)}{_notes(outcome)}</tr>'
        )
    rows += [
        f'<tr><td>{escape(name)}<td><td class="unanswered">unanswered<td><td></tr>'
        for name in check.unanswered
    ]
    head = "<tr><th>case<th>operator<th>outcome<th>worst |error| / bound<th>what it breaks</tr>"
    return f'<h2>All cases</h2><div class="wide"><table>{head}{"".join(rows)}</table></div>'
