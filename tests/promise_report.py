"""What does docs/promise.md say? A text, and tables of the results of `promise.py`."""

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from promise_cases import CPUS, FAMILIES, HOW, MAIN, PLANS, RANKS, ROUTES, ROWS, STEPS, THREADS

from neocpu.train.watch.results import versions

HEAD = """# The promise, shown

> The same config, seed and data give the same bits after any number of steps, on any number of
> ranks, under any sharding plan, with any thread count, interrupted and resumed or not, on any
> machine with fused multiply-add.

This file is written by `python -m tests.promise --write` from a run of every case; do not edit it.

## What is run

One small job, made to notice a wrong order wherever there is one: {steps} steps over {rows} samples
in shuffled batches that no rank count divides, a partial batch among them; seven tables of 1 to
5,000 rows, several smaller than the number of ranks; features that look up several tables and
tables that several features look up; fixed, ragged and many empty bags, SUM and MEAN; per-sample
weights from 2^-60 to 4 of both signs, with pairs of ±2^40 that cancel inside a bag, so that partial
sums need several words; dense inputs over fifteen orders of magnitude; widths that columns cannot
be cut evenly.

It is run in every combination of

- ranks {ranks} under `mpiexec` (one rank: without MPI), nodes of two ranks;
- plan: {plans} (`mixed`: every table under another scheme, with two threads from a plan file that
  was edited by hand; `auto`: with one thread `greedy` chooses, with two `search`);
- {threads} threads per rank;
- route of row-split tables' words, where there are any: {routes};
- tables whole in memory; in a pairwise cover also in caches over it, and over an SSD file, some on
  each level, with rows of coming batches brought up before their turn;
- nothing overlapping, the inputs of the next batch, and all exchanges (`training.pipeline`), in
  turns over the other axes;
- uninterrupted; stopped by SIGTERM after some step and resumed; and begun on **another** number of
  ranks, under another plan and thread count, stopped, and resumed here.

{families} families are learnt: row-wise AdaGrad with L2 and a dot interaction in every
combination; the others ({others}) in a pairwise cover, where every pair of values occurs together
in some run: Adam with decoupled weight decay, a schedule, squared error, concatenation and unequal
dims; AdaGrad with SGD, the diagonal of the interaction; SGD with dims of 13, 1 and 6; the first
family again with a table in fp16, rounded stochastically, and one in fp8; again on compressed wires
(fp16 forward, bf16 backward and dense); FTRL with int8 forward and fp8 backward in blocks of four
columns; tables of the kinds hash, qr, md, unified and cafe under Adam with CowClip, clipped dense
gradients, groups of rates, averaged parameters and DCNv2; rows that travel unpooled (tensor trains,
histories with target attention) under DHEN; compressed wires again, with Adam in directions of
Shampoo whose roots are spread, in those of Muon with fp16 products, of which one overflows, and as
long as LAMB makes them, with bf16 weights that are rounded at random; products of fp8 numbers,
scaled by the steps before; Adam started from a model that was trained on another day's data, whose
vocabularies and tables then grow; and an online run over the files of two days, stopped in one of
them or between them. Batch trees have 16, 4, 8 and 2 leaves. Then the code
generator is told to forget AVX-512, and AVX2 as well, and a pairwise cover is run again; runs that
are resumed elsewhere then began with the host's instructions.

In every run the SHA-256 of the whole trained state must be the same, and so must the metrics on a
test split.

## Run it

```
python -m tests.promise              # everything, minutes
python -m tests.promise --pairwise   # what CI runs (tests/test_promise.py)
python -m tests.promise --quick      # mixed and auto on every rank count
```

## Drawn configs

```
python -m tests.promise --drawn 0-40 --ways 12      # configs of these seeds, twelve ways each
```

Nobody thinks of every pair of keys. `tests/promise_draws.py` draws configs from the records that
their keys are read by (formats, int8 and int4 under wider caches among them, kinds, pooling,
histories, interactions, all rules with the keys that they read, schedules, groups, wires, leaves,
models that start from another, online runs), and ways of running each: ranks, plans, threads,
routes, memories, pipelines, what travels once, checkpoints; stopped, begun elsewhere, and killed
within milliseconds after a step, then resumed. All ways of a config have one digest and one metric;
what a plan cannot do is refused alike on all ranks, and not counted.

Most of a way's time is the start of its processes, and kernels to be compiled, so the configs of
several seeds share their processes. With `--threads` ranks are threads of one process, in which a
kill is a stop; with `--folder FOLDER` a run that was cut off goes on. Configs of seeds from 4000 on
come in fours that share a rule and three formats of rows, and so their kernels: the first of four
has precision, where its model takes one, the second is online, and fourteen fours have all fourteen
rules. From 8000 on they also draw a valid split with `patience`, ranks within a group, weights of
samples, a further label with its head, towers, rates that follow from the batch, and rarer keys of
table kinds and precision. Servers of asynchronous training, which promise no digest, and searches
are not drawn, nor are raw logs.

Seen on 2026-11-28 and 29, on two cores beside other work: 2,249 ways of some 110 configs on 1 to 4
ranks, one digest for each config. In 753 of them ranks are processes, and kills are kills (seeds 1
to 3, 201, 1006 to 1017, 2000 to 2009, 3000 to 3014, and 175 ways of seven seeds from 4028 to 4070);
in the others, of seeds from 4000 on, they are threads. The largest part are 1,294 ways of 58
configs (4012 to 4072), which took 85 minutes: 16 of these are online and two begin from a run of
the day before; they have every format of rows from int4 to fp32, seven kinds of tables, nine
interactions, all rules but one (which 4004 to 4007 have), Shampoo in 19 and precision in 11; 606
ways had readers, 402 a mirror, 204 parity, 392 were stopped and resumed, 196 begun elsewhere. 105
more were refused, on all ranks alike, and are not counted. On 30 November, on an overloaded machine
(load averages 13 to 40), 79 ways of 14 configs (7800 to 7807, and of 8000 to 8007 all but two), as
threads, had one digest each.

What ways have shown is mended: towers of a model with a linear term, a compile that took longer
than its ranks waited, readers whose ends left words of Python's on the screen. Shampoo's Newton
roots of blocks of four columns took some ways a minute and more: drawn configs have larger blocks
now.

## On ARM

`tests/test_arm.py`, a long test, runs the README's job on one rank and, with rows cut, on two, the
quick tests, two of the families below, the golden suite of the oracle and the hash of an exported
one on an emulated aarch64: a Debian with QEMU, which `python -m tests.arm_room FOLDER` makes.

Run there so far, each as it was at that time: the README's job (cold in 6 minutes beside other
work), its two ranks with rows cut, the golden suite and the hash; two runs of the family
rowwise_adagrad on one rank, stopped and resumed (134 s); and 28 of the 72 files of quick tests, one
process after the other, among them those of codecs, hashes, roundings, elementary functions,
Philox, exchanges, plans and machines. Four of their tests failed, none by a bit of ours: NumPy
warned of signalling NaNs, and the room had neither a shell nor the version of the package. All are
mended, and were not run again. The family kinds was begun and not finished; the other 44 files were
not tried.

## Results
"""


