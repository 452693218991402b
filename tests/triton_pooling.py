"""A pooled lookup in Triton, right or with its last lookup lost. Run as a script: IN.npz OUT.npz
DEVICE.

On the CPU it runs through Triton's interpreter, which must be chosen (TRITON_INTERPRET=1) before
triton is imported.
"""

import sys

import numpy as np
import torch
import triton
import triton.language as tl


@triton.jit
def pooled(
    weights, indices, offsets, out, width: tl.constexpr, block: tl.constexpr, lost: tl.constexpr
):
    """One program a bag, one lane a column; the last `lost` lookups of a bag are left out."""
    bag = tl.program_id(0)
    column = tl.arange(0, block)
    inside = column < width
    total = tl.zeros((block,), tl.float32)
    for at in range(tl.load(offsets + bag), tl.load(offsets + bag + 1) - lost):
        row = tl.load(indices + at)
        total += tl.load(weights + row * width + column, mask=inside, other=0.0)
    tl.store(out + bag * width + column, total, mask=inside)


def main(asked: str, answered: str, device: str) -> None:
    """Both versions' answers to one question."""
    with np.load(asked) as stored:
        inputs = {
            name: torch.from_numpy(stored[name]).to(device)
            for name in ("weights", "indices", "offsets")
        }
        width = int(stored["dims"][0])
    bags = inputs["offsets"].numel() - 1
    answers = {}
    for name, lost in (("right", 0), ("broken", 1)):
        out = torch.zeros(bags, width, device=device)
        pooled[(bags,)](*inputs.values(), out, width, triton.next_power_of_2(width), lost)
        answers[name] = out.cpu().numpy()
    np.savez(answered, **answers)


if __name__ == "__main__":
    main(*sys.argv[1:4])
