"""What do the pictures of the course show? One drawing for each unit, of its own small example.

`python docs/_ext/course_pictures.py` writes docs/course/*.svg; `tests/test_course.py` says when it
has to be run. They stand on white, so they can be read on a dark page, too.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from neocpu.core.svg import box, document, line, text
from neocpu.core.trees import aligned_nodes, rank_leaves
from neocpu.oracle.course.solutions.planner import place
from neocpu.oracle.course.solutions.tiers import cache

FOLDER = Path(__file__).resolve().parent.parent / "course"
RANKS = ("#cfe0f3", "#fbdcc0", "#cdebd3", "#e6d5f0")  # pale: dark words stand on them
GREY, INK, RED, BLUE = "#eeeeee", "#444444", "#b0451f", "#1f5a99"
CELL = 34.0


def cell(x: float, y: float, words: object, colour: str = GREY, width: float = CELL) -> list[str]:
    """A box with words in its middle."""
    middle = text(x + width / 2, y + 21, str(words), 13, anchor="middle")
    return [box(x, y, width - 2, 30, colour), middle]


def row(x: float, y: float, words: Sequence[object], colours: Sequence[str] = ()) -> list[str]:
    """Cells side by side."""
    shades = colours or [GREY] * len(words)
    cells = zip(words, shades)
    return [
        part for k, (word, shade) in enumerate(cells) for part in cell(x + CELL * k, y, word, shade)
    ]


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str = INK) -> list[str]:
    """A line with a head at its end."""
    length = float(np.hypot(x2 - x1, y2 - y1))
    dx, dy = 7 * (x2 - x1) / length, 7 * (y2 - y1) / length
    points = f"{x2:.1f},{y2:.1f} {x2 - dx - dy / 2:.1f},{y2 - dy + dx / 2:.1f}"
    points += f" {x2 - dx + dy / 2:.1f},{y2 - dy - dx / 2:.1f}"
    return [line(x1, y1, x2, y2, colour), f'<polygon points="{points}" fill="{colour}"/>']


def dlrm() -> tuple[str, list[str]]:
    """Dense features and rows meet in dot products."""
    body = []
    for y, words, shade in (
        (30, "dense[b, 3]", GREY),
        (90, "table 0: row 4", RANKS[0]),
        (150, "table 1: row 1", RANKS[0]),
    ):
        body += cell(20, y, words, shade, 130)
        body += arrow(152, y + 15, 198 if y == 30 else 318, y + 15)
    body += cell(200, 30, "bottom", RANKS[2], 80) + arrow(282, 45, 318, 45)
    for number, y in enumerate((30, 90, 150)):
        body += cell(320, y, f"vector {number}", RANKS[1], 90)
        body += arrow(412, y + 15, 458, 90 + 15 * (number - 1) + 15)
    body += cell(460, 90, "pairs", RANKS[1], 70) + arrow(532, 105, 558, 105)
    body += cell(560, 90, "top", RANKS[2], 60) + arrow(622, 105, 648, 105)
    body += cell(650, 90, "z, loss", GREY, 80)
    body += [line(690, 122, 690, 185, RED, "5 4"), line(90, 205, 690, 205, RED, "5 4")]
    body += [line(690, 185, 690, 205, RED, "5 4"), *arrow(90, 205, 90, 183, RED)]
    body.append(
        text(390, 222, "the way back: each line forward has one line backward", 12, RED, "middle")
    )
    return "A DLRM: a bottom layer, rows of tables, dot products of all pairs, a top layer", body


def bags() -> tuple[str, list[str]]:
    """Offsets cut the lookups into bags."""
    rows, offsets = [3, 7, 7, 0, 2], [0, 3, 3, 5]
    bag_of = np.repeat(np.arange(3), np.diff(offsets))
    body = [text(20, 50, "rows"), *row(110, 30, rows, [RANKS[b] for b in bag_of])]
    body.append(text(20, 110, "offsets"))
    for bag, offset in enumerate(offsets):
        x = 110 + CELL * offset + (16 if bag == 2 else 0)
        body += [
            text(x, 110, str(offset), 13, BLUE, "middle"),
            *arrow(x, 96, 109 + CELL * offset, 64, BLUE),
        ]
    for bag, words in enumerate(("row 3 + row 7 + row 7", "nothing: zeros", "row 0 + row 2")):
        body += [
            text(400, 50 + 36 * bag, f"bag {bag}"),
            *cell(450, 30 + 36 * bag, words, RANKS[bag], 200),
        ]
    return "Offsets 0, 3, 3, 5 cut five lookups into three bags, the second of them empty", body


def order() -> tuple[str, list[str]]:
    """Running fp32 sums of four numbers in four orders."""
    big = np.float32(2**24)
    names = {float(big): "2²⁴", -float(big): "\N{MINUS SIGN}2²⁴", 1.0: "1"}
    body = [
        text(20, 26, "terms, in the order in which they are added"),
        text(330, 26, "running sums in fp32"),
    ]
    for k, terms in enumerate(
        ((big, 1, 1, -big), (big, 1, -big, 1), (1, 1, big, -big), (big, -big, 1, 1))
    ):
        total, sums = np.float32(0), []
        for term in terms:
            total = total + np.float32(term)
            sums.append(names.get(float(total), f"{total - big:+g}" if total > 9 else f"{total:g}"))
        sums = [f"2²⁴{s}" if s.startswith("+") else s for s in sums]
        y = 40 + 36 * k
        for place_, (term, running) in enumerate(zip(terms, sums)):
            body += cell(20 + 64 * place_, y, names[float(term)], GREY, 64)
            last = place_ == 3
            shade = (RANKS[2] if running == "2" else RANKS[1]) if last else GREY
            body += cell(330 + 70 * place_, y, running, shade, 70)
    body.append(
        text(20, 205, "The exact sum is 2, in every order: exact sums have none.", 12, BLUE)
    )
    return "Four numbers, added in fp32 in four orders, give 0, 1 and 2; the exact sum is 2", body


def backward() -> tuple[str, list[str]]:
    """Lookups are sorted; each row's are one segment and one step."""
    rows = [3, 7, 7, 0, 2, 7]
    shades = dict(zip((0, 2, 3, 7), RANKS))
    order_ = np.argsort(rows, kind="stable")
    body = [text(20, 50, "lookups"), *row(110, 30, rows, [shades[r] for r in rows])]
    body += [
        text(20, 130, "sorted"),
        *row(110, 110, [rows[k] for k in order_], [shades[rows[k]] for k in order_]),
    ]
    for target, source in enumerate(order_):
        body += arrow(126 + CELL * source, 62, 126 + CELL * target, 108)
    for k, (r, words) in enumerate(((0, "g₃"), (2, "g₄"), (3, "g₀"), (7, "g₁ + g₂ + g₅"))):
        body += [text(380, 46 + 36 * k, f"row {r}"), *cell(430, 26 + 36 * k, words, shades[r], 120)]
        body += [*arrow(552, 41 + 36 * k, 590, 41 + 36 * k), text(596, 46 + 36 * k, "one step")]
    return (
        "Six lookups are sorted by row; the gradients of row 7 are added before its one step",
        body,
    )


