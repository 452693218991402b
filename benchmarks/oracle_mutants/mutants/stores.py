"""Bugs in storing rows: max_norm, narrow rows, chance, split rows; and in decoding them."""

import numpy as np

from benchmarks.oracle_mutants.formats import BITS, F32, RowScaled, SmallFloat, SmallFloats
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.numbers import bf16, flushed, fp16
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import FORWARD, STEPS, bend, named_mistake
from benchmarks.oracle_mutants.terms import Update

ROUNDED = "round backward trajectory lookup"
CHANCE = "round backward trajectory"

# max_norm.

named_mistake("max_norm_ignored", STEPS, normalized=lambda k, u, limit: u.w)
bend("max_norm_of_all_rows", STEPS, is_longer=lambda k, norm, limit: norm > 0)
bend("max_norm_of_shorter_rows", STEPS, is_longer=lambda k, norm, limit: norm < limit)
bend("max_norm_by_element", STEPS, normalized=lambda k, u, limit: np.clip(u.w, -limit, limit))
bend(
    "max_norm_of_old_rows",
    STEPS,
    normalized=lambda k, u, limit: (
        u.w * np.minimum(1, limit / np.maximum(k.norm(u.old), 1e-30))[:, None]
    ).astype(F32),
)
bend("max_norm_halved", STEPS, normalized=lambda k, u, limit: Kernel.normalized(k, u, limit / 2))

# Rounding.


def units(change):
    """Another rounding of multiples of the last place."""
    return lambda k, units: change(units)


def half_up(units: Array) -> Array:
    """Ties away from zero."""
    return np.floor(units + 0.5)


def half_down(units: Array) -> Array:
    """Ties towards zero."""
    return np.ceil(units - 0.5)


bend("ties_up", ROUNDED, "half_up", nearest=units(half_up))
bend("ties_down", ROUNDED, nearest=units(half_down))
bend("rounding_truncates", ROUNDED, "truncated", nearest=units(np.floor))
bend("rounding_away_from_zero", ROUNDED, "", nearest=units(np.ceil))
bend(
    "ties_to_odd",
    ROUNDED,
    nearest=units(lambda x: np.where(x % 1 == 0.5, np.floor(x / 2) * 2 + 1, np.rint(x))),
)
bend(
    "truncation_rounds",
    "round",
    truncated=units(np.rint),
)
bend(
    "rounding_saturates",
    ROUNDED,
    past_the_end=lambda k, code, small, mode: np.minimum(code, small.last),
)
bend(
    "infinity_saturates",
    ROUNDED,
    infinity=lambda k, small: small.last,
)
bend("nan_becomes_infinity", ROUNDED, quiet_nan=lambda k, name: k.infinity(k.spec(name)))
bend("nan_becomes_0", ROUNDED, quiet_nan=lambda k, name: 0)


def flushed_codes(k: Kernel, x: Array, name: str, mode: str) -> Array:
    """Subnormal codes become zeros."""
    code = SmallFloats.encode_small(k, x, name, mode)
    small = k.spec(name)
    sign = 1 << small.bits - 1
    return np.where((code & sign - 1) < 1 << small.mantissa, code & sign, code).astype(code.dtype)


def through(first):
    """Numbers are rounded to another format before."""
    return lambda k, x, name, mode: SmallFloats.encode_small(k, first(x), name, mode)


def bits_added(k: Kernel, x: Array, name: str, mode: str) -> Array:
    """bf16 by adding 0x8000 to the bits, NaN too."""
    if name != "bf16" or mode != "nearest":
        return SmallFloats.encode_small(k, x, name, mode)
    bits = np.ascontiguousarray(x, F32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x8000 & 0xFFFFFFFF) >> 16).astype(np.uint16)


bend("narrow_subnormals_flushed", ROUNDED, "subnormals_flushed", encode_small=flushed_codes)
bend("rounded_twice_by_bf16", ROUNDED, "", encode_small=through(bf16))
bend("rounded_twice_by_fp16", ROUNDED, "", encode_small=through(fp16))
bend("input_subnormals_flushed", ROUNDED, "subnormals_flushed", encode_small=through(flushed))
bend("bf16_by_adding_half", ROUNDED, "half_up bf16_cast_half_up", encode_small=bits_added)
bend("sign_of_zero_lost", "round", sign_bits=lambda k, sign, code: np.where(code == 0, 0, sign))
bend("sign_lost", ROUNDED, sign_bits=lambda k, sign, code: np.zeros_like(sign))
bend(
    "bias_one_too_great",
    "round",
    spec=lambda k, name: SmallFloats.spec(k, name)._replace(
        bias=SmallFloats.spec(k, name).bias + 1
    ),
)

# Chance.


def chance(change):
    """Another way to go up: change(units, words) -> whole numbers."""
    return lambda k, units, x: change(units, SmallFloats.words(k, x))


def floor_plus(mask):
    """The number below, or above where mask(fraction, word)."""
    return chance(lambda x, word: np.floor(x) + mask(x - np.floor(x), word))


