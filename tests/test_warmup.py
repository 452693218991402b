"""Does a run compile few kernels, each for one kind of argument? Compile time is a figure that
users feel.
"""

import json
import subprocess
import sys

PROGRAM = """
import gc, json, sys
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher
from neocpu import config
from neocpu.parallel.plan import place
from neocpu.training import warmup
from neocpu.training.companion import Companion

settings = config.load(sys.argv[1], ())
plan = place(settings.tables, ["table_wise"] * len(settings.tables), 1, 1)
warmup._train_miniature(settings, plan, Companion())
found = [d for d in gc.get_objects() if isinstance(d, Dispatcher) and d.py_func.__module__.startswith("neocpu.")]
kernels = [d for d in found if not isinstance(d._cache, NullCache)]  # the others are inlined into these
print(json.dumps({d.py_func.__module__ + "." + d.py_func.__qualname__: len(d.nopython_signatures) for d in kernels}))
"""


def test_a_run_compiles_few_signatures() -> None:
    command = [sys.executable, "-c", PROGRAM, "data/models/criteo-kaggle.toml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    used = {
        name: count for name, count in json.loads(done.stdout.splitlines()[-1]).items() if count
    }
    assert 20 < len(used) < 60, sorted(used)  # the walk found the kernels, and they are not many
    assert sum(used.values()) <= 50, sorted(used.items(), key=lambda item: -item[1])
    assert max(used.values()) <= 2, {name: count for name, count in used.items() if count > 1}


def test_the_second_process_compiles_its_half() -> None:
    facts = {"interaction": "cat", "diagonal": False, "loss": "bce", "dense_optimizer": "sgd"}
    done = subprocess.run(
        [sys.executable, "-m", "neocpu.training.companion", json.dumps(facts)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
