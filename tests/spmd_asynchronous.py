"""Do trainers on parameter servers learn, and with a staleness of 0 what synchronous ones do?"""

from pathlib import Path

from spmd import spmd

from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.train.run.trainer import Trainer
from neocpu.train.run.trainers import trainer_of
from tests.small_run import config_of, write_log

# a table of two, moments that depend on the step, and an average of the parameters
MODEL = ('optimizer.dense.name="adam"', "eval.ema=0.9", 'tables.one.kind="qr"')
SETTINGS = "training.asynchronous"


def log_of(comm: Comm, folder: Path) -> Path:
    """The log of the run, written by rank 0."""
    log = folder / "log.h5"
    if comm.rank == 0:
        write_log(log)
    comm.barrier()
    return log


@spmd(2, 3)
def a_staleness_of_0_gives_the_digest_of_synchronous_training(comm: Comm, folder: Path) -> None:
    log = log_of(comm, folder)
    alone = Trainer(config_of(log, *MODEL), SingleComm(), folder / f"alone {comm.rank}").run()
    for keys in (f"servers={comm.size - 1}", "threads=2"):
        overrides = (*MODEL, 'training.sync="off"', f"{SETTINGS}.staleness=0", f"{SETTINGS}.{keys}")
        config = config_of(log, *overrides)
        summary = trainer_of(config)(config, comm, folder / keys).run()
        assert summary["digest"] == alone["digest"]
        assert summary["metrics"]["test"] == alone["metrics"]["test"]
        assert summary["asynchronous"]["repeats"]


@spmd(3)
def threads_that_run_ahead_learn(comm: Comm, folder: Path) -> None:
    log = log_of(comm, folder)
    for keys in (("staleness=1",), ("staleness=-1", "elastic_every=3", "servers=1")):
        settings = [f"{SETTINGS}.{key}" for key in (*keys, "threads=2")]
        config = config_of(log, 'training.sync="off"', "training.epochs=8", *settings)
        summary = trainer_of(config)(config, comm, folder / keys[0]).run()
        # of predicting the average it is 1
        assert summary["metrics"]["test"]["ne"] < 0.9
        facts = summary["asynchronous"]
        assert not facts["repeats"] and facts["workers"] == 2 * comm.size - 2 * (len(keys) > 1)
        assert summary["steps"] == 24 and summary["samples"] == 8 * 150
        assert facts["largest_lead"] <= (1 if len(keys) == 1 else 24)