def biased(share: float):
    """Up too often by a share of the fraction."""
    return floor_plus(lambda f, word: (word + f * (1 + share) >= 1) & (f > 0))


bend(
    "chance_is_nearest",
    CHANCE,
    "stochastic_rounding_ignored",
    by_chance=chance(lambda x, word: np.rint(x)),
)
bend("chance_always_up", CHANCE, "away_from_zero", by_chance=chance(lambda x, word: np.ceil(x)))
bend(
    "chance_always_down",
    CHANCE,
    "toward_zero truncated",
    by_chance=chance(lambda x, word: np.floor(x)),
)
bend(
    "chance_inverted",
    CHANCE,
    "inverted_probability",
    by_chance=floor_plus(lambda f, word: (word >= f) & (f > 0)),
)
bend("chance_biased_by_25_percent", CHANCE, "biased_up other_probability", by_chance=biased(0.25))
bend("chance_biased_by_5_percent", CHANCE, "biased_up other_probability", by_chance=biased(0.05))
bend(
    "chance_biased_down_by_25_percent",
    CHANCE,
    "biased_down other_probability",
    by_chance=biased(-0.25),
)
bend(
    "chance_of_one_half",
    CHANCE,
    "other_probability",
    by_chance=floor_plus(lambda f, word: (word >= 0.5) & (f > 0)),
)
bend(
    "chance_of_4_bits",
    CHANCE,
    "few_random_bits",
    by_chance=floor_plus(lambda f, word: np.floor(word * 16) / 16 + f >= 1),
)
bend(
    "chance_of_2_bits",
    CHANCE,
    "few_random_bits",
    by_chance=floor_plus(lambda f, word: np.floor(word * 4) / 4 + f >= 1),
)
bend(
    "chance_plus_half",
    CHANCE,
    "noise_width",
    by_chance=chance(lambda x, word: np.rint(x + (word - 0.5) / 2)),
)
bend(
    "chance_leaves_interval",
    CHANCE,
    "",
    by_chance=chance(lambda x, word: np.rint(x + 2 * (word - 0.5))),
)


def one_word(shape_of):
    """The same word for several elements."""

    def words(k: Kernel, x: Array) -> Array:
        drawn = np.random.default_rng(k.seed).random(shape_of(x.shape))
        return np.broadcast_to(drawn, x.shape)

    return words


bend(
    "same_words_in_every_call",
    CHANCE,
    "same_numbers_in_tables same_numbers_for_seeds",
    words=lambda k, x: np.random.default_rng(k.seed).random(x.shape),
)
bend(
    "one_word_for_all",
    CHANCE,
    "one_number same_numbers_for_seeds",
    words=one_word(lambda shape: ()),
)
bend(
    "one_word_for_each_row",
    CHANCE,
    "one_number_per_row same_numbers_for_seeds",
    words=one_word(lambda shape: (shape[0], 1)),
)
bend(
    "one_word_for_each_column",
    CHANCE,
    "one_number_per_column same_numbers_for_seeds",
    words=one_word(lambda shape: (1, shape[1])),
)


