"""How would a textbook write these kernels in Numba? Loops over arrays, nothing that speaks LLVM.

Each file is the sibling of the tuned one of the same name: same functions, same arguments, same
bits (docs/arithmetic.md defines them, so the order of a loop cannot change them). Read the NumPy
twin first (`neocpu/kernels/twins/`), the sibling next, the tuned kernel last. `neocpu train
--kernels plain` runs them (`kernels/compile/choice.py`); `python -m benchmarks.ladder` times all of
them.
"""
