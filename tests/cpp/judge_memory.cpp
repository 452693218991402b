// Are half types judged as numbers, and is it told what a kernel did beside its answer?
//
//     judge_memory SUITE.flat ANSWERS.safetensors
//
// Takes the first case, whose output is fp16, and gives the canonical bits in several guises.
#include <cstdio>
#include <vector>

#include "neocpu_oracle.hpp"

namespace oracle = neocpu::oracle;

/// A half type as CUDA's or torch's: a class of two bytes that converts to float.
struct Half {
    std::uint16_t code;
    operator float() const { return static_cast<float>(oracle::decode("fp16", code)); }
};

static void print(const char* what, const oracle::Verdict& verdict) {
    const auto problem = verdict.problem;
    std::printf("%s: %s\n", what,
                !problem.empty() ? problem.c_str() : verdict.passed() ? "right" : "wrong");
}

static int judge(const oracle::Case& question, const char* answers_path) {
    const auto& output = question.output("out");
    const auto codes = output.part("canonical").as<std::uint16_t>();
    std::vector<Half> halves;
    for (const auto code : codes) halves.push_back({code});
    print("codes", oracle::judge(output, codes.data(), codes.size()));
    print("half numbers", oracle::judge(output, halves.data(), halves.size()));
    oracle::Answers answers;
    answers.add(question, output, halves.data());
    answers.write(answers_path);
    halves.back().code ^= 0x4000u;
    print("half numbers, one changed", oracle::judge(output, halves.data(), halves.size()));

    oracle::Guarded<std::uint16_t> out(codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) out.data()[i] = codes[i];
    print("guarded", oracle::judge(output, out));
    oracle::Guarded<std::uint16_t> gap(codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
        if (i != 3) gap.data()[i] = codes[i];
    }
    print("one unwritten", oracle::judge(output, gap));
    out.memory()[out.memory_size() - out.zone_bytes] = std::byte{0};
    print("one behind", oracle::judge(output, out));
    out.memory()[out.zone_bytes - 1] = std::byte{0};
    print("one before", oracle::judge(output, out));

    oracle::Guarded<std::int64_t> indices(question.input("indices").as<std::int64_t>());
    indices.data()[0] += 1;
    std::printf("input: %s\n", indices.problem().c_str());
    return 0;
}

int main(int, char** arguments) {
    try {
        const oracle::Suite suite(arguments[1]);
        return judge(suite.cases().front(), arguments[2]);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
    }
}