def every_fourth(k: Kernel, x: Array) -> Array:
    """One word for four columns."""
    drawn = np.random.default_rng(k.seed).random((*x.shape[:-1], -(-x.shape[-1] // 4)))
    return np.repeat(drawn, 4, axis=-1)[..., : x.shape[-1]]


bend(
    "one_word_for_four_columns",
    CHANCE,
    "shared_by_neighbours same_numbers_for_seeds",
    words=every_fourth,
)
bend(
    "chance_though_nearest",
    STEPS,
    "",
    narrow_rows=lambda k, u, name, mode: k.encode_small(u.w, name, "stochastic"),
)
bend(
    "truncation_though_nearest",
    STEPS,
    "truncated",
    narrow_rows=lambda k, u, name, mode: k.encode_small(u.w, name, "truncate"),
)


def step_rounded_first(k: Kernel, u: Update, name: str, mode: str) -> Array:
    """The step is rounded before it is subtracted."""
    step = k.decode_small(k.encode_small(u.old - u.w, name, "nearest"), name)
    return k.encode_small((u.old - step).astype(F32), name, mode)


bend("step_rounded_before_subtraction", STEPS, "", narrow_rows=step_rounded_first)

# Split rows.


def split(change):
    """Another way to store both halves: change(bits) -> high, low."""

    def store_split(k: Kernel, tables: dict[str, Array], cells: Array, w: Array) -> None:
        bits = np.ascontiguousarray(w, F32).view(np.uint32)
        high, low = change(bits)
        tables["weights"][cells] = high.astype(np.uint16)
        if low is not None:
            tables["weights_low"][cells] = low.astype(np.uint16)

    return store_split


named_mistake("low_half_ignored", STEPS, low_half=lambda k, low: np.zeros_like(low))
bend("low_half_not_written", STEPS, "", store_split=split(lambda bits: (bits >> 16, None)))
bend("low_half_zeroed", STEPS, "", store_split=split(lambda bits: (bits >> 16, bits * 0)))
bend(
    "high_half_rounded",
    STEPS,
    "",
    store_split=split(lambda bits: (bits + 0x8000 >> 16, bits & 0xFFFF)),
)
bend("halves_swapped", STEPS, "", store_split=split(lambda bits: (bits & 0xFFFF, bits >> 16)))

# Decoding of rows that a lookup reads.


def spec_of(change):
    """Formats with another layout: change(name, spec)."""
    return lambda k, name: change(name, SmallFloats.spec(k, name))


def as_format(wrong: dict[str, str]):
    """Codes of one format read as those of another."""
    return lambda k, codes, name: SmallFloats.decode_small(k, codes, wrong.get(name, name))


DECODED = "lookup"
bend("fp16_read_as_bf16", DECODED, decode_small=as_format({"fp16": "bf16"}))
bend("bf16_read_as_fp16", DECODED, decode_small=as_format({"bf16": "fp16"}))
bend("e4m3_read_as_e5m2", DECODED, decode_small=as_format({"fp8_e4m3": "fp8_e5m2"}))
bend("e5m2_read_as_e4m3", DECODED, decode_small=as_format({"fp8_e5m2": "fp8_e4m3"}))


def fnuz(name: str, small: SmallFloat) -> SmallFloat:
    """The bias of AMD's fp8 formats."""
    return small._replace(bias=small.bias + 1) if small.bits == 8 else small


bend("fp8_bias_of_fnuz", DECODED, spec=spec_of(fnuz))
bend(
    "e4m3_with_infinity",
    DECODED,
    spec=spec_of(
        lambda name, small: (
            small._replace(last=0x77, has_infinity=True) if name == "fp8_e4m3" else small
        )
    ),
)
bend(
    "small_subnormals_as_normal",
    DECODED,
    significand=lambda k, hidden, fraction: 1.0 + np.asarray(fraction),
)
bend(
    "small_subnormals_flushed",
    DECODED,
    "subnormals_flushed",
    significand=lambda k, hidden, fraction: np.where(hidden > 0, hidden + fraction, 0.0),
)
bend(
    "codes_big_endian",
    DECODED,
    decode_small=lambda k, codes, name: SmallFloats.decode_small(k, codes.byteswap(), name),
)

SCALED = "lookup dequantize"
named_mistake(
    "scale_and_bias_swapped",
    SCALED,
    scale_and_bias=lambda k, header, name: (header[:, 1], header[:, 0]),
)
bend(
    "bias_ignored",
    SCALED,
    "row_bias_missing",
    scale_and_bias=lambda k, header, name: (header[:, 0], 0 * header[:, 1]),
)
bend(
    "bias_subtracted",
    SCALED,
    scale_and_bias=lambda k, header, name: (header[:, 0], -header[:, 1]),
)
bend(
    "scale_of_first_row",
    SCALED,
    scale_and_bias=lambda k, header, name: (header[:1, 0].repeat(len(header)), header[:, 1]),
)
bend(
    "bias_is_zero_point",
    SCALED,
    scaled=lambda k, q, scale, bias: ((q - bias) * scale).astype(F32),
)
bend("bias_times_scale", SCALED, scaled=lambda k, q, s, b: ((q + b) * s).astype(F32))
named_mistake(
    "codes_signed", SCALED, levels=lambda k, q, name: q.astype(np.int8) if BITS[name] == 8 else q
)
bend(
    "codes_centred",
    SCALED,
    levels=lambda k, q, name: q.astype(np.int64) - (1 << BITS[name] - 1),
)
bend("codes_one_too_great", SCALED, levels=lambda k, q, name: q.astype(np.int64) + 1)
bend(
    "scaled_in_fp16",
    SCALED,
    scaled=lambda k, q, scale, bias: fp16((q * scale + bias).astype(F32)),
)
bend(
    "low_bits_last",
    SCALED,
    "high_code_first",
    shifts=lambda k, bits: RowScaled.shifts(k, bits)[::-1],
)
bend(
    "header_is_bf16",
    FORWARD,
    inference_header=lambda k, codes: Kernel().decode_small(
        codes[:, :4].copy().view("<u2"), "bf16"
    ),
)
bend(
    "header_at_the_end",
    FORWARD,
    inference_header=lambda k, codes: codes[:, -4:].copy().view("<f2").astype(F32),
    inference_codes=lambda k: 0,
)
bend("header_of_8_bytes", FORWARD, inference_codes=lambda k: 8)
bend(
    "row_alignment_ignored",
    FORWARD,
    row_width=lambda k, name, columns, alignment=1: RowScaled.row_width(k, name, columns),
)
bend(
    "codes_one_column_off",
    FORWARD,
    unpack=lambda k, packed, bits: np.roll(RowScaled.unpack(k, packed, bits), 1, axis=1),
)
