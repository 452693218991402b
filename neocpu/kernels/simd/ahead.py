"""How many lookups before its turn is a row asked for? As many as suit the processor.

Twice: into the second-level cache far ahead, into the first when its turn is near. The bits of a
result do not depend on it.
"""

from numba.extending import register_jitable

from neocpu.kernels.simd.tiles import target

# Near lookups, by how LLVM's names of a family's processors begin. A sum that waits for its row
# keeps its place in Zen's queues, which are too short for the sums of the next rows: on Zen 4 rows
# come too late if they are asked for 4 lookups ahead, and in time from 12 to 24.
FAMILIES = {"znver": 16}
OTHERS = 4  # measured on Intel's processors with AVX-512


def near_of(processor: str) -> int:
    """Lookups between asking for a row and its turn, near it, by LLVM's name of the processor."""
    return next((n for family, n in FAMILIES.items() if processor.startswith(family)), OTHERS)


NEAR = near_of(target()[0])


@register_jitable
def far_of(size):
    """Lookups between asking for so many bytes of a row and its turn, far from it: as many as a
    processor can be waiting for.
    """
    return 48 if size >= 512 else 64
