"""How are jagged arrays rearranged? The layout operators: whole numbers, copies and sums."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import spread
from benchmarks.oracle_mutants.lookups import Pooling
from benchmarks.oracle_mutants.questions import Array, Question


class Layouts(Pooling):
    """Operators on jagged arrays, one method each."""

    # What several operators share.

    def cumsum(self, lengths: Array) -> Array:
        """Running sums from 0, one more than lengths."""
        return np.concatenate([[0], np.cumsum(lengths.astype(np.int64))])

    def gathered(self, offsets: Array, bags: Array) -> Array:
        """Places of the members of some bags, bag after bag."""
        return spread(offsets[bags], offsets[bags + 1]).position

    # Rows.

    def op_bounds_check(self, question: Question) -> dict[str, Array]:
        """Row numbers with -1 for those out of range, and how many there are."""
        batch = self.batch(question.inputs, question.options)
        out = batch.indices.copy()
        outside = np.zeros(len(batch.rows), np.int64)
        for feature in batch.features:
            part = self.lookups(batch, feature)
            table = int(batch.tables[feature])
            row = batch.indices[part.position]
            bad = self.is_outside(row, int(batch.rows[table]))
            out[part.position] = np.where(bad, self.replacement(row, batch.rows[table]), row)
            outside[table] += self.counted_outside(bad, row)
        return {"indices": out, "outside": outside}

    def is_outside(self, row: Array, rows: int) -> Array:
        """Is the row neither in the table nor pruned?"""
        return (row != -1) & ((row < 0) | (row >= rows))

    def replacement(self, row: Array, rows: int) -> Array:
        """What takes the place of a row out of range."""
        return np.full_like(row, -1)

    def counted_outside(self, bad: Array, row: Array) -> int:
        """How many rows of a feature are out of range."""
        return int(bad.sum())

    def op_linear_index(self, question: Question) -> dict[str, Array]:
        """Where lookups' rows are among all rows and all elements."""
        batch = self.batch(question.inputs, question.options)
        element = np.full(len(batch.indices), -1, np.int64)
        row_out = np.full(len(batch.indices), -1, np.int64)
        for feature in batch.features:
            part = self.lookups(batch, feature)
            table = int(batch.tables[feature])
            row = batch.indices[part.position]
            read = self.is_read(row)
            first = self.element_bases(batch)[table]
            begin = self.element(first, row, int(batch.dims[table]))
            element[part.position] = np.where(read, begin, -1)
            number = self.row_number(self.row_bases(batch)[table], row)
            row_out[part.position] = np.where(read, number, -1)
        return {"element": element, "row": row_out}

    def is_read(self, row: Array) -> Array:
        """Is the row not pruned?"""
        return row >= 0

    def element_bases(self, batch: object) -> Array:
        """The first element of each table."""
        return self.bases(batch, batch.dims)

    def row_bases(self, batch: object) -> Array:
        """The first row of each table."""
        return np.cumsum(batch.rows) - batch.rows

    def element(self, base: int, row: Array, columns: int) -> Array:
        """The first element of a row."""
        return base + row * columns

    def row_number(self, base: int, row: Array) -> Array:
        """The number of a row among those of all tables."""
        return base + row

    # Lengths and offsets.

    def op_lengths_to_offsets(self, question: Question) -> dict[str, Array]:
        """Running sums."""
        return {"offsets": self.cumsum(question.inputs["lengths"])}

    def op_offsets_to_lengths(self, question: Question) -> dict[str, Array]:
        """Differences."""
        return {"lengths": self.differences(question.inputs["offsets"])}

    def differences(self, offsets: Array) -> Array:
        """Lengths of bags."""
        return np.diff(offsets)

    # Keys and ranks.

    def op_permute(self, question: Question) -> dict[str, Array]:
        """Keys in another order."""
        lengths = question.inputs["lengths"].astype(np.int64)
        order = self.key_order(question.inputs["permute"])
        offsets = self.cumsum(lengths.reshape(-1))
        batch = lengths.shape[1]
        bags = (order[:, None] * self.key_stride(lengths) + np.arange(batch)).reshape(-1)
        places = self.permuted_places(offsets, bags)
        answer = {
            "lengths": self.permuted_lengths(lengths, order),
            "indices": question.inputs["indices"][places],
        }
        if "per_sample_weights" in question.inputs:
            weights = question.inputs["per_sample_weights"]
            answer["per_sample_weights"] = weights[self.weight_places(places)]
        return answer

    def key_order(self, permute: Array) -> Array:
        """The key that comes at each place."""
        return permute

    def key_stride(self, lengths: Array) -> int:
        """Bags of a key."""
        return lengths.shape[1]

    def permuted_places(self, offsets: Array, bags: Array) -> Array:
        """Where the lookups of bags are."""
        return self.gathered(offsets, bags)

    def permuted_lengths(self, lengths: Array, order: Array) -> Array:
        """Lengths of the keys in their new order."""
        return lengths[order]

    def weight_places(self, places: Array) -> Array:
        """Where the weights of lookups are."""
        return places

    def op_block_bucketize(self, question: Question) -> dict[str, Array]:
        """Lookups to ranks by blocks of equal size."""
        ranks = int(question.options["ranks"])
        blocks = question.inputs["block_sizes"].astype(np.int64)

        def destination(key: Array, row: Array) -> tuple[Array, Array]:
            return self.block_destination(row, self.block_of(blocks, key), ranks)

        return self.bucketize(question, len(blocks), ranks, destination)

    def block_of(self, blocks: Array, key: Array) -> Array:
        """The block size of each lookup's key."""
        return blocks[key]

    def block_destination(self, row: Array, block: Array, ranks: int) -> tuple[Array, Array]:
        """Rank and local row; rows beyond the last block are dealt out by row mod ranks."""
        beyond = row >= block * ranks
        rank = np.where(beyond, row % ranks, row // block)
        return rank, np.where(beyond, row // ranks, row - rank * block)

    def op_bucketize_uneven(self, question: Question) -> dict[str, Array]:
        """Lookups to ranks by blocks with sizes of their own."""
        ranks = int(question.options["ranks"])
        edges = question.inputs["boundaries"].astype(np.int64)

        def destination(key: Array, row: Array) -> tuple[Array, Array]:
            return self.uneven_destination(row, edges[key], ranks)

        return self.bucketize(question, len(edges), ranks, destination)

    def uneven_destination(self, row: Array, edges: Array, ranks: int) -> tuple[Array, Array]:
        """Rank and local row; rows beyond the last block are dealt out by row mod ranks."""
        beyond = row >= edges[:, -1]
        rank = self.rank_between(row, edges)
        rank = np.where(beyond, row % ranks, np.minimum(rank, ranks - 1))
        local = row - np.take_along_axis(edges, rank[:, None], 1)[:, 0]
        return rank, np.where(beyond, row // ranks, local)

    def rank_between(self, row: Array, edges: Array) -> Array:
        """The last rank whose block begins at or before the row."""
        return (row[:, None] >= edges[:, 1:]).sum(axis=1)

    def bucketize(
        self, question: Question, keys: int, ranks: int, destination: object
    ) -> dict[str, Array]:
        """Lookups sorted by rank, those of a rank in their order."""
        lengths = question.inputs["lengths"].astype(np.int64)
        indices = question.inputs["indices"].astype(np.int64)
        offsets = self.cumsum(lengths)
        part = spread(offsets[:-1], offsets[1:])
        key = part.sample // max(len(lengths) // keys, 1)
        rank, local = destination(key, indices)
        order = self.bucket_order(rank, part.sample, len(lengths))
        counts = np.bincount(rank * len(lengths) + part.sample, minlength=ranks * len(lengths))
        went = np.empty(len(order), np.int64)
        went[order] = np.arange(len(order))
        answer = {
            "indices": local[order],
            "lengths": counts.astype(np.int64),
            "positions": self.positions(part.place, part.sample, offsets)[order],
            "unbucketize": self.way_back(went, order),
        }
        if "per_sample_weights" in question.inputs:
            weights = question.inputs["per_sample_weights"]
            answer["per_sample_weights"] = self.bucket_weights(weights, order)
        return answer

    def bucket_order(self, rank: Array, bag: Array, bags: int) -> Array:
        """Lookups in the order of their ranks, then bags."""
        return np.argsort(rank * bags + bag, kind="stable")

    def positions(self, place: Array, bag: Array, offsets: Array) -> Array:
        """The place of each lookup in its bag."""
        return place

    def way_back(self, went: Array, order: Array) -> Array:
        """Where each lookup went."""
        return went

    def bucket_weights(self, weights: Array, order: Array) -> Array:
        """Weights of the lookups in their new order."""
        return weights[order]

    def op_recat(self, question: Question) -> dict[str, Array]:
        """Blocks by (rank, key) in key-major order."""
        features = int(question.options["features"])
        ranks = int(question.options["ranks"])
        return {"order": self.recat(features, ranks)}

    def recat(self, features: int, ranks: int) -> Array:
        """Numbers of blocks."""
        return np.arange(features * ranks).reshape(ranks, features).T.reshape(-1)

    # Rows of bags.

    def op_index_select(self, question: Question) -> dict[str, Array]:
        """Rows by number."""
        return {"values": self.selected(question.inputs["values"], question.inputs["select"])}

    def selected(self, values: Array, select: Array) -> Array:
        """Rows by number."""
        return values[select]

    def op_jagged_index_select(self, question: Question) -> dict[str, Array]:
        """Bags by number."""
        lengths = question.inputs["lengths"].astype(np.int64)
        select = question.inputs["select"]
        places = self.bag_places(self.cumsum(lengths), select)
        values = question.inputs["values"]
        return {"lengths": self.selected_lengths(lengths, select), "values": values[places]}

    def bag_places(self, offsets: Array, select: Array) -> Array:
        """Where the rows of bags are."""
        return self.gathered(offsets, select)

    def selected_lengths(self, lengths: Array, select: Array) -> Array:
        """Lengths of the bags."""
        return lengths[select]

    def op_jagged_to_padded_dense(self, question: Question) -> dict[str, Array]:
        """Bags as one dense array."""
        values = question.inputs["values"]
        offsets = question.inputs["offsets"].astype(np.int64)
        length = int(question.options["max_length"])
        padding = F32(question.options["padding"])
        dense = np.full((len(offsets) - 1, length, values.shape[1]), self.padding(padding), F32)
        part = spread(offsets[:-1], offsets[1:])
        part = self.dense_part(part, np.diff(offsets), length)
        place = self.dense_place(part.place, np.diff(offsets)[part.sample], length)
        kept = (place >= 0) & (place < length)
        dense[part.sample[kept], place[kept]] = values[part.position[kept]]
        return {"dense": dense}

    def padding(self, padding: np.float32) -> np.float32:
        """What fills the dense array."""
        return padding

    def dense_part(self, part: object, lengths: Array, length: int) -> object:
        """The rows that are copied."""
        return part

    def dense_place(self, place: Array, lengths: Array, length: int) -> Array:
        """The place of a row in its bag's part of the dense array."""
        return place

    def op_padded_dense_to_jagged(self, question: Question) -> dict[str, Array]:
        """Bags of a dense array."""
        dense = question.inputs["dense"]
        offsets = question.inputs["offsets"].astype(np.int64)
        part = spread(offsets[:-1], offsets[1:])
        inside = part.place < dense.shape[1]
        place = np.minimum(part.place, dense.shape[1] - 1)
        return {"values": self.unpadded(dense, part.sample, place, inside)}

    def unpadded(self, dense: Array, bag: Array, place: Array, inside: Array) -> Array:
        """Rows of the dense array, zeros beyond it."""
        return np.where(inside[:, None], dense[bag, place], F32(0))

    def op_unique(self, question: Question) -> dict[str, Array]:
        """Different numbers, the way back, and how often each occurs."""
        indices = self.unique_keys(question.inputs["indices"].astype(np.int64))
        unique, inverse, counts = np.unique(indices, return_inverse=True, return_counts=True)
        return self.unique_parts(unique, inverse.reshape(-1), counts)

    def unique_keys(self, indices: Array) -> Array:
        """Numbers as they are compared."""
        return indices

    def unique_parts(self, unique: Array, inverse: Array, counts: Array) -> dict[str, Array]:
        """The answer of unique."""
        return {"unique": unique, "inverse": inverse, "counts": counts}

    def op_segment_sum(self, question: Question) -> dict[str, Array]:
        """Sums of segments."""
        values = question.inputs["values"].astype(F32)
        offsets = question.inputs["offsets"].astype(np.int64)
        part = spread(*self.segments(offsets))
        kept = self.segment_kept(part)
        sums = self.add_up(values[part.position[kept]], part.sample[kept], len(offsets) - 1)
        return {"sums": self.vector(sums)}

    def segments(self, offsets: Array) -> tuple[Array, Array]:
        """Begins and ends of segments."""
        return offsets[:-1], np.minimum(offsets[1:], offsets[-1])

    def segment_kept(self, part: object) -> Array:
        """Which rows the loops reach."""
        return np.arange(len(part.position))
