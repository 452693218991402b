"""Does a trace become a picture on one scale, of a run and of a simulation alike?"""

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from neocpu.parallel.transport.timeline import ExchangeSpan, StageSpan, TracedStep
from neocpu.plan.simulation.chrome_trace import document
from neocpu.plan.simulation.trace_picture import BACKWARD, COLOURS, OTHER, Panel, colour, trace_svg
from neocpu.train.watch.trace_events import RankSpans, trace_events
from tests import recorded

SPACE = "{http://www.w3.org/2000/svg}"


def trace(rate: float) -> dict[str, Any]:
    """Two ranks, two steps of a second times `rate`: half a second of lookup, and an exchange."""
    ranks = []
    for rank in (0, 1):
        steps = []
        for number in (1, 2):
            begin = (number - 1) * rate
            step = TracedStep(number, begin)
            step.spans = [StageSpan("lookup", begin, begin + 0.5 * rate)]
            start = begin + 0.2 * rate
            over = begin + 0.8 * rate
            times = {"start": start, "started": start, "awaited": begin + 0.5 * rate, "end": over}
            step.exchanges = [
                ExchangeSpan("pooled output", "exchange", **times, over=over, bytes=8, alone=0.0)
            ]
            steps.append(step)
        ranks.append(RankSpans(rank, steps, 2 * rate))
    return json.loads(document(trace_events(ranks), {}))


def test_panels_share_a_scale() -> None:
    panels = [
        Panel("slow", trace(1.0), [0], (1, 2)),
        Panel("fast", trace(0.5), [0, 1], (1, 2)),
    ]
    picture = trace_svg(panels, "A step", "made up")
    recorded.check("picture of steps", recorded.lines_of(picture))
    drawn = ElementTree.fromstring(picture)
    widths = [
        float(box.get("width", "0"))
        for box in drawn.findall(f"{SPACE}rect")
        if box.get("fill") == COLOURS["lookup"] and box.find(f"{SPACE}title") is not None
    ]
    slow, fast = widths[:2], widths[2:]
    assert len(fast) == 4 and slow == pytest.approx([2 * width for width in fast[:2]], rel=1e-3)
    words = {text.text for text in drawn.findall(f"{SPACE}text")}
    assert {"rank 0  compute", "rank 1  pooled", "rank 0  waiting", "step 2"} <= words
    assert "slow: 1000.0 ms a step" in words
    assert "1000.0 ms a step" in (drawn.findtext(f"{SPACE}desc") or "")


def test_a_step_that_was_left_out_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match=r"no step 3 or no step 4 of ranks \[0\]"):
        trace_svg([Panel("slow", trace(1.0), [0], (3, 4))], "A step", "made up")


def test_what_is_alike_has_one_colour() -> None:
    assert colour("wait: pooled output") == COLOURS["wait"]
    assert colour("input rows") == colour("input lengths")
    assert colour("bottom_backward") == BACKWARD
    assert colour("something new") == OTHER
