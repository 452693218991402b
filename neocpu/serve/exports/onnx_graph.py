"""How is a graph of ONNX put together? Node by node, each with one output that it names itself."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from neocpu.core.types import Elements
from neocpu.serve.exports.arrays import file_library

Proto: TypeAlias = Any  # the module onnx, and its messages: an optional library without types
OPSET = 18
ML_OPSET = 3  # of ai.onnx.ml, whose LabelEncoder maps codes to rows
IR_VERSION = 9
Attribute = int | float | str | Sequence[int]


class Graph:
    """A graph that grows; `model` closes it. Names of values are numbered."""

    def __init__(self) -> None:
        self.onnx: Proto = file_library("onnx")
        self._nodes: list[Proto] = []
        self._constants: list[Proto] = []
        self._inputs: list[Proto] = []
        self._shared: dict[tuple[str, bytes], str] = {}

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[int | str]) -> str:
        """An input of the graph; texts among the sizes are free."""
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def constant(self, values: ArrayLike, dtype: DTypeLike = np.int64) -> str:
        """A small constant, there once."""
        array = np.asarray(values, dtype)
        key = (f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._shared:
            self._shared[key] = self.tensor(f"constant_{len(self._shared)}", array)
        return self._shared[key]

    def tensor(self, name: str, array: Elements, kind: str = "") -> str:
        """A parameter; kind : ONNX's type of its elements, where it is not that of the dtype."""
        types = self.onnx.TensorProto
        number = self.onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        self._constants.append(
            types(
                name=name,
                dims=array.shape,
                # NumPy has no bfloat16: its bits come as uint16
                data_type=getattr(types, kind) if kind else number,
                raw_data=np.ascontiguousarray(array).tobytes(),
            )
        )
        return name

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """An operator's only output."""
        output = f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(
            self.onnx.helper.make_node(
                operator, list(inputs), [output], domain=domain, **attributes
            )
        )
        return output

    def split(self, value: str, sizes: Sequence[int]) -> list[str]:
        """Parts of a matrix, side by side."""
        if len(sizes) == 1:
            return [value]
        outputs = [f"part_{len(self._nodes)}_{i}" for i in range(len(sizes))]
        self._nodes.append(
            self.onnx.helper.make_node("Split", [value, self.constant(sizes)], outputs, axis=1)
        )
        return outputs

    def cast(self, value: str, dtype: DTypeLike) -> str:
        """The value as another type."""
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.node("Cast", value, to=kind)

    def model(self, output: str, name: str, metadata: dict[str, str]) -> Proto:
        """The checked model, whose output f32[batch] gets a name."""
        helper = self.onnx.helper
        # servers ask for the output by its name, and nodes number theirs
        self._nodes.append(helper.make_node("Identity", [output], [name]))
        kind = self.onnx.TensorProto.FLOAT
        result = helper.make_tensor_value_info(name, kind, ["batch"])
        graph = helper.make_graph(self._nodes, "neocpu", self._inputs, [result], self._constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="neocpu"
        )
        helper.set_model_props(model, metadata)
        self.onnx.checker.check_model(model)
        return model
