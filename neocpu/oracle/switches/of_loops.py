"""Which mistakes do loops over bags, duplicates and coded rows make? Their texts."""

from dataclasses import replace

from neocpu.oracle.switches.switch import BAGS, MERGES, WEIGHTED, mistake
from neocpu.oracle.truth.bends import CAPS, LOST_PLACES, UNROLLED

SCALED_ROWS = ("lookup", "weight_gradient", "dequantize")

LOOPS = (
    *(
        mistake(
            f"bag_capped_{cap}",
            BAGS,
            f"only the first {cap:,} lookups of a bag count",
            "loop over the whole bag: a warp or block takes its lookups in several turns",
        )
        for cap in CAPS
    ),
    *(
        mistake(
            f"bag_tail_dropped_{count}",
            BAGS,
            f"the last lookups of a bag, its length modulo {count}, are left out",
            f"after the loop unrolled by {count}, take the remaining lookups one by one",
        )
        for count in UNROLLED
    ),
    mistake(
        "offsets_by_table",
        BAGS,
        "a feature takes the bags that its table's number names, not its own",
        "index offsets by feature: offsets[feature * B + b]",
    ),
    mistake(
        "bag_deduplicated",
        BAGS,
        "a row that occurs several times in a bag counts once",
        "add every lookup: duplicates in a bag count as often as they occur",
    ),
    mistake(
        "accumulator_kept",
        ("lookup",),
        "the sum of a bag goes on from that of the bag before",
        "set the accumulator to 0 at the beginning of every bag",
    ),
    mistake(
        "pruned_reads_row_0",
        BAGS,
        "row -1 (a pruned row) reads or trains row 0 of the table",
        "skip lookups with row < 0 instead of clamping them",
    ),
    mistake(
        "out_of_bounds_clamped",
        (*BAGS, "bounds_check"),
        "a row number out of range is set to the nearest one, the first or last row",
        "an invalid row reads and trains nothing",
    ),
    mistake(
        "weights_twice",
        WEIGHTED,
        "per-sample weights are applied twice",
        "multiply once: either where the row is read or where its gradient is formed",
    ),
    mistake(
        "weighted_mean_by_plain_weights",
        BAGS,
        "a weighted MEAN divides by the sum of the weights",
        "divide by the bag's length L, weighted or not",
    ),
    mistake(
        "gradient_of_next_sample",
        (*MERGES, "weight_gradient"),
        "a lookup takes the gradient of the sample after its own",
        "a bag's gradient is row b of grad_output, at its feature's columns",
    ),
    mistake(
        "clip_ignored",
        MERGES,
        "max_gradient has no effect",
        "clip grad_output, number by number, before anything is merged",
    ),
    replace(
        mistake(
            "duplicate_lost",
            MERGES,
            "of a row's duplicates one is lost, whichever it is: stores that race",
            "add with atomics, or sort by row and reduce segments",
        ),
        variants=LOST_PLACES,
    ),
    mistake(
        "segment_ends_early",
        MERGES,
        "the last lookup of every row is left out, of a single one too",
        "a segment ends before the first lookup of the next row: compare with <",
    ),
    mistake(
        "segment_starts_late",
        MERGES,
        "the first lookup of every row is left out, of a single one too",
        "a segment begins at its first lookup, that one included",
    ),
    *(
        mistake(
            f"duplicates_capped_{cap}",
            MERGES,
            f"only the first {cap:,} lookups of a row count",
            "loop over the whole segment: a warp or block takes it in several turns",
        )
        for cap in CAPS
    ),
    *(
        mistake(
            f"duplicate_tail_dropped_{count}",
            MERGES,
            f"the last lookups of a row, their number modulo {count}, are left out",
            f"after the loop unrolled by {count}, take the remaining lookups one by one",
        )
        for count in UNROLLED
    ),
    *(
        mistake(
            f"merged_in_{name}",
            MERGES,
            f"the gradients of a row are added in {name}, rounding after every lookup",
            "merge gradients in fp32",
        )
        for name in ("fp16", "bf16")
    ),
    *(
        mistake(
            f"gradients_in_{name}",
            MERGES,
            f"the gradient of every lookup is rounded to {name} before it is added",
            "keep gradients in fp32 until they are merged",
        )
        for name in ("fp16", "bf16")
    ),
)

CODES = (
    mistake(
        "scale_and_bias_swapped",
        SCALED_ROWS,
        "scale and bias of quantised rows are taken for each other",
        "the scale stands first, then the bias",
    ),
    mistake(
        "scale_missing",
        SCALED_ROWS,
        "the codes of quantised rows are not multiplied by their scale",
        "a number is code * scale + bias",
    ),
    mistake(
        "row_bias_missing",
        SCALED_ROWS,
        "the bias of quantised rows is not added",
        "a number is code * scale + bias",
    ),
    mistake(
        "codes_signed",
        SCALED_ROWS,
        "codes of quantised rows are taken as signed numbers",
        "codes run from 0 to 2^bits - 1",
    ),
    mistake(
        "high_code_first",
        SCALED_ROWS,
        "of the codes in one byte the high bits are taken first",
        "the first code stands in the lowest bits",
    ),
    mistake(
        "permutation_inverted",
        ("permute",),
        "keys are permuted by the inverse of the permutation",
        "output key k is input key permute[k]",
    ),
)