def narrow() -> tuple[str, list[str]]:
    """Codes of a row of four numbers; the chance to go up."""
    body = [text(20, 26, "int8: a row 0, 1, 2, 4 has the scale 4/255 and the bias 0")]
    body += [line(60, 70, 660, 70, INK)]
    for value, code in ((0, 0), (1, 64), (2, 128), (4, 255)):
        x = 60 + 600 * value / 4
        body += [line(x, 62, x, 78, INK), text(x, 56, str(value), 13, anchor="middle")]
        body.append(text(x, 96, f"code {code}", 12, BLUE, "middle"))
    body.append(
        text(20, 140, "stochastic: x lies a quarter of the way from one bf16 number to the next")
    )
    body += [line(60, 190, 660, 190, INK)]
    for x, words in ((60, "1"), (660, "1 + 2⁻⁷")):
        body += [line(x, 180, x, 200, INK), text(x, 216, words, 13, anchor="middle")]
    body += [box(206, 184, 8, 12, RED), text(210, 216, "x", 13, RED, "middle")]
    body += [*arrow(200, 178, 66, 178, BLUE), text(130, 172, "3 of 4 times", 12, BLUE, "middle")]
    body += [
        *arrow(220, 178, 654, 178, BLUE),
        text(440, 172, "1 of 4 times: the mean is x", 12, BLUE, "middle"),
    ]
    return (
        "Numbers of a row on the scale of its codes; and a number that is rounded up by chance",
        body,
    )


