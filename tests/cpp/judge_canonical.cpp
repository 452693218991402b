// Does the C++ judge say of every output what the Python one says?  judge_canonical SUITE.flat
//
// Judges the canonical bits of every output (right), and the same with one element changed (wrong
// unless anything passes there). Prints CASE/OUTPUT, and 1 or 0 for each of the two.
#include <cstdio>
#include <limits>
#include <vector>

#include "neocpu_oracle.hpp"

namespace oracle = neocpu::oracle;

template <class T>
static void judge_both(const oracle::Case& question, const oracle::Output& output, T other) {
    const auto canonical = output.part("canonical").as<T>();
    std::vector<T> answer(canonical.begin(), canonical.end());
    const bool right = oracle::judge(output, answer.data(), answer.size()).passed();
    if (!answer.empty()) answer.back() = other == answer.back() ? static_cast<T>(other - 1) : other;
    const bool changed = oracle::judge(output, answer.data(), answer.size()).passed();
    std::printf("%s/%s %d %d\n", question.name.c_str(), output.name.c_str(), right, changed);
}

int main(int, char** arguments) {
    try {
        const oracle::Suite suite(arguments[1]);
        std::printf("%s\n", suite.sha256.c_str());
        for (const auto& question : suite.cases()) {
            for (const auto& entry : question.outputs) {
                const auto& output = entry.second;
                const auto& dtype = output.part("canonical").dtype;
                if (dtype == "<f4") judge_both<float>(question, output, 3e33F);
                else if (dtype == "<i8") judge_both<std::int64_t>(question, output, 77);
                else if (dtype == "<i4") judge_both<std::int32_t>(question, output, 77);
                else if (dtype == "<u2") judge_both<std::uint16_t>(question, output, 0x5355);
                else if (dtype == "|u1") judge_both<std::uint8_t>(question, output, 0x55);
                else throw oracle::Error(question.name + ": elements of type " + dtype);
            }
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
    }
}