def markdown(records: Sequence[Mapping[str, Any]], seconds: float) -> str:
    """docs/promise.md after a run in which all agreed."""
    text = HEAD.format(
        steps=STEPS,
        rows=ROWS,
        ranks=_list(RANKS),
        plans=_list(PLANS),
        threads=_list(THREADS),
        routes=_list(ROUTES),
        families=len(FAMILIES),
        others=_list(name for name in FAMILIES if name != MAIN),
    )
    packages = versions()
    where = (
        f"Python {packages['python']}, Numba {packages['numba']}, NumPy {packages['numpy']}, "
        f"mpi4py {packages['mpi4py']}"
    )
    text += (
        f"\n{len(records)} runs in {seconds / 60:.0f} minutes on {os.cpu_count()} cores "
        f"({platform.machine()}; {where})"
    )
    text += (
        "; all of a family ended with one digest:\n\n| family | runs | digest |\n|---|---|---|\n"
    )
    runs = Counter(record["family"] for record in records)
    digests = {record["family"]: record["digest"] for record in records}
    text += "".join(f"| {name} | {runs[name]} | `{digests[name]}` |\n" for name in FAMILIES)
    text += (
        "\nInstruction sets, as LLVM was told them (floats per vector, by the registers that "
        "it then uses):\n\n"
    )
    text += "| CPU | told | floats per vector | runs |\n|---|---|---|---|\n"
    for cpu in CPUS:
        cpu_records = [record for record in records if record["cpu"] == cpu]
        if cpu_records:
            settings = " ".join(f"`{key}={value}`" for key, value in CPUS[cpu].items())
            settings = settings or cpu_records[0]["kind"].split()[0]
            text += f"| {cpu} | {settings} | {cpu_records[0]['lanes']} | {len(cpu_records)} |\n"
    return text + "\n" + _grid(records) + "\n" + _ways(records)


def _grid(records: Sequence[Mapping[str, Any]]) -> str:
    text = "Runs by plan and ranks, all families and instruction sets:\n\n"
    text += (
        f"| plan | {' | '.join(f'{count} ranks' if count > 1 else '1 rank' for count in RANKS)} |\n"
    )
    text += "|---" * (len(RANKS) + 1) + "|\n"
    cells = Counter((record["plan"], record["ranks"]) for record in records)
    return text + "".join(
        f"| {plan} | {' | '.join(str(cells[plan, count]) for count in RANKS)} |\n" for plan in PLANS
    )


def _ways(records: Sequence[Mapping[str, Any]]) -> str:
    text = (
        "| | "
        + " | ".join(f"{threads} thread(s)" for threads in THREADS)
        + " |\n"
        + "|---" * (len(THREADS) + 1)
        + "|\n"
    )
    names = {
        "whole": "uninterrupted",
        "stopped": "stopped and resumed",
        "elsewhere": "resumed from elsewhere",
    }
    cells = Counter((record["how"], record["threads"]) for record in records)
    return text + "".join(
        f"| {names[how]} | {' | '.join(str(cells[how, n]) for n in THREADS)} |\n" for how in HOW
    )


def _list(names: Any) -> str:
    return ", ".join(map(str, names))