def ranks() -> tuple[str, list[str]]:
    """A table cut in three ways, and who gets the lookup of row 5."""
    body = []
    for k, (title, getters) in enumerate(
        (("by rows", (1,)), ("by columns", (0, 1)), ("copied", (0,)))
    ):
        x = 40.0 + 240 * k
        body.append(text(x + 70, 26, title, 13, anchor="middle", bold=True))
        if title == "by rows":
            body += [box(x, 40, 140, 58, RANKS[0]), box(x, 100, 140, 58, RANKS[1])]
            spots = ((x + 70, 74), (x + 70, 134))
        elif title == "by columns":
            body += [box(x, 40, 68, 118, RANKS[0]), box(x + 72, 40, 68, 118, RANKS[1])]
            spots = ((x + 34, 74), (x + 106, 74))
        else:
            body += [box(x, 40, 140, 118, RANKS[1]), box(x - 8, 48, 140, 118, RANKS[0])]
            spots = ((x + 60, 74), (x + 60, 150))
        shown = spots if title != "copied" else spots[:1]
        words = ("rank 0", "rank 1") if title != "copied" else ("every rank",)
        body += [text(sx, sy, word, 12, anchor="middle") for (sx, sy), word in zip(shown, words)]
        body += [line(x - 8, 118, x + 140, 118, RED, "5 4"), text(x + 150, 122, "row 5", 12, RED)]
        who = (
            "the sample's own rank"
            if title == "copied"
            else " and ".join(f"rank {r}" for r in getters)
        )
        body.append(text(x + 66, 190, f"its lookup goes to {who}", 11, anchor="middle"))
    return (
        "A table of 8 rows cut by rows, cut by columns, and copied; who gets the lookup of row 5",
        body,
    )


def trees() -> tuple[str, list[str]]:
    """Eight leaves on three ranks: their aligned nodes."""
    body = []
    owner = {}
    for rank in range(3):
        for start, size in aligned_nodes(*rank_leaves(rank, 3, 8)):
            owner[start, size] = rank
    for level, size in enumerate((1, 2, 4, 8)):
        for start in range(0, 8, size):
            x = 60 + 76 * (start + size / 2)
            y = 190.0 - 50 * level
            covering = [r for (lo, n), r in owner.items() if lo <= start and start + size <= lo + n]
            shade = RANKS[covering[0]] if covering else GREY
            if size < 8:
                parent = start // (2 * size) * 2 * size
                body.append(line(x, y, 60 + 76 * (parent + size), y - 20, INK))
            words = f"leaf {start}" if size == 1 else f"{start}, {size}"
            if (start, size) in owner:
                body.append(box(x - 35, y - 3, 68, 36, INK))
            body += cell(x - 32, y, words, shade, 64)
    body.append(text(20, 20, "framed: what ranks 0 (blue), 1 (orange) and 2 (green) send", 12))
    body.append(text(20, 38, "grey: what whoever receives them adds, left + right", 12))
    return (
        "A tree over eight leaves; three ranks send the largest aligned nodes of their leaves",
        body,
    )


