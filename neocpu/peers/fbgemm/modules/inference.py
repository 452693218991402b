"""What does IntNBitTableBatchedEmbeddingBagsCodegen do here? It serves lookups of quantised tables.

Names, bytes of rows and `state_dict` are FBGEMM's; sums are exact and rounded once
(`inference_rows.py`). Intended differences from FBGEMM on a CPU: index remapping goes by the table
of a feature, also where features share one; a weighted MEAN is divided by the bag's length; an
index outside its table is refused even in mode NONE.
"""

import uuid
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from neocpu.core.errors import ConfigError
from neocpu.core.types import Floats, Ints
from neocpu.peers.fbgemm.context import Tensors
from neocpu.peers.fbgemm.modules.compiled import Compilable
from neocpu.peers.fbgemm.modules.inference_rows import FORMATS as ROW_FORMATS
from neocpu.peers.fbgemm.modules.inference_rows import (
    HEADER,
    SCALED,
    Fp8,
    InferenceSpec,
    InferenceTable,
    align_to_cacheline,
    pooled,
    remapped,
    rounded_row_size_in_bytes,
    stored_rows,
    unpadded_row_size_in_bytes,
)
from neocpu.peers.fbgemm.modules.module import OUTPUTS
from neocpu.peers.fbgemm.names import (
    BoundsCheckMode,
    CacheAlgorithm,
    EmbeddingLocation,
    Option,
    PoolingMode,
    SparseType,
    of,
)
from neocpu.peers.fbgemm.operators import bounds
from neocpu.tables.embedding.bounds import bag_cuts

# Outputs of INT8 and INT4 are rows as they are stored.
CODES = {"int8": torch.uint8, "int4": torch.quint4x2}
# FBGEMM's default of FP8: 4 bits of exponent with bias 7.
FP8 = Fp8(4, 7)


