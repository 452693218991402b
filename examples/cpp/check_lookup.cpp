// Is the kernel of lookup.hpp right?  check_lookup SUITE.flat [ANSWERS.safetensors]
//
// Asks every question about fp32 SUM and MEAN lookups, judges the answers, and writes them, so that
// `neocpu oracle check` can explain what is wrong. Ends with 1 where one is, or none was asked.
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "lookup.hpp"
#include "neocpu_oracle.hpp"

namespace oracle = neocpu::oracle;

/// Questions that this kernel is made for.
static bool is_ours(const oracle::Case& question) {
    return question.op == "lookup" && question.text("pooling") != "none" &&
           question.text("weights_format") == "fp32" && question.text("output_format") == "fp32" &&
           question.text("bounds_check") == "fatal" && !question.has_input("batch_sizes") &&
           (question.text("pooling") == "sum" || question.text("pooling") == "mean");
}

static std::vector<float> answer(const oracle::Case& question) {
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

static int check(const std::string& path, const std::string& answers_path) {
    const oracle::Suite suite(path);
    oracle::Answers answers;
    int asked = 0;
    int failed = 0;
    for (const auto& question : suite.cases()) {
        if (!is_ours(question)) continue;
        const auto out = answer(question);
        const auto& output = question.output("out");
        const auto verdict = oracle::judge(output, out.data(), out.size());
        answers.add(question, output, out.data());
        ++asked;
        if (!verdict) {
            ++failed;
            std::printf("FAILED %s: %s\n  %s\n", question.name.c_str(), question.about.c_str(),
                        verdict.message().c_str());
        }
    }
    if (!answers_path.empty()) answers.write(answers_path);
    std::printf("%d questions, %d failed\n", asked, failed);
    return asked > 0 && failed == 0 ? 0 : 1;
}

int main(int count, char** arguments) {
    if (count < 2) {
        std::fprintf(stderr, "check_lookup SUITE.flat [ANSWERS.safetensors]\n");
        return 2;
    }
    try {
        return check(arguments[1], count > 2 ? arguments[2] : "");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
    }
}
