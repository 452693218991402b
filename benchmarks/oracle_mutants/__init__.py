"""How often does the oracle catch a bug, and does it call it by its name?

    python -m benchmarks.oracle_mutants [--suite S.h5] [--limit N] [--only PATTERN] [--seed K]
        [--names N] [--budget SECONDS] [--processes P] [--right-seeds N] [--json OUT.json]
    python -m benchmarks.oracle_mutants --grade OUT.json

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
  a pattern that says where the bug shows, is right. A *first hint* is right if this headline is,
  or, for a bug without a name, if what stands below the headlines has the mutant's own words. Those
  of `--only idioms` and `--only reserves` were written before anybody saw what is said of them.

All cases of the operators that a mutant could touch are answered, as in a user's check, since
passed ones are evidence, too; `--names N` looks for explanations of N mutants only, spread evenly,
and only verdicts on the others (`--budget 0`: on all). The budget counts the seconds of this
process alone, and bent truths are remembered from one mutant to the next, so a few seconds do. A
headline is a strong explanation of half of the failed cases; what failed cases have in common (a
facet) is none. Where a report cannot tell two names apart, one of them has to be right.

A mutant without any failed case is missed; the report says whether any case had another answer.
Some need rows that real kernels refuse, `--dim-multiple 1`: tails of fewer than four columns, means
over columns padded to four, spare bits of int4 and int2 rows. Mutants and variants do not know
cases by name, so the suite may grow; an operator that the kernel does not have is left out
(kv_trajectory, row_cache, alltoall and nvfp4_quantize among them).

    questions.py                      cases of a suite, by h5py
    formats.py, codecs.py             numbers as bytes: small floats, row-scaled rows
    geometry.py, lookups.py           bags, rows, addresses; pooled lookups
    gradients.py, rules.py, terms.py, counters.py
                                      merged gradients; optimizer steps
    layouts.py, scales.py             jagged layouts; tables of more than 2^31 elements
    moves.py, products.py, maxima.py  permuted embeddings; jagged products; MAX pooling
    kernel.py, variants.py            the right kernel; right ones with other bits
    registry.py, mutants/             bugs
    memory.py                         bent truths, shared by all mutants
    trial.py, judge.py, summary.py    one mutant's trial; what a report says about it; the outcome

To add a bug: `bend("its_name", "operators", "true names", method=replacement)` in a module of
mutants/, with `says="words"` where it has no name; `named_mistake` where both names are one. To add
an operator: a method `op_NAME` that answers a Question.
"""
