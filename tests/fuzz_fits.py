"""Which files do the readers of fits get from `tests.fuzz`?"""

from pathlib import Path
from typing import Any

import fuzz_data
import fuzz_files
from fuzzing import Reader

import neocpu
from neocpu.serve.scoring.fits import FitScorer
from neocpu.train.fit.fitted import load

ROWS = {
    "y": [0, 1, 1, 0, 1, 0],
    "site": list("aabbca"),
    "tags": [["p"], ["p", "q"], [], ["q"], ["p"], ["r", "q"]],
    "price": [0.5, -1.0, 2.0, 0.25, 0.0, 1.5],
}
LIBSVM = {
    "label": {"column": "label"},
    "category": [
        {"columns": ["features"], "kind": "int", "separator": " ", "weight_separator": ":"},
    ],
}
VW = {
    "label": [{"column": "label"}, {"column": "weight", "kind": "number"}],
    "category": [
        {"columns": ["user"]},
        {"columns": ["ad"], "separator": " ", "weight_separator": ":"},
    ],
}
# what is fitted: columns of all kinds, pairs of L-BFGS while it goes on, hidden layers
KINDS: dict[str, dict[str, Any]] = {
    "fit": {"quadratic": True, "bits": 4},
    "fit that goes on": {"method": "lbfgs", "start": 4, "most": 3, "tolerance": 1e-9},
    "fit of layers": {"hidden": (3,), "most": 2},
}


def readers() -> dict[str, Reader]:
    """All readers, by name."""
    logs = {
        "libsvm": Reader(_libsvm, fuzz_data.convert_tree(LIBSVM), fuzz_data.mutate_text),
        "vw": Reader(_vw, fuzz_data.convert_tree(VW), fuzz_data.mutate_text),
    }
    return logs | {
        name: Reader(
            lambda folder, keys=keys: _made(folder, keys),  # type: ignore[misc]
            _read,
            fuzz_files.mutate_sealed,
        )
        for name, keys in KINDS.items()
    }


def _libsvm(folder: Path) -> Path:
    path = folder / "log.libsvm"
    rows = ["# of 300 features", "+1 qid:1 3:0.5 7:1 300:2e-1", "-1 qid:1 1:1", "1 qid:2 # none"]
    path.write_text("\n".join(rows * 3) + "\n")
    return path


def _vw(folder: Path) -> Path:
    path = folder / "log.vw"
    rows = ["1 2.0 'first |user u7 |ad:0.5 price:3 site:news", "-1 b|user u9 |ad a", "1 |user a b"]
    path.write_text("\n".join(rows * 3) + "\n")
    return path


def _made(folder: Path, keys: dict[str, Any]) -> Path:
    neocpu.fit(ROWS, out=folder, label="y", overrides=["data.split=[]"], **keys)
    for path in folder.iterdir():
        if path.name != "fit.h5":
            path.unlink()
    return folder / "fit.h5"


def _read(path: Path) -> Any:
    saved = load(path)
    model = FitScorer(path)
    scores = model.predict({name: values for name, values in ROWS.items() if name != "y"})
    state = {name: repr(value) for name, value in sorted(vars(saved.state).items())}
    return saved.fitted.digest(), state, repr(saved.notes), saved.done, scores.tobytes()
