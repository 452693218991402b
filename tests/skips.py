"""Which tests were skipped, why, and how are they run?"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any

PEERS = 'pip install -e ".[peers]"'
# a word of the reason -> what makes the test run; the first that fits
REMEDIES = {
    "64-bit counts": "nothing to do: the same test runs under MPI",
    "CUDA": "a machine with a CUDA device, and pip install torch",
    "triton": "a machine with a CUDA device, and pip install torch triton",
    "torchrec": f"{PEERS} and pip install --no-deps torchrec",
    "torch": PEERS,
    "fbgemm": PEERS,
    "peer": PEERS,
    "safetensors": "pip install safetensors",
    "onnxruntime": 'pip install -e ".[test]"',
    "hdf5plugin": 'pip install -e ".[zstd]"',
    "scipy": 'pip install -e ".[test]"',
    "matplotlib": 'pip install -e ".[viz]"',
    "no hosts": "Linux with iproute2 and util-linux, and network namespaces that you may make",
    "mpiexec": 'pip install -e ".[mpi]"',
    "Slurm": "apt-get install slurm-wlm munge",
    "NEOCPU_TEST_DATA": "set NEOCPU_TEST_DATA to a folder with that file",
    "processor": "a machine with another processor",
    "x86-64": "a machine with an x86-64 processor",
    "this system": "Linux",
}


def remedy(reason: str) -> str:
    """How a test that was skipped for this reason is run."""
    for word, text in REMEDIES.items():
        if word.lower() in reason.lower():
            return text
    return "see the reason"


def section(reports: Iterable[Any]) -> Iterator[str]:
    """Lines of the summary: by remedy, then by reason, how many tests of which files."""
    reasons: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for report in reports:
        _, _, text = report.longrepr
        reason = text.removeprefix("Skipped: ")
        reasons[remedy(reason)][reason].add(report.nodeid.rpartition("@")[0] or report.nodeid)
    for what_to_do, by_reason in sorted(reasons.items()):
        yield f"to run these: {what_to_do}"
        for reason, tests in sorted(by_reason.items()):
            files = sorted({PurePath(test.split("::")[0]).name for test in tests})
            whole = sum("::" not in test for test in tests)
            parts = [f"{len(tests) - whole} test(s)"] * (whole < len(tests))
            parts += [f"{whole} whole file(s)"] * (whole > 0)
            yield f"    {' and '.join(parts)}: {reason} ({', '.join(files)})"
