/* Is a sum of segments right?  check_segments SUITE.flat, in plain C */
#include <stdio.h>
#include <stdlib.h>

#include "neocpu_oracle.h"

/* The kernel: sums[s] of the rows from offsets[s] to offsets[s + 1]. */
static void segment_sum(const float *values, const int64_t *offsets, size_t segments, size_t width,
                        float *sums) {
    for (size_t s = 0; s < segments; ++s) {
#ifdef WITH_A_MISTAKE
        const int64_t end = offsets[s + 1] - 1;
#else
        const int64_t end = offsets[s + 1];
#endif
        for (size_t column = 0; column < width; ++column) sums[s * width + column] = 0.0f;
        for (int64_t row = offsets[s]; row < end; ++row) {
            for (size_t column = 0; column < width; ++column) {
                sums[s * width + column] += values[(size_t)row * width + column];
            }
        }
    }
}

int main(int count, char **arguments) {
    neocpu_suite suite;
    neocpu_case question;
    int asked = 0;
    int failed = 0;
    const char *problem = neocpu_open(&suite, count > 1 ? arguments[1] : "suite.flat");
    if (problem) fprintf(stderr, "%s\n", problem);
    while (!problem && neocpu_next(&suite, &question)) {
        if (!neocpu_equal(question.op, "segment_sum")) continue;
        const neocpu_array values = neocpu_input(&suite, &question, "values");
        const neocpu_array offsets = neocpu_input(&suite, &question, "offsets");
        const neocpu_output output = neocpu_output_at(&suite, &question, 0);
        if (!neocpu_equal(values.dtype, "<f4") || !neocpu_equal(offsets.dtype, "<i8")) continue;
        float *sums = (float *)malloc(output.reference.size * sizeof *sums + 1);
        segment_sum((const float *)values.data, (const int64_t *)offsets.data, offsets.size - 1,
                    (size_t)values.shape[1], sums);
        const neocpu_verdict verdict = neocpu_judge(&output, 'f', sums, output.reference.size);
        free(sums);
        ++asked;
        if (!verdict.problem && !verdict.wrong) continue;
        ++failed;
        printf("FAILED %.*s: ", (int)question.name.size, question.name.first);
        if (verdict.problem) puts(verdict.problem);
        else printf("%zu of %zu wrong, first at element %zu: %.9g, expected %.9g +- %.2g\n",
                    verdict.wrong, verdict.elements, verdict.first, verdict.theirs,
                    verdict.reference, verdict.bound);
    }
    neocpu_close(&suite);
    printf("%d asked, %d failed\n", asked, failed);
    return asked == 0 || failed != 0;
}
