"""Who owns the scratch arrays of a task? The call that runs the task.

Numba frees an array after the last statement that names it, and a bare `view` of it
(`simd/bags.py`) counts no reference. A view of an array of the same function may therefore be read
when its memory is somebody else's already. An argument is safe: the caller holds it until the call
returns. So a parallel kernel that works on bare views is written in two functions:

    @task_body
    def pool_task(task, scratch, table, ...):  # its views are of arguments, held by the call
        sums = bare(scratch.sums)
        ...

    @parallel_kernel
    def pooled_sum(table, ...):
        for task in prange(tasks):
            pool_task(np.int64(task), Scratch(np.empty(128)), table, ...)  # lends new arrays

No statement is needed that keeps an array alive. Scratch may be a record of arrays or one array.
The number of a task goes as `np.int64(task)`: Numba types the loop twice, the second time with an
unsigned index, for which the body would be compiled again.

A task that writes into the arrays of a record is such a function, too: Numba takes `record.field[i]
= x` in the `prange` loop itself for a write that nobody reads, and leaves it out.
"""

from neocpu.kernels.compile.jit import inlined

# The body of a task: it makes bare views of its arguments only, never of arrays that it allocates.
# Compiled into the loop that calls it, so the arguments cost nothing.
task_body = inlined
