"""Why is a plan as it is? Its step phase by phase, rank by rank and table by table, as text.

All that is said is computed from the cost model: the ranks that others wait for, the tables that
make them slow, what each table would cost in other ways (`trials.py`), and by how much a table or
the machine would have to change for another way to win.
"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.units import bytes_text, count_text, seconds_text
from neocpu.plan.cost.seconds import StepSeconds
from neocpu.plan.machines.machine import MEMORIES
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.question import PlanQuestion, any_plan
from neocpu.plan.search.resources import bounding
from neocpu.plan.search.trials import Trial, Trials, is_same, of_answer
from neocpu.plan.show.turning import turning_points

# Ranks that are shown one by one; of more, the fullest.
FEW_RANKS = 16
FULLEST = 4
# Tables that are shown where not all are asked for: those with most work.
FEW_TABLES = 10
# Of more tables it is not computed what would change each of them.
MOST_TURNED = 50
# Steps that differ by a smaller part are as long.
EQUAL = 1e-3
# A step above the bound by more than this part is told as a multiple of it.
MOST_WITHIN = 1.0
# What lengthens a phase, by how a table is cut.
REASONS = {
    ("row_wise", "output"): "partial sums of every rank travel",
    ("table_row_wise", "output"): "partial sums of every rank of the node travel",
    ("grid_shard", "output"): "partial sums of every rank travel",
    ("data_parallel", "replicas"): "sums of all touched rows travel to all ranks",
    ("column_wise", "input"): "every block of columns gets all ids",
    ("table_column_wise", "input"): "every block of columns gets all ids",
    ("column_wise", "lookup"): "short rows are read at a lower rate",
    ("table_column_wise", "lookup"): "short rows are read at a lower rate",
    ("table_wise", "lookup"): "one rank reads all of it",
    ("table_wise", "update"): "one rank updates all of it",
    ("table_wise", "output"): "one rank sends all of it",
    ("table_wise", "gradient"): "one rank receives all of it",
}


class Explainer:
    """Explains one answer.

    question, answer : what was asked, and what a planner said.
    """

    def __init__(self, question: PlanQuestion, answer: Answer) -> None:
        self.question = question
        self.answer = answer
        self.trials = Trials(answer, question.capacity)

    def overview(self, verbose: bool = False) -> Iterator[str]:
        """The plan as a whole; verbose : with all ranks and tables."""
        yield from self._summary()
        yield ""
        yield from self._phases()
        yield ""
        yield from self._ranks(verbose)
        yield ""
        yield from self._tables(verbose)

    def table(self, name: str) -> Iterator[str]:
        """One table in full. The name is one of the plan's."""
        names = [table.name for table in self.answer.plan.tables]
        number = names.index(name)
        table = self.answer.plan.tables[number]
        kept = of_answer(self.trials, number)
        work = self.answer.work
        lookups = work.pooling.get(name, 1.0)
        yield (
            f"{name}: {table.rows:,} rows x {table.dim}, {table.format}, {len(table.features)} "
            f"feature(s), {lookups:,.3g} lookups a bag"
        )
        home = f"on rank {kept.alternative.home}" if kept.ranks == 1 else f"on {kept.ranks} ranks"
        yield f"kept as {kept.words}, {home}"
        own = kept.own / max(kept.own.sum(), 1e-300)
        phrases = [
            f"{phase} {100 * share:.0f} %"
            for share, phase in sorted(zip(own, self.answer.model.phases), reverse=True)
            if share >= 0.005
        ]
        yield f"its work: {seconds_text(float(kept.own.sum()))} of all ranks: {', '.join(phrases)}"
        yield ""
        trials = self.trials.of_schemes(number)
        yield f"{'any way':46}{'step':>10}{'change':>10}{'its work':>11}{'missing':>12}"
        for trial in trials:
            yield self._trial_line(trial, kept)
        yield ""
        others = [trial for trial in trials if not is_same(trial, kept)]
        for trial in others[:3]:
            yield f"{trial.words}: {self._against(trial, kept)}"
        yield ""
        yield "what would change it:"
        yield from (
            f"  {line}" for line in turning_points(self.question, self.trials, number, machine=True)
        )

    # ---- the whole ----

    def _summary(self) -> Iterator[str]:
        question = self.question
        answer = self.answer
        layout = answer.layout
        yield (
            f"{len(answer.plan.tables):,} tables on {layout.ranks} rank(s) of "
            f"{question.machine.name}, {layout.nodes} node(s) of {layout.ranks_per_node}; "
            f"{answer.work.batch:,} samples a step; planner {answer.planner}, cost model "
            f"{question.cost_model}"
        )
        groups = layout.replica_groups
        if groups > 1:
            yield f"this is one of {groups} replica groups, which hold and do the same"
        rate = groups * answer.work.batch / answer.seconds if answer.seconds else 0.0
        yield (
            f"a step takes {seconds_text(answer.seconds)}: {count_text(rate)} samples/s, "
            f"{_within(question, answer)}"
        )
        shares = bounding(answer)
        total = sum(shares.values()) or 1.0
        phrases = [
            f"{name} {100 * spent / total:.0f} %"
            for name, spent in shares.items()
            if spent >= 0.005 * total
        ]
        yield f"what bounds it: {', '.join(phrases[:5])}"
        waits = _waiting(answer)
        if answer.layout.ranks > 1 and answer.seconds:
            share = 100 * waits / answer.seconds
            yield f"imbalance: a rank waits {seconds_text(waits)} ({share:.1f} %) for slower ones"
        yield from answer.notes

    def _phases(self) -> Iterator[str]:
        """The critical path: each phase with the rank that it waits for."""
        answer = self.answer
        loads = answer.loads
        waits = "every phase waits for" if answer.model.synchronised else "the slowest rank is"
        yield (
            f"{'critical path':16}{'takes':>10}{'mean':>10}{'max/mean':>10}   {waits}, with tables"
        )
        whole = int(loads.sum(axis=1).argmax())
        for number, phase in enumerate(answer.model.phases):
            column = loads[:, number]
            # of a model whose ranks wait once a step, one rank is the slowest of all phases
            slowest = int(column.argmax()) if answer.model.synchronised else whole
            if not column.any():
                continue
            mean = float(column.mean())
            yield (
                f"{phase:16}{seconds_text(float(column[slowest])):>10}{seconds_text(mean):>10}"
                f"{column[slowest] / mean:>10.2f}   rank {slowest}: {self._makers(slowest, number)}"
            )
        if isinstance(answer.model, StepSeconds):
            for name, seconds in answer.model.fixed.items():
                if seconds:
                    yield f"{name.replace('_', ' '):16}{seconds_text(seconds):>10}   (any plan)"
        else:
            yield f"{'the same for all':16}{seconds_text(answer.model.fixed_seconds):>10}"

    def _makers(self, rank: int, phase: int) -> str:
        """The tables that make most of a rank's phase."""
        rectangles = self.answer.rectangles
        seconds = self.trials.rectangle_seconds[:, phase] * (rectangles.rank == rank)
        tables = self.answer.plan.tables
        sums = np.bincount(rectangles.table, seconds, len(tables))
        total = sums.sum() or 1.0
        largest = np.argsort(-sums, kind="stable")[:3]
        return ", ".join(
            f"{tables[t].name} {100 * sums[t] / total:.0f} %" for t in largest.tolist() if sums[t]
        )

    def _ranks(self, verbose: bool) -> Iterator[str]:
        """Load and memory of ranks."""
        answer = self.answer
        loads = answer.loads
        phases = [p for p, name in enumerate(answer.model.phases) if loads[:, p].any()]
        memories = [m for m in range(len(MEMORIES)) if answer.memory[:, m].any()]
        head = "".join(f"{answer.model.phases[p]:>10}" for p in phases)
        sizes = "".join(f"{MEMORIES[m]:>12}" for m in memories)
        yield f"{'rank':8}{head}{'together':>10}{sizes}{'tables':>8}"
        order = np.argsort(-loads.sum(axis=1), kind="stable").tolist()
        count = answer.layout.ranks
        shown = range(count) if verbose or count <= FEW_RANKS else order[:FULLEST]
        held = [
            len(np.unique(answer.rectangles.table[answer.rectangles.rank == rank]))
            for rank in range(count)
        ]
        rows: list[tuple[str, np.ndarray, np.ndarray, str]] = [
            (str(rank), loads[rank], answer.memory[rank], str(held[rank])) for rank in shown
        ]
        if len(shown) < count:
            least = order[-1]
            rows.append((str(least), loads[least], answer.memory[least], str(held[least])))
        rows.append(("mean", loads.mean(axis=0), answer.memory.mean(axis=0), ""))
        rows.append(("max", loads.max(axis=0), answer.memory.max(axis=0), str(max(held))))
        for name, seconds, size, tables in rows:
            cells = "".join(f"{seconds_text(float(seconds[p])):>10}" for p in phases)
            together = "" if name == "max" else seconds_text(float(seconds.sum()))
            taken = "".join(f"{bytes_text(int(size[m])):>12}" for m in memories)
            yield f"{name:8}{cells}{together:>10}{taken}{tables:>8}"
        rooms = [
            f"{bytes_text(int(answer.capacity[m]))} {MEMORIES[m]}"
            for m in memories
            if answer.capacity[m]
        ]
        if rooms:
            yield f"a rank has {', '.join(rooms)} for tables, and for what a step holds for them"
        if len(shown) < count:
            yield f"the {FULLEST} busiest ranks and the idlest; --verbose shows all"

    # ---- tables ----

    def _tables(self, verbose: bool) -> Iterator[str]:
        """Scheme, reason and runner-up of tables, those with most work first."""
        answer = self.answer
        tables = answer.plan.tables
        work = np.bincount(
            answer.rectangles.table, self.trials.rectangle_seconds.sum(axis=1), len(tables)
        )
        order = np.argsort(-work, kind="stable").tolist()
        shown = order if verbose else order[:FEW_TABLES]
        yield f"{'table':12}{'kept as':42}{'on':>6}{'its work':>10}   runner-up"
        for number in shown:
            kept = of_answer(self.trials, number)
            trials = self.trials.of_schemes(number)
            rival = next((t for t in trials if not is_same(t, kept)), None)
            home = f"r{kept.alternative.home}" if kept.ranks == 1 else f"{kept.ranks}"
            name = tables[number].name
            work_text = seconds_text(float(kept.own.sum()))
            yield (
                f"{name[:11]:12}{kept.words[:41]:42}{home:>6}{work_text:>10}   "
                f"{rival.words if rival else 'none: its scheme or shape leaves no other'}"
            )
            if rival:
                yield f"{'':12}why: {self._against(rival, kept)}"
                if len(shown) > MOST_TURNED:
                    continue
                for line in turning_points(self.question, self.trials, number):
                    yield f"{'':12}{line}"
        if len(shown) < len(tables):
            yield (
                f"the {len(shown)} of {len(tables):,} tables with most work; --verbose shows all, "
                "--explain TABLE one in full"
            )

    def _trial_line(self, trial: Trial, kept: Trial) -> str:
        alternative = trial.alternative
        step = seconds_text(alternative.seconds)
        change = alternative.seconds / self.answer.seconds - 1.0
        missing = bytes_text(alternative.missing_bytes) if alternative.missing_bytes else ""
        mark = "  <- kept" if is_same(trial, kept) else ""
        work = seconds_text(float(trial.own.sum()))
        return (
            f"{trial.words:46}{step:>10}{100 * change:>+9.1f}%{work:>11}{missing:>12}{mark}"
        ).rstrip()

    def _against(self, rival: Trial, kept: Trial) -> str:
        """Why the table is kept as it is rather than so, in words from the numbers."""
        phases = self.answer.model.phases
        if not rival.fits:
            return f"it lacks {bytes_text(rival.alternative.missing_bytes)} on the fullest rank"
        change = rival.alternative.seconds - self.answer.seconds
        if change < -EQUAL * self.answer.seconds:
            return (
                f"it would save {seconds_text(-change)} a step; the planner looks at tables "
                "together and did not get there"
            )
        if change > EQUAL * self.answer.seconds:
            # the phase that grows most is named, and others may shrink
            grown = rival.phases - kept.phases
            worst = int(grown.argmax())
            return (
                f"a step would take {seconds_text(change)} more "
                f"({100 * change / self.answer.seconds:.1f} %), most of it {phases[worst]}"
                f"{_reason(rival, phases[worst])}"
            )
        own = float(rival.own.sum())
        kept_own = float(kept.own.sum())
        if own > kept_own * (1 + EQUAL):
            worst = int((rival.own - kept.own).argmax())
            return (
                f"a step would take as long, with {_more(own / max(kept_own, 1e-300))}, most of "
                f"it {phases[worst]}{_reason(rival, phases[worst])}"
            )
        return "it costs the same: other ranks decide how long the step takes"


def _waiting(answer: Answer) -> float:
    """Seconds of a step that a rank waits for slower ones, on average."""
    mean = float(answer.loads.sum(axis=1).mean())
    waits = answer.seconds - answer.model.fixed_seconds - mean
    # less than that is rounding
    return waits if waits > 1e-9 * answer.seconds else 0.0


def _within(question: PlanQuestion, answer: Answer) -> str:
    """How far any plan could be better, in words."""
    if not 0 < answer.bound < float("inf"):
        return "no bound is known"
    bound = f"what {any_plan(question)} could reach ({seconds_text(answer.bound)})"
    if answer.above_bound > MOST_WITHIN:
        return f"{1 + answer.above_bound:.3g} times {bound}"
    return f"within {100 * answer.above_bound:.1f} % of {bound}"


def _more(ratio: float) -> str:
    """How much more work, in words."""
    return f"{100 * (ratio - 1):.1f} % more work" if ratio < 1.5 else f"{ratio:.3g} times the work"


def _reason(rival: Trial, phase: str) -> str:
    why = REASONS.get((rival.alternative.scheme, phase), "")
    return f": {why}" if why else ""
