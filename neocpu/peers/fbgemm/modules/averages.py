"""Which averages of rows do FBGEMM's optimizers take between updates, on whole tables?

Before the lookup of a training step, counted from 1: EMAINPLACE_ROWWISE_ADAGRAD moves the second
half of each row towards the first; ENSEMBLE_ROWWISE_ADAGRAD keeps a shadow of the rows and copies
it back (formulas: docs/semantics.md §2).
"""

from neocpu.core.errors import ConfigError
from neocpu.peers.fbgemm.context import Tensors
from neocpu.peers.fbgemm.names import EmainplaceModeDefinition, EnsembleModeDefinition


def average_halves(weights: Tensors, options: EmainplaceModeDefinition, step: int) -> None:
    """Move the second half of each row [rows, columns] towards the first, where this step does so.

    Raises ConfigError for an odd number of columns.
    """
    # FBGEMM's options are floats, though they count steps.
    if step % int(options.step_ema) or step < int(options.step_start):
        return
    for table in weights:
        if table.shape[1] % 2:
            raise ConfigError(
                f"dimension {table.shape[1]}: EMAINPLACE_ROWWISE_ADAGRAD needs an even number"
            )
        half = table.shape[1] // 2
        # torch's `lerp_`, as in FBGEMM: its bits are the definition.
        table[:, half:].lerp_(table[:, :half], options.step_ema_coef)


def average_shadows(
    weights: Tensors, shadows: Tensors, options: EnsembleModeDefinition, step: int
) -> None:
    """Average rows into their shadows and copy shadows to rows, where this step does so.

    weights, shadows : [rows, columns] of each table, changed in place; averages are taken in the
    shadows' dtype.
    """
    average = step % int(options.step_ema) == 0
    copy = step % int(options.step_swap) == 0
    # Up to the start the shadow is a plain copy: 0 of its old numbers stays.
    old_share = float(options.step_ema_coef) if step > int(options.step_start) else 0.0
    for table, shadow in zip(weights, shadows):
        if average:
            shadow.lerp_(table.to(shadow.dtype), 1.0 - old_share)
        if copy:
            table.copy_(shadow)
        # After the copy to the rows, which would get the zeros otherwise.
        if average and int(options.step_mode) == 0:
            shadow.zero_()