def planner() -> tuple[str, list[str]]:
    """Tables in the order of arrival and largest first, on three ranks."""
    seconds = np.array([2, 2, 3, 3, 4, 7], float)
    arrival, load = [], np.zeros(3)
    for cost in seconds:
        arrival.append(int(np.argmin(load)))
        load[arrival[-1]] += cost
    greedy = place(seconds, np.ones(6, int), 3, 6)
    body = []
    for k, (title, owner) in enumerate(
        (("as they come", arrival), ("largest first", greedy.tolist()))
    ):
        top = 30.0 + 130 * k
        body.append(text(20, top, title, 13, bold=True))
        ends = [110.0] * 3
        order_ = range(6) if k == 0 else np.argsort(-seconds, kind="stable")
        for table in order_:
            rank = owner[table]
            width = 44 * seconds[table]
            body += cell(
                ends[rank], top + 8 + 34 * rank, f"{seconds[table]:g} s", RANKS[table % 4], width
            )
            ends[rank] += width
        body += [text(30, top + 29 + 34 * rank, f"rank {rank}", 12) for rank in range(3)]
        body.append(
            text(max(ends) + 10, top + 60, f"the step takes {(max(ends) - 110) / 44:g} s", 12, RED)
        )
    return (
        "Six tables on three ranks, as they come and largest first: which rank is the slowest",
        body,
    )


def tiers() -> tuple[str, list[str]]:
    """A cache of two lines, access by access, under lru and lfu."""
    rows = [1, 1, 2, 3, 1, 2]
    body = [text(20, 40, "accesses"), *row(120, 20, rows, [RANKS[r] for r in rows])]
    for k, policy in enumerate(("lru", "lfu")):
        hits, _ = cache(np.array(rows), np.zeros(6, bool), 2, policy)
        y = 70.0 + 50 * k
        body.append(text(20, y + 20, policy, 13, bold=True))
        shades = [RANKS[2] if hit else RANKS[1] for hit in hits]
        body += row(120, y, ["hit" if hit else "miss" for hit in hits], shades)
        body.append(text(340, y + 20, f"{int(hits.sum())} of 6 hit", 12))
    body.append(
        text(
            20,
            190,
            "Two lines. For row 3, lru gives row 1 up and lfu row 2, which was used once.",
            12,
            BLUE,
        )
    )
    return "Six accesses to a cache of two lines: what lru and lfu keep", body


def run() -> tuple[str, list[str]]:
    """The tracks of a rank in one step."""
    tracks = (
        ("steps", ((0, 560, "step 7", GREY),)),
        (
            "compute",
            (
                (0, 120, "lookup", RANKS[0]),
                (190, 170, "MLPs", RANKS[0]),
                (430, 90, "update", RANKS[0]),
            ),
        ),
        ("waiting", ((120, 70, "wait", RANKS[1]), (360, 70, "wait", RANKS[1]))),
        ("network", ((60, 130, "pooled output", RANKS[2]), (300, 130, "gradients", RANKS[2]))),
    )
    body = []
    for k, (track, pieces) in enumerate(tracks):
        y = 20.0 + 42 * k
        body.append(text(20, y + 20, track, 13))
        for begin, width, words, shade in pieces:
            body += cell(110 + begin, y, words, shade, width)
    body.append(
        text(
            110,
            200,
            "380 of 560 are computing, 140 waiting; what the network does meanwhile is hidden",
            12,
            BLUE,
        )
    )
    return "One step on one rank: its computing, its waits, and exchanges under way", body


HEIGHTS = (236, 150, 222, 180, 230, 205, 236, 290, 205, 215)
DRAWINGS = (dlrm, bags, order, backward, narrow, ranks, trees, planner, tiers, run)


def pictures() -> dict[str, str]:
    """The text of every file, by its name."""
    drawn = {}
    for number, draw in enumerate(DRAWINGS, 1):
        title, body = draw()
        height = HEIGHTS[number - 1]
        drawn[f"{number:02}_{draw.__name__}.svg"] = document(760, height, title, title, body)
    return drawn


if __name__ == "__main__":
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture, encoding="utf-8")
