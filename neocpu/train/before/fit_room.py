"""Is there memory for the vectors of a fit? Each rank holds whole vectors of all parameters."""

from neocpu.core.errors import TrainingError
from neocpu.parallel.transport.comm import Comm
from neocpu.train.before.preflight import available_memory, human
from neocpu.train.fit.keys import FitKeys
from neocpu.train.fit.layers import LayeredModel

VECTORS = {"dance": 12, "lbfgs": 32}  # f64[P] that a solver holds at once
# f64[n, h] of a hidden layer: those of a point, of a trial, and of a product with the Hessian
PER_UNIT = 12


def check_fit(comm: Comm, keys: FitKeys, model: LayeredModel, samples: int) -> None:
    """Raise TrainingError, on all ranks, where a host has no memory for a fit. Collective.

    samples : of this rank.
    """
    hidden = sum(model.widths[1:-1])
    need = 8 * (VECTORS[keys.method] * model.parameters + PER_UNIT * hidden * samples)
    hosts = comm.hosts()
    ranks = hosts.count(hosts[comm.rank])
    available = available_memory()
    error = None
    if need * ranks > available:
        units = f", with {','.join(map(str, keys.hidden))} hidden units" if keys.hidden else ""
        error = TrainingError(
            f"this fit has {model.parameters:,} parameters ({model.widths[0]:,} columns{units}), "
            f"for which {ranks} rank(s) of this host need {human(need * ranks)} of memory, but "
            f"{human(available)} are available; {'--hidden of fewer units, ' if units else ''}"
            "--hash with fewer --bits, or fewer ranks on a host need less"
        )
    comm.agree(error)
