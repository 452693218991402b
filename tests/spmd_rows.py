"""Do tables without pooling, and histories, train over MPI as on one rank?"""

import test_unpooled as unpooled
from history_runs import settings, train
from spmd import spmd
from spmd_exchange import Case, digest

from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads


@spmd(3)
def lookups_without_pooling(comm: Comm) -> None:
    case = Case(tables=unpooled.TABLES, plan="mixed", route="two_level", unique_rows="on")
    options = settings('training.pipeline="full"')
    answers = b""
    if comm.rank == 0:  # it compiles for all
        run_threads(2, lambda other: unpooled.train(other, case), in_turn=True)
        run_threads(2, lambda other: train(options, other, plan="row_wise"), in_turn=True)
        answers = (unpooled.answer(case) + train(options, SingleComm())).encode()
    expected = comm.allgather_bytes(answers)[0].decode()
    outputs = digest(comm, case, *unpooled.train(comm, case))
    model = train(options, comm, plan="row_wise,data_parallel,column_wise")
    assert outputs + model == expected
