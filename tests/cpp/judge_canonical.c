/* Does the C judge say of every output what the Python one says?  judge_canonical SUITE.flat

   Prints what judge_canonical.cpp prints. */
#include <stdio.h>
#include <stdlib.h>

#include "neocpu_oracle.h"

/* Another number in the place of the last one. */
static void change(char *last, neocpu_text dtype) {
    const float number = 3e33f;
    const int64_t whole = 77;
    const uint16_t code = 0x5355;
    if (neocpu_equal(dtype, "<f4")) memcpy(last, &number, 4);
    else if (dtype.first[1] == 'i') memcpy(last, &whole, (size_t)(dtype.first[2] - '0'));
    else if (neocpu_equal(dtype, "<u2")) memcpy(last, &code, 2);
    else *last = 0x55;
}

int main(int count, char **arguments) {
    neocpu_suite suite;
    neocpu_case question;
    const char *problem = neocpu_open(&suite, arguments[count - 1]);
    if (problem) {
        fprintf(stderr, "%s: %s\n", arguments[1], problem);
        neocpu_close(&suite);
        return 2;
    }
    for (int i = 32; i < 64; ++i) printf("%02x", suite.bytes[i]);
    puts("");
    while (neocpu_next(&suite, &question)) {
        for (uint32_t i = 0; i < question.outputs; ++i) {
            const neocpu_output output = neocpu_output_at(&suite, &question, i);
            const neocpu_text dtype = output.canonical.dtype;
            const size_t elements = output.canonical.size;
            const size_t width = (size_t)(dtype.first[2] - '0');
            const char kind = neocpu_equal(dtype, "<f4") ? 'f' : 'c';
            char *answer = (char *)malloc(elements * width + 1);
            char *last = answer + (elements ? (elements - 1) * width : 0);
            memcpy(answer, output.canonical.data, elements * width);
            const int right = neocpu_judge(&output, kind, answer, elements).wrong == 0;
            if (elements) change(last, dtype);
            if (elements && !memcmp(last, (const char *)output.canonical.data + (last - answer), width)) {
                --*last;
            }
            const neocpu_verdict changed = neocpu_judge(&output, kind, answer, elements);
            printf("%.*s/%.*s %d %d\n", (int)question.name.size, question.name.first,
                   (int)output.name.size, output.name.first, right, changed.wrong == 0);
            free(answer);
        }
    }
    neocpu_close(&suite);
    return 0;
}
