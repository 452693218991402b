// Which questions are for the kernel of lookup.hpp, and what does it answer?
#pragma once
#include <cstdint>
#include <vector>

#include "lookup.hpp"
#include "neocpu_oracle.hpp"

namespace oracle = neocpu::oracle;

/// Questions that this kernel is made for.
inline bool is_ours(const oracle::Case& question) {
    return question.op == "lookup" && question.text("pooling") != "none" &&
           question.text("weights_format") == "fp32" && question.text("output_format") == "fp32" &&
           question.text("bounds_check") == "fatal" && !question.has_input("batch_sizes") &&
           (question.text("pooling") == "sum" || question.text("pooling") == "mean");
}

inline std::vector<float> answer(const oracle::Case& question) {
    const auto rows = question.input("rows").integers();
    const auto dims = question.input("dims").integers();
    const auto table = question.input("feature_table").integers();
    const auto indices = question.input("indices").integers();
    const auto offsets = question.input("offsets").integers();
    std::vector<std::int64_t> first(rows.size(), 0);
    for (std::size_t t = 1; t < rows.size(); ++t) first[t] = first[t - 1] + rows[t - 1] * dims[t - 1];
    std::vector<std::int64_t> column(table.size(), 0);
    std::int64_t width = 0;
    for (std::size_t f = 0; f < table.size(); ++f) {
        column[f] = width;
        width += dims[static_cast<std::size_t>(table[f])];
    }
    Lookup call{};
    call.weights = question.input("weights").as<float>().data();
    call.first = first.data();
    call.dims = dims.data();
    call.table = table.data();
    call.column = column.data();
    call.indices = indices.data();
    call.offsets = offsets.data();
    if (question.has_input("per_sample_weights")) {
        call.per_sample_weights = question.input("per_sample_weights").as<float>().data();
    }
    call.features = static_cast<std::int64_t>(table.size());
    call.batch = call.features ? static_cast<std::int64_t>(offsets.size() - 1) / call.features : 0;
    call.width = width;
    call.mean = question.text("pooling") == "mean";
    std::vector<float> out(static_cast<std::size_t>(call.batch * width));
    pooled_lookup(call, out.data());
    return out;
}
