"""Does a GPU's lookup survive 2^31 elements?  python examples/oracle_at_scale.py [--gib 40]

Fills tables by the oracle's formula on the device, answers each question of `lookup_at_scale` that
fits into so many GiB, and prints what is wrong. Needs torch; `torch_lookup` is the kernel under
test: put yours in its place.
"""

import argparse
import sys

import _needs  # noqa: F401, what to install
import numpy as np
import torch

from neocpu import oracle
from neocpu.oracle.cases import all_cases

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
CHUNK = 1 << 26  # elements that are filled at a time


def filled(elements: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """All tables, one after the other, with the formula's numbers (salt 0)."""
    table = torch.empty(elements, dtype=dtype, device=device)
    for first in range(0, elements, CHUNK):
        e = torch.arange(first, min(first + CHUNK, elements), device=device)
        # both factors have 32 bits, and the sum's lower 32 bits are right though int64 wraps around
        mixed = ((e & 0xFFFFFFFF) * 2654435761 + (e >> 32) * 2246822519) & 0xFFFFFFFF
        table[first : first + e.numel()] = (((mixed >> 24) - 128) / 256).to(dtype)
    return table


def torch_lookup(
    table: torch.Tensor, case: oracle.Case, options: dict, device: str
) -> torch.Tensor:
    """Pooled rows of all samples, by torch's embedding_bag feature by feature."""
    rows = case.inputs["rows"].tolist()
    dims = case.inputs["dims"].tolist()
    batch = int(options["batch"])
    features = case.inputs["feature_table"].tolist()
    width = sum(dims[t] for t in features)
    out = torch.empty(batch, width, device=device)
    column = 0
    for f, t in enumerate(features):
        first = sum(r * d for r, d in zip(rows[:t], dims[:t]))
        weight = table[first : first + rows[t] * dims[t]].view(rows[t], dims[t])
        of_feature = case.inputs["bags"] // batch == f
        bags = case.inputs["bags"][of_feature] - f * batch
        pooled = torch.nn.functional.embedding_bag(
            torch.from_numpy(case.inputs["indices"][of_feature]).to(device),
            weight,
            torch.from_numpy(np.searchsorted(bags, np.arange(batch))).to(device),
            mode="sum",
        )
        out[:, column : column + dims[t]] = pooled
        column += dims[t]
    return out


def main() -> int:
    """Ask every question that fits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=10.0, help="memory for a question")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    failed = 0
    for case in all_cases(["lookup_at_scale"]):
        options = oracle.OPERATORS[case.op].complete(case.options)
        dims = case.inputs["dims"]
        elements = int((case.inputs["rows"] * dims).sum())
        dtype = DTYPES[str(options["weights_format"])]
        outputs = int(options["batch"]) * int(dims[case.inputs["feature_table"]].sum())
        if elements * dtype.itemsize + 4 * outputs > arguments.gib * 2**30:
            print(f"{case.name}: left out, {case.about}")
            continue
        table = filled(elements, dtype, arguments.device)
        samples = torch.from_numpy(case.inputs["check_samples"]).to(arguments.device)
        answer = torch_lookup(table, case, options, arguments.device)[samples]
        report = oracle.check(case.op, case.inputs, answer, case.options)
        print(f"{case.name}: {report}")
        failed += not report
        del table, answer
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
