"""Is this torch lookup right? Export a suite, answer it in ten lines, read the report.

    python examples/oracle_from_torch.py

Needs torch; examples/oracle_from_numpy.py does not.
"""

import sys

import _needs  # noqa: F401, what to install
import h5py
import torch
from torch.nn.functional import embedding_bag

from neocpu.cli import cli

# Cases of the lookup without options that torch lacks.
CASES = (
    "lookup-mean",
    "lookup-odd-widths",
    "lookup-unsorted-shared",
    "lookup-warp-and-block",
    "lookup-cancellation",
)


def answer(case: h5py.Group, device: str) -> torch.Tensor:
    """torch's answer to a case: one lookup of all features."""
    inputs = {name: torch.from_numpy(item[()]).to(device) for name, item in case["inputs"].items()}
    features = inputs["feature_table"].tolist()
    all_offsets = inputs["offsets"].long()
    batch = (len(all_offsets) - 1) // max(len(features), 1)
    sizes = (inputs["rows"] * inputs["dims"]).tolist()
    tables = [w.view(-1, int(d)) for w, d in zip(inputs["weights"].split(sizes), inputs["dims"])]
    out = []
    for f, t in enumerate(features):
        offsets = all_offsets[f * batch : (f + 1) * batch + 1]
        rows = inputs["indices"].long()[offsets[0] : offsets[-1]]
        mode = case["options"].attrs["pooling"].decode()
        out.append(
            embedding_bag(
                rows, tables[t], offsets - offsets[0], mode=mode, include_last_offset=True
            )
        )
    return torch.cat(out, 1)


def main(suite: str = "torch-suite.h5", answers: str = "torch-answers.h5") -> int:
    """Export the cases, answer them, check the answers; the exit status."""
    cases = [part for name in CASES for part in ("--cases", name)]
    cli(["oracle", "export", suite, "--op", "lookup", *cases, "--force"], standalone_mode=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with h5py.File(suite) as questions, h5py.File(answers, "w") as file:
        for name, case in questions["cases"].items():
            file[f"{name}/out"] = answer(case, device).cpu().numpy()
    check = ["oracle", "check", suite, answers, "--html", "torch-report.html", "--force"]
    return int(cli(check, standalone_mode=False) or 0)


if __name__ == "__main__":
    sys.exit(main())
# Try changing the mode to "sum" everywhere, and see the report on the MEAN cases.
