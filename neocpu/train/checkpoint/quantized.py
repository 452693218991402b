"""What does a quantised checkpoint hold?

The weights of float32 tables, rounded to rows of a narrow format.

Check-N-Run (Eisenman et al. 2022) writes such files between exact ones. Optimizer state stays as it
is, and so do tables of narrow formats.
"""

from dataclasses import replace

from neocpu.train.checkpoint.number_codes import Code
from neocpu.train.state.blocks import Blocks, Tensor, canonical


def rounded(blocks: Blocks, tensor: Tensor) -> Blocks:
    """Blocks as the file has them, with the codes of their weights, if it rounds this tensor."""
    if not tensor.quantized:
        return blocks
    code = Code.of(tensor, "weight")
    codes = code.encode(blocks.values["weight"])
    # hashes are of what readers will see
    values = dict(blocks.values) | {"weight": canonical(code.decode(codes))}
    return replace(blocks, values=values, codes={"weight": codes})
