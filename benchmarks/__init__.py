"""How fast is neocpu, compared with others and with the machine's limits? A command per question.

    python -m benchmarks.lookup        table-batched lookup: FBGEMM CPU, torch embedding_bag, C
    python -m benchmarks.backward      backward + row-wise AdaGrad: the same rivals
    python -m benchmarks.gemm          the three products of an MLP layer: OpenBLAS
    python -m benchmarks.dlrm_step     whole training step: torch + FBGEMM
    python -m benchmarks.ranks         whole step on two ranks: TorchRec on gloo
    python -m benchmarks.exchanges     messages between ranks of a host (under mpiexec)
    python -m benchmarks.step_overhead what a step costs a rank outside kernels
    python -m benchmarks.startup       time to the first step, cold and warm; time of --help
    python -m benchmarks.convert       rows of a click log per second
    python -m benchmarks.all           everything; --write: a page of docs/

Every command takes `--quick` (seconds, small shapes: does it run?) and `--json FILE`. Rivals that
are not installed are skipped and named. `harness.py` says how times are taken.
"""
