"""Which types have one meaning everywhere? Trees of data from outside, and the usual arrays."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# what `json.loads` may return
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
# an object of JSON that this program wrote: who reads it knows its keys
JsonObject: TypeAlias = Mapping[str, Any]
# sections and keys of a TOML file, before records check them
Tree: TypeAlias = Mapping[str, object]
# elements of any dtype: codes of a row format, columns of a file
Elements: TypeAlias = NDArray[Any]
Dtype: TypeAlias = np.dtype[Any]
# rows, slots, offsets: signed, because -1 stands for none of them
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
Bytes: TypeAlias = NDArray[np.uint8]
Bools: TypeAlias = NDArray[np.bool_]
FloatsByName: TypeAlias = Mapping[str, Floats]
# shows one line to the user
Tell: TypeAlias = Callable[[str], None]
