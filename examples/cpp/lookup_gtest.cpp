// The same kernel under GoogleTest: a test for every question, named as the case is.
//
// CMake builds it where GoogleTest is found, and says where the suite is (SUITE).
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>

#include "questions.hpp"

static const oracle::Suite& suite() {
    static const oracle::Suite opened(SUITE);
    return opened;
}

static std::vector<oracle::Case> questions() {
    std::vector<oracle::Case> ours;
    const auto& all = suite().cases();
    std::copy_if(all.begin(), all.end(), std::back_inserter(ours), is_ours);
    return ours;
}

namespace neocpu::oracle {
/// What GoogleTest calls a question.
static void PrintTo(const Case& question, std::ostream* out) { *out << question.name; }
}  // namespace neocpu::oracle

class LookupTest : public testing::TestWithParam<oracle::Case> {};

TEST_P(LookupTest, IsRight) {
    const auto out = answer(GetParam());
    const auto verdict = oracle::judge(GetParam().output("out"), out.data(), out.size());
    EXPECT_TRUE(static_cast<bool>(verdict)) << GetParam().about << "\n" << verdict.message();
}

static std::string name_of(const testing::TestParamInfo<oracle::Case>& info) {
    std::string name = info.param.name;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(Oracle, LookupTest, testing::ValuesIn(questions()), name_of);
