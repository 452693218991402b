"""How does a loop see a record of arrays without counting references? As the same record of bare
views.

A record is a `NamedTuple` whose fields are contiguous 1-D arrays. Its views keep the names of the
fields, so a rule reads `states.exp_avg[c]` of one row as its caller reads `states.exp_avg` of a
table. As with `bags.view`, no view may outlive its array.
"""

from collections.abc import Sequence

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from neocpu.kernels.simd import I64


def _bare(kind: types.Array) -> types.Array:
    return types.Array(kind.dtype, 1, "C")


def _record_of(record: types.NamedTuple, kinds: Sequence[types.Array]) -> types.NamedTuple:
    """The type of a record of the same class with other fields."""
    return types.BaseTuple.from_types(tuple(kinds), record.instance_class)


def _view(
    context: BaseContext,
    builder: ir.IRBuilder,
    kind: types.Array,
    pointer: ir.Value,
    size: ir.Value,
) -> ir.Value:
    """An array of `size` elements from `pointer` on that owns nothing."""
    array = context.make_array(kind)(context, builder)
    itemsize = context.get_constant(
        types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype))
    )
    # no meminfo: Numba counts no references to an array that nobody owns
    populate_array(
        array, data=pointer, shape=[size], strides=[itemsize], itemsize=itemsize, meminfo=None
    )
    return array._getvalue()


def _fields(
    context: BaseContext, builder: ir.IRBuilder, record: types.NamedTuple, value: ir.Value
) -> list[cgutils._StructProxy]:
    """The arrays of a record, as Numba's structures."""
    return [
        context.make_array(kind)(context, builder, builder.extract_value(value, i))
        for i, kind in enumerate(record.types)
    ]


@intrinsic
def bare_record(typingctx, record):
    """The record with a bare view of every array."""
    result = _record_of(record, [_bare(kind) for kind in record.types])

    def codegen(context, builder, signature, args):
        views = [
            _view(context, builder, kind, array.data, array.nitems)
            for kind, array in zip(result.types, _fields(context, builder, record, args[0]))
        ]
        return context.make_tuple(builder, result, views)

    return result(record), codegen


@intrinsic
def view_record(typingctx, record, at, size):
    """The record with elements [at, at + size) of every array."""
    result = _record_of(record, [_bare(kind) for kind in record.types])

    def codegen(context, builder, signature, args):
        views = [
            _view(context, builder, kind, builder.gep(array.data, [args[1]]), args[2])
            for kind, array in zip(result.types, _fields(context, builder, record, args[0]))
        ]
        return context.make_tuple(builder, result, views)

    return result(record, types.int64, types.int64), codegen


@intrinsic
def view_fields(typingctx, record_class, array, at):
    """A record of this class whose fields are elements at, at + 1, ... of an array: a view of one
    element each.
    """
    kind = _bare(array)
    record = record_class.instance_class
    result = types.BaseTuple.from_types((kind,) * len(record._fields), record)

    def codegen(context, builder, signature, args):
        source = context.make_array(array)(context, builder, args[1])
        views = [
            _view(context, builder, kind, builder.gep(source.data, [at]), I64(1))
            for at in (builder.add(args[2], I64(i)) for i in range(len(record._fields)))
        ]
        return context.make_tuple(builder, result, views)

    return result(record_class, array, types.int64), codegen


@intrinsic
def fill_record(typingctx, record, values, at, size):
    """Elements [at, at + size) of the i-th array of a record = values[i]."""

    def codegen(context, builder, signature, args):
        source = context.make_array(values)(context, builder, args[1])
        for i, array in enumerate(_fields(context, builder, record, args[0])):
            value = builder.load(builder.gep(source.data, [I64(i)]))
            first = builder.gep(array.data, [args[2]])
            with cgutils.for_range(builder, args[3]) as loop:
                builder.store(value, builder.gep(first, [loop.index]))
        return context.get_dummy_value()

    return types.void(record, values, types.int64, types.int64), codegen
