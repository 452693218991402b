"""How often does the oracle catch a bug, and does it call it by its name?

    python -m benchmarks.oracle_mutants [--suite S.h5] [--limit N] [--only PATTERN] [--seed K]

An outside implementation of the oracle's operators, written from docs/oracle.md, docs/semantics.md,
docs/arithmetic.md and docs/formats.md alone: plain NumPy in fp32, as a GPU kernel would add it up.
It imports nothing of neocpu but the command that makes a suite and the check of its answers, and it
reads the suite with h5py. It measures three things:

* **False alarms.** Twelve right variants (`variants.py`: other orders of summation, fused
  multiply-adds, lanes of a warp, blocks, fp64 accumulators, reciprocals, MEAN of terms, …), each
  with several seeds. None of their answers may fail; the exit status says so.
* **Caught bugs.** The mutants (`mutants/`): the right kernel with one small method replaced, as by
  an off-by-one, a lost duplicate, a missing term. A mutant is caught where a case fails.
* **Names.** The first explanation of each caught mutant is *strong and right*, *strong and wrong*,
  or *weak or silent*. A mutant states its true names; where docs/semantics.md has none, silence, or
  a pattern that says where the bug shows, is right.

Only cases whose answers differ from the right kernel's are checked; a mutant without any is missed,
and the report says that no case had another answer. `--explained N` failed cases of a mutant are
explained, spread over all of them. Mutants and variants do not know cases by name, so the suite may
grow; an operator that the kernel does not have is left out.

    questions.py                      cases of a suite, by h5py
    formats.py, codecs.py             numbers as bytes: small floats, row-scaled rows
    geometry.py, lookups.py           bags, rows, addresses; pooled lookups
    gradients.py, rules.py, terms.py, counters.py
                                      merged gradients; optimizer steps
    layouts.py, scales.py             jagged layouts; tables of more than 2^31 elements
    kernel.py, variants.py            the right kernel; right ones with other bits
    registry.py, mutants/             bugs
    trial.py, judge.py, summary.py    one mutant's trial; what a report says about it; the outcome

To add a bug: `bend("its_name", "operators", "true names", method=replacement)` in a module of
mutants/. To add an operator: a method `op_NAME` that answers a Question.
"""
