"""Answers of a kernel to the questions of a suite: python answer.py SUITE.h5 ANSWERS.npz

`oracle.yml` beside this file runs it in a pull request. Put your kernel where `lookup` is; h5py is
all that a suite needs.
"""

import sys

import h5py
import numpy as np

WANTED = {"weights_format": "fp32", "output_format": "fp32", "bounds_check": "fatal"}


def lookup(inputs: dict[str, np.ndarray], mean: bool) -> np.ndarray:
    """The kernel: pooled rows, fp32[B, sum of dims]."""
    tables = np.split(inputs["weights"], np.cumsum(inputs["rows"] * inputs["dims"])[:-1])
    features = inputs["feature_table"]
    bags = np.split(np.arange(inputs["indices"].size), inputs["offsets"][1:-1])
    batch = (inputs["offsets"].size - 1) // features.size
    weighted = "per_sample_weights" in inputs
    blocks = []
    for f, table in enumerate(features):
        rows = tables[table].reshape(-1, inputs["dims"][table])
        out = np.zeros((batch, rows.shape[1]), np.float32)
        for sample, bag in enumerate(bags[f * batch : (f + 1) * batch]):
            for place in bag:
                row = inputs["indices"][place]
                if row >= 0:
                    weight = inputs["per_sample_weights"][place] if weighted else 1
                    out[sample] += rows[row] * np.float32(weight)
            if mean and bag.size:
                out[sample] /= np.float32(bag.size)
        blocks.append(out)
    return np.concatenate(blocks, axis=1)


def main(suite: str, answers: str) -> None:
    """Answer what the kernel is made for, and leave the rest out."""
    arrays = {}
    with h5py.File(suite) as file:
        for name, case in file["cases"].items():
            options = {
                key: value.decode()
                for key, value in case["options"].attrs.items()
                if isinstance(value, bytes)
            }
            inputs = {key: value[()] for key, value in case["inputs"].items()}
            if (
                options.get("pooling") in ("sum", "mean")
                and WANTED.items() <= options.items()
                and "batch_sizes" not in inputs
                and inputs["offsets"].size > 1
            ):
                arrays[f"{name}/out"] = lookup(inputs, options["pooling"] == "mean")
    np.savez(answers, **arrays)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
