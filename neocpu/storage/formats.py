"""Which formats can rows have? The records of `neocpu/formats.py`, under the name that storage and
its users know.
"""

from neocpu.formats import FORMATS, INFERENCE, WIRES, RowFormat

__all__ = ["FORMATS", "INFERENCE", "WIRES", "RowFormat"]
