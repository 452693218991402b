"""How is a row written down? One record per format: its name, the dtype of its codes, and bytes per row.

fp32 is the only one so far. A narrower format will bring decode and encode rules that compose into lookup and update as
optimizers do.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class RowFormat:
    """A format of table rows: NumPy dtype of one element's code, and bytes of a row beside its elements."""

    name: str
    dtype: str
    header_bytes: int = 0

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` elements."""
        return self.header_bytes + columns * int(self.dtype[-1])


FORMATS = {"fp32": RowFormat("fp32", "<f4")}
