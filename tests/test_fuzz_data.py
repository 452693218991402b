"""Do readers of data answer mutated inputs? A few here, many in `tests/fuzz.py`."""

import fuzz_data
import pytest

from neocpu.errors import NeocpuError


@pytest.mark.parametrize("name", fuzz_data.readers())
def test_mutated_data_is_refused_or_read(tmp_path, name):
    seeds = range(4 if name == "dataset-0.1.0" else 12)  # HDF5 is tried in a process of its own
    answers = 0
    for seed, mutation, value, original in fuzz_data.cases(name, tmp_path, seeds):
        if mutation.equal and not isinstance(value, NeocpuError):
            assert value == original, (seed, mutation)
        answers += 1
    assert answers == len(seeds)