class IntNBitTableBatchedEmbeddingBagsCodegen(Compilable):
    """Table-batched lookups for inference, in FP32, FP16, FP8, INT8, INT4, INT2 rows.

    Arguments, their positions and defaults are FBGEMM's.

    embedding_specs : (feature name, rows, columns, SparseType, HOST) of each table.
    index_remapping : for each table the row that each index stands for, int[original rows], -1:
    pruned; or None. output_dtype : fp32, fp16, bf16; without pooling also int8 of INT8 tables and
    int4 of INT4 ones: rows as they are stored. Arguments about caches have no effect.

    Raises ConfigError for what neocpu does not have: devices, scale and bias behind the codes or in
    fp32, int8 outputs of bags. FBGEMM: the class of this name in
    `split_table_batched_embeddings_ops_inference`.
    """

    def __init__(
        self,
        embedding_specs: Sequence[InferenceSpec],
        feature_table_map: list[int] | None = None,
        index_remapping: Sequence[Tensor | None] | None = None,
        pooling_mode: Option = PoolingMode.SUM,
        device: str | torch.device | None = None,
        bounds_check_mode: Option = BoundsCheckMode.WARNING,
        weight_lists: Sequence[tuple[Tensor, Tensor | None]] | None = None,
        pruning_hash_load_factor: float = 0.5,
        use_array_for_index_remapping: bool = True,
        output_dtype: Option = SparseType.FP16,
        cache_algorithm: Option = CacheAlgorithm.LRU,
        cache_load_factor: float = 0.2,
        cache_sets: int = 0,
        cache_reserved_memory: float = 0.0,
        enforce_hbm: bool = False,
        record_cache_metrics: object = None,
        gather_uvm_cache_stats: bool | None = False,
        row_alignment: int | None = None,
        fp8_exponent_bits: int | None = None,
        fp8_exponent_bias: int | None = None,
        cache_assoc: int = 32,
        scale_bias_size_in_bytes: int = HEADER,
        cacheline_alignment: bool = True,
        uvm_host_mapped: bool = False,
        reverse_qparam: bool = False,
        feature_names_per_table: list[list[str]] | None = None,
        indices_dtype: torch.dtype = torch.int32,
    ) -> None:
        super().__init__()
        if device is not None and torch.device(device).type != "cpu":
            raise ConfigError(f"device {device}: neocpu computes on the CPU; leave it out")
        if scale_bias_size_in_bytes != HEADER or reverse_qparam:
            raise ConfigError(
                "omit scale_bias_size_in_bytes, reverse_qparam: rows begin with fp16 scale and bias"
            )
        self.uuid = str(uuid.uuid4())
        self.current_device = torch.device("cpu")
        self.use_cpu = True
        self.scale_bias_size_in_bytes = scale_bias_size_in_bytes
        self.reverse_qparam = reverse_qparam
        self.row_alignment = row_alignment or 1
        self.indices_dtype = indices_dtype
        self.feature_names_per_table = feature_names_per_table
        self.bounds_check_mode_int = bounds.mode_of(bounds_check_mode)
        self.fp8_exponent_bits = fp8_exponent_bits or FP8.exponent_bits
        self.fp8_exponent_bias = (
            FP8.exponent_bias if fp8_exponent_bias is None else fp8_exponent_bias
        )
        self._make_tables(embedding_specs, cacheline_alignment)
        self._make_features(feature_table_map, pooling_mode)
        self._make_output(output_dtype)
        self.set_index_remappings_array(index_remapping or [])
        if weight_lists:
            self.initialize_weights()
            self.assign_embedding_weights(weight_lists)

    def _make_tables(self, specs: Sequence[InferenceSpec], cacheline_alignment: bool) -> None:
        if not specs:
            raise ConfigError("embedding_specs: give at least one table")
        self.embedding_specs = [tuple(spec) for spec in specs]
        self.feature_names = [spec[0] for spec in specs]
        self._tables: list[InferenceTable] = []
        start = 0
        for name, rows, dim, sparse_type, location in specs:
            form = of(SparseType, sparse_type)
            if location != EmbeddingLocation.HOST:
                raise ConfigError(f"table {name!r}: neocpu keeps tables on HOST, not {location}")
            if form.value not in ROW_FORMATS or dim * form.bit_rate() % 8:
                raise ConfigError(
                    f"table {name!r}: {dim} columns of {form.value}; formats are "
                    f"{', '.join(ROW_FORMATS)}, and columns fill whole bytes"
                )
            row_bytes = rounded_row_size_in_bytes(dim, form, self.row_alignment)
            self._tables.append(
                InferenceTable(name, rows, dim, form.value, start, row_bytes, self.row_alignment)
            )
            size = rows * row_bytes
            start += align_to_cacheline(size) if cacheline_alignment else size
        self.host_size = start
        self.dev_size = 0
        self.uvm_size = 0
        self.weights_physical_offsets = [table.start for table in self._tables]
        self.weights_physical_placements = [EmbeddingLocation.HOST.value] * len(self._tables)
        # FBGEMM's modules have no memory until `initialize_weights`.
        self.weight_initialized = False
        for part in ("dev", "host", "uvm"):
            setattr(self, f"weights_{part}", torch.zeros(0, dtype=torch.uint8))

    def _make_features(self, feature_table_map: list[int] | None, pooling_mode: Option) -> None:
        tables = self._tables
        all_tables = list(range(len(tables)))
        self.feature_table_map = all_tables if feature_table_map is None else feature_table_map
        if set(self.feature_table_map) != set(all_tables):
            raise ConfigError(
                f"feature_table_map {self.feature_table_map}: every table needs a feature"
            )
        self.pooling_mode = pooling_mode
        self._pooling = of(PoolingMode, pooling_mode).name.lower()
        dims = [tables[t].dim for t in self.feature_table_map]
        if self._pooling == "none" and len(set(dims)) > 1:
            raise ConfigError("pooling_mode NONE: all tables must have the same dimension")
        self._dims = dims
        self.total_D = sum(dims)
        features = [tables[t] for t in self.feature_table_map]
        self.register_buffer("D_offsets", torch.tensor([0, *np.cumsum(dims)], dtype=torch.int32))
        self.register_buffer("rows_per_table", torch.tensor([table.rows for table in features]))
        self.register_buffer("bounds_check_warning", torch.zeros(1, dtype=torch.int64))
        numbers = [SparseType(table.form).as_int() for table in features]
        self.register_buffer("weights_tys", torch.tensor(numbers, dtype=torch.uint8))
        for name, dtype in (
            ("index_remappings_array_offsets", torch.int64),
            ("index_remappings_array", self.indices_dtype),
            ("index_remapping_hash_table_offsets", torch.int64),
            ("index_remapping_hash_table", self.indices_dtype),
            ("original_rows_per_table", torch.int64),
            ("table_wise_cache_miss", torch.int64),
        ):
            self.register_buffer(name, torch.empty(0, dtype=dtype))
        self.register_buffer("lxu_cache_weights", torch.zeros(0, 0, dtype=torch.uint8))

    def _make_output(self, output_dtype: Option) -> None:
        form = of(SparseType, output_dtype)
        self.output_dtype = form.as_int()
        self._stored = form.value in CODES
        self._output = {**OUTPUTS, **CODES}.get(form.value)
        rows_stored = all(table.form == form.value for table in self._tables)
        if self._output is None or (self._stored and not (rows_stored and self._pooling == "none")):
            raise ConfigError(
                f"output_dtype {form.value}: choose one of {', '.join(OUTPUTS)}; int8 and int4 are "
                "for tables of that format without pooling"
            )

    # ---- rows ----

    def initialize_weights(self) -> None:
        """Make room for the rows: zeros, once."""
        if not self.weight_initialized:
            self.weights_host = torch.zeros(self.host_size, dtype=torch.uint8)
            placements = [self.weights_physical_placements[t] for t in self.feature_table_map]
            offsets = [self.weights_physical_offsets[t] for t in self.feature_table_map]
            self.weights_placements = torch.tensor(placements, dtype=torch.int32)
            self.weights_offsets = torch.tensor(offsets, dtype=torch.int64)
            self.weight_initialized = True

    def split_embedding_weights_with_scale_bias(
        self, split_scale_bias_mode: int = 1
    ) -> list[tuple[Tensor, Tensor | None, Tensor | None]]:
        """The bytes of every table, in place, by split_scale_bias_mode.

        0: (whole rows with padding, None, None); 1: (codes, scale and bias u8[rows, 4], None);
        2: (codes, scale f16[rows, 1], bias f16[rows, 1]). Rows that have no scale: (codes, None,
        None).
        """
        if not self.weight_initialized:
            raise ConfigError("weights are not initialized: call initialize_weights")
        splits: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
        for table in self._tables:
            size = table.rows * table.row_bytes
            rows = self.weights_host[table.start : table.start + size].view(table.rows, -1)
            if split_scale_bias_mode:
                rows = rows[:, : unpadded_row_size_in_bytes(table.dim, table.form)]
            if not split_scale_bias_mode or table.form not in SCALED:
                splits.append((rows, None, None))
            elif split_scale_bias_mode == 1:
                splits.append((rows[:, HEADER:], rows[:, :HEADER], None))
            else:
                scale = rows[:, : HEADER // 2].view(torch.float16)
                bias = rows[:, HEADER // 2 : HEADER].view(torch.float16)
                splits.append((rows[:, HEADER:], scale, bias))
        return splits

    def split_embedding_weights(
        self, split_scale_shifts: bool = True
    ) -> list[tuple[Tensor, Tensor | None]]:
        """(codes, scale and bias) of every table, in place; or (whole rows with padding, None)."""
        splits = self.split_embedding_weights_with_scale_bias(int(split_scale_shifts))
        return [split[:2] for split in splits]

    def fill_random_weights(self) -> None:
        """Random codes from torch's generator, table by table; scales and biases stay."""
        self.initialize_weights()
        for codes, _ in self.split_embedding_weights():
            # FBGEMM draws below 255, too.
            codes.copy_(torch.randint(0, 255, codes.shape, dtype=torch.uint8))

    def assign_embedding_weights(
        self, q_weight_list: Sequence[tuple[Tensor, Tensor | None]]
    ) -> None:
        """Copy (codes, scale and bias) of every table, as `split_embedding_weights` gives them."""
        splits = self.split_embedding_weights()
        if len(splits) != len(q_weight_list):
            raise ConfigError(f"{len(q_weight_list)} tables of weights for {len(splits)} tables")
        for (codes, header), (new_codes, new_header) in zip(splits, q_weight_list):
            if (header is None) != (new_header is None):
                raise ConfigError("scale and bias are of INT8, INT4 and INT2 rows, and only theirs")
            codes.copy_(new_codes)
            if header is not None:
                header.copy_(new_header)

    def embedding_inplace_update(
        self,
        update_table_indices: Sequence[int],
        update_row_indices: Sequence[Sequence[int]],
        update_weights: Tensors,
    ) -> None:
        """Overwrite rows: of each table named, the rows by number with u8[rows, row bytes]."""
        tables = self.split_embedding_weights(split_scale_shifts=False)
        for t, rows, values in zip(update_table_indices, update_row_indices, update_weights):
            tables[t][0][torch.tensor(rows, dtype=torch.int64)] = values

    def set_index_remappings_array(self, index_remapping: Sequence[Tensor | None]) -> None:
        """Set the row that each index of a table stands for, -1: none; None: the index itself."""
        rows = [table.rows for table in self._tables]
        mappings = list(index_remapping) or [None] * len(rows)
        if all(mapping is None for mapping in mappings):
            return
        sizes = [0 if mapping is None else mapping.numel() for mapping in mappings]
        offsets = torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int64)
        arrays = [mapping.reshape(-1) for mapping in mappings if mapping is not None]
        self.index_remappings_array_offsets = offsets
        self.index_remappings_array = torch.cat(arrays).to(self.indices_dtype)
        # A table that is not pruned is checked against its own height.
        original = [size or height for size, height in zip(sizes, rows)]
        self.original_rows_per_table = torch.tensor([original[t] for t in self.feature_table_map])

    def set_index_remappings(
        self,
        index_remapping: Sequence[Tensor | None],
        pruning_hash_load_factor: float = 0.5,
        use_array_for_index_remapping: bool = True,
    ) -> None:
        """As `set_index_remappings_array`: a hash table would give the same rows."""
        self.set_index_remappings_array(index_remapping)

    # ---- lookups ----

    def _check(
        self, heights: Tensor, indices: Tensor, offsets: Tensor, weights: Tensor | None
    ) -> None:
        """Check and repair indices as the mode says; refuse what is still outside the tables."""
        mode = self.bounds_check_mode_int
        if mode in bounds.CHECKED:
            warning = self.bounds_check_warning
            bounds.bounds_check_indices(heights, indices, offsets, mode, warning, weights)
        offset_array = bounds.as_numpy(offsets)
        first_bag = bag_cuts(len(self.feature_table_map), offset_array, None)
        index_array = bounds.as_numpy(indices)
        bounds.refuse_outside(heights.numpy(), index_array, offset_array, first_bag)

    def look_up(self, indices: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
        """The output of `forward`, whose arguments these are."""
        if self.index_remappings_array.numel():
            # Before the mapping, which would be read out of bounds.
            self._check(self.original_rows_per_table, indices, offsets, weights)
            cuts = bag_cuts(len(self.feature_table_map), bounds.as_numpy(offsets), None)
            rows = remapped(
                bounds.as_numpy(indices),
                bounds.as_numpy(offsets)[cuts],
                self.feature_table_map,
                self.index_remappings_array.numpy(),
                self.index_remappings_array_offsets.numpy(),
            )
            indices = torch.from_numpy(rows)
            offsets = offsets.to(torch.int64)
        # The mapped rows are the caller's numbers, too, and checked again.
        self._check(self.rows_per_table, indices, offsets, weights)
        index_array = bounds.as_numpy(indices)
        ends = bounds.as_numpy(offsets)
        if self._stored:
            return self._stored_rows(index_array, ends)
        return torch.from_numpy(self._sums(index_array, ends, weights)).to(self._output)

    def _sums(self, rows: Ints, ends: Ints, weights: Tensor | None) -> Floats:
        """Bags f32[B, total_D], or rows f32[n, D] without pooling, which ignores the weights."""
        fp8 = Fp8(self.fp8_exponent_bits, self.fp8_exponent_bias)
        cuts = bag_cuts(len(self.feature_table_map), ends, None)
        factors = None if weights is None else weights.detach().float().contiguous().numpy()
        parts = []
        for feature, t in enumerate(self.feature_table_map):
            offsets = ends[cuts[feature] : cuts[feature + 1] + 1]
            lookups = slice(offsets[0], offsets[-1])
            factor = None if factors is None or self._pooling == "none" else factors[lookups]
            parts.append(
                pooled(
                    self._tables[t],
                    self.weights_host.numpy(),
                    rows[lookups],
                    offsets - offsets[0],
                    factor,
                    self._pooling,
                    fp8,
                )
            )
        return np.concatenate(parts, axis=0 if self._pooling == "none" else 1)

    def _stored_rows(self, rows: Ints, ends: Ints) -> Tensor:
        """Rows as they are stored, zeros where pruned: u8[n, D + 4], or quint4x2 [n, D + 8]."""
        cuts = ends[bag_cuts(len(self.feature_table_map), ends, None)]
        tables = [self._tables[t] for t in self.feature_table_map]
        codes = torch.from_numpy(stored_rows(tables, self.weights_host.numpy(), rows, cuts))
        if self._output == torch.uint8:
            return codes
        out = torch.empty(rows.size, tables[0].dim + 2 * HEADER, dtype=self._output)
        # torch cannot view bytes as quint4x2, so the bytes are written to its storage.
        torch.empty(0, dtype=torch.uint8).set_(out.untyped_storage()).copy_(codes.reshape(-1))
        return out

    def forward(
        self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Pooled output [B, sum of dimensions]; pooling NONE: [n, D], or rows as they are stored.

        indices int[n] and offsets int[F*B+1], feature-major; per_sample_weights float[n], which
        pooling NONE ignores. In modes WARNING and IGNORE the caller's indices and offsets are
        repaired in place. Raises OutOfBounds.
        """
        if not self.weight_initialized:
            raise ConfigError("weights are not initialized: call fill_random_weights first")
        if offsets.dtype != indices.dtype:
            offsets = offsets.to(indices.dtype)
        if not torch.compiler.is_compiling():
            return self.look_up(indices, offsets, per_sample_weights)
        shape: tuple[int, int] = ((offsets.shape[0] - 1) // len(self._dims), self.total_D)
        if self._pooling == "none":
            # Scale and bias come along with the codes; a byte holds two columns of int4.
            extra = {torch.uint8: HEADER, torch.quint4x2: 2 * HEADER}.get(self._output, 0)
            shape = (indices.shape[0], self._dims[0] + extra)
        return torch.ops.neocpu.nbit_lookup(
            indices, offsets, per_sample_weights, self.handle, shape, self._output
        )
