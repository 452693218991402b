// The kernel under test: pooled lookups of fp32 tables, as a GPU version would do them.
#pragma once

#include <cstdint>

/// Shapes and arrays of one call. Features are numbered as in feature_table; bags are
/// feature-major: bag f * B + b has the lookups offsets[bag] to offsets[bag + 1].
struct Lookup {
    const float* weights;            // all tables, one after the other, row-major
    const std::int64_t* first;       // [T] first element of each table
    const std::int64_t* dims;        // [T]
    const std::int64_t* table;       // [F] table of each feature
    const std::int64_t* column;      // [F] first output column of each feature
    const std::int64_t* indices;     // row numbers; -1 reads nothing
    const std::int64_t* offsets;     // [F * B + 1]
    const float* per_sample_weights; // of each lookup, or null
    std::int64_t features;
    std::int64_t batch;
    std::int64_t width;              // columns of the output
    bool mean;
};

/// out[B, width]: the sum, or mean, of the rows of every bag.
inline void pooled_lookup(const Lookup& call, float* out) {
    for (std::int64_t f = 0; f < call.features; ++f) {
        const std::int64_t table = call.table[f];
        const std::int64_t dim = call.dims[table];
        for (std::int64_t b = 0; b < call.batch; ++b) {
            const std::int64_t bag = f * call.batch + b;
            const std::int64_t begin = call.offsets[bag];
#ifdef WITH_A_MISTAKE  // shows what a failed check looks like
            const std::int64_t end = call.offsets[bag + 1] > begin ? call.offsets[bag + 1] - 1 : begin;
#else
            const std::int64_t end = call.offsets[bag + 1];
#endif
            float* pooled = out + b * call.width + call.column[f];
            for (std::int64_t d = 0; d < dim; ++d) pooled[d] = 0.0F;
            for (std::int64_t l = begin; l < end; ++l) {
                if (call.indices[l] < 0) continue;
                const float* row = call.weights + call.first[table] + call.indices[l] * dim;
                const float weight = call.per_sample_weights ? call.per_sample_weights[l] : 1.0F;
                for (std::int64_t d = 0; d < dim; ++d) pooled[d] += weight * row[d];
            }
            const auto length = static_cast<float>(call.offsets[bag + 1] - begin);
            if (call.mean && length > 0) {
                for (std::int64_t d = 0; d < dim; ++d) pooled[d] /= length;
            }
        }
    }
}
