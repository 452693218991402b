"""Do readers that are processes deliver the loader's batches to ranks?"""

import itertools

import numpy as np
from spmd import spmd

from neocpu.ingest.dataset.raw import RawLog, index_of
from neocpu.ingest.formats.table import table_schema
from neocpu.ingest.loader import BatchShare, Loader, Needs, Reading
from neocpu.ingest.settings import ReadersConfig
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.run.reading import ReaderSchedule
from neocpu.train.step.schedule import BatchSchedule

ROWS = 5000
SCHEMA = {
    "label": {"column": "y"},
    "dense": [{"columns": ["x"], "kind": "float", "transform": "none"}],
    "category": [{"columns": ["user"], "kind": "int"}],
}
TABLES = (TableSpec("users", 100, 4, ("user",)),)


@spmd(2)
def processes_read_for_ranks(comm, folder):
    path = folder / "log.csv"
    if comm.rank == 0:
        rows = (f"{i % 2},{i}.5,{i * 7 % 100}\n" for i in range(ROWS))
        path.write_text("y,x,user\n" + "".join(rows))
    comm.barrier()
    schema = table_schema(SCHEMA)
    data = RawLog((index_of(path, schema, "fail"),), schema).open()
    share = BatchShare(900, 4, comm.rank, comm.size)
    loader = Loader(data, TABLES, share, Reading(seed=1, shuffle=True, depth=0), Needs(1))
    keys = ReadersConfig(count=2)
    read = ReaderSchedule(loader, 2, 0, comm, keys, lambda text: None)
    try:
        # here the same loader reads by itself: raw logs are a dataset too
        direct = BatchSchedule(loader, 2, 0).batches(0)
        for one, other in itertools.zip_longest(direct, read.batches(0)):
            assert (one.epoch, one.step, one.first) == (other.epoch, other.step, other.first)
            assert np.array_equal(one.dense, other.dense)
            assert np.array_equal(one.labels, other.labels)
            assert np.array_equal(one.sparse.values, other.sparse.values)
        states = read.report()["readers"]["by_reader"]
    finally:
        read.close()
    assert comm.rank or sum(state["samples"] for state in states) == 2 * ROWS, states
