// Is the kernel of lookup.hpp right?  check_lookup SUITE.flat [ANSWERS.safetensors]
//
// Asks every question about fp32 SUM and MEAN lookups, judges the answers, and writes them, so that
// `neocpu oracle check` can explain what is wrong. Ends with 1 where one is, or none was asked.
#include <cstdio>
#include <exception>
#include <string>

#include "questions.hpp"

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
