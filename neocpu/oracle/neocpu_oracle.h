/* How does a kernel in C answer the oracle? Read a flat suite, judge.

       neocpu_suite suite;
       neocpu_case question;
       const char *problem = neocpu_open(&suite, "suite.flat");    // neocpu oracle export --flat
       while (neocpu_next(&suite, &question)) {
           const float *values = neocpu_input(&suite, &question, "values").data;
           ...
           neocpu_output out = neocpu_output_at(&suite, &question, 0);
           neocpu_verdict verdict = neocpu_judge(&out, 'f', sums, count);
       }
       neocpu_close(&suite);

   C99, one header, no library but libm. Texts and arrays stand in the file's bytes: no copy, no NUL
   at the end of a text, valid until neocpu_close. The layout of the file stands in the head of
   flat.py beside this file, the rules of a verdict in docs/oracle.md section 3. The C++ reader,
   neocpu_oracle.hpp, shares what checks a file and what decodes numbers. */
#ifndef NEOCPU_ORACLE_H
#define NEOCPU_ORACLE_H

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "flat suites are read as they are: that needs a little-endian machine"
#endif

enum { NEOCPU_LAYOUT = 2, NEOCPU_HEADER = 64, NEOCPU_CHECKED_FROM = 16, NEOCPU_AXES = 8 };

static inline uint32_t neocpu_word(const unsigned char *bytes) {
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static inline uint64_t neocpu_long(const unsigned char *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static inline uint32_t neocpu_crc32(const unsigned char *data, size_t size) {
    uint32_t table[256];
    uint32_t crc = 0xFFFFFFFFu;
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t entry = i;
        for (int bit = 0; bit < 8; ++bit) {
            entry = (entry >> 1) ^ (0xEDB88320u & (0u - (entry & 1u)));
        }
        table[i] = entry;
    }
    for (size_t i = 0; i < size; ++i) crc = table[(crc ^ data[i]) & 0xFFu] ^ (crc >> 8);
    return crc ^ 0xFFFFFFFFu;
}

/* Is it a flat suite, of any layout? */
static inline int neocpu_is_suite(const unsigned char *bytes, size_t size) {
    return size >= NEOCPU_HEADER && memcmp(bytes, "NEOFLAT", 8) == 0;
}

/* What is wrong with a flat suite's bytes; a null pointer for nothing. */
static inline const char *neocpu_damage(const unsigned char *bytes, size_t size) {
    const uint32_t layout = neocpu_word(bytes + 8);
    if (layout > NEOCPU_LAYOUT) return "of a newer layout; take the newer header";
    if (layout < NEOCPU_LAYOUT) return "of an older layout; export it again";
    if (neocpu_long(bytes + 16) != size ||
        neocpu_word(bytes + 12) !=
            neocpu_crc32(bytes + NEOCPU_CHECKED_FROM, size - NEOCPU_CHECKED_FROM)) {
        return "damaged or truncated; export it again";
    }
    return NULL;
}

/* The number of a code of bf16, fp16, fp8_e4m3 or fp8_e5m2; 0 for another format. */
static inline int neocpu_decode(const char *format, size_t length, uint32_t code, double *number) {
    static const struct {
        const char *name;
        int exponent_bits, fraction_bits, infinity;
    } formats[] = {{"bf16", 8, 7, 1}, {"fp16", 5, 10, 1}, {"fp8_e4m3", 4, 3, 0}, {"fp8_e5m2", 5, 2, 1}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; ++i) {
        if (strlen(formats[i].name) != length || memcmp(formats[i].name, format, length)) continue;
        const int bits = formats[i].fraction_bits;
        const uint32_t top = (1u << formats[i].exponent_bits) - 1;
        const uint32_t fraction = code & ((1u << bits) - 1);
        const uint32_t exponent = (code >> bits) & top;
        const double sign = (code >> (bits + formats[i].exponent_bits)) & 1u ? -1.0 : 1.0;
        const double unit = ldexp((double)fraction, -bits);
        const int scale = (int)exponent - (int)(top >> 1);
        if (exponent == top && formats[i].infinity) {
            *number = fraction ? (double)NAN : sign * (double)INFINITY;
        } else if (exponent == top && fraction == (1u << bits) - 1) {
            *number = (double)NAN;
        } else {
            *number = sign * (exponent ? ldexp(1.0 + unit, scale) : ldexp(unit, scale + 1));
        }
        return 1;
    }
    return 0;
}

typedef struct {
    const char *first;
    size_t size;
} neocpu_text;

typedef struct {
    neocpu_text name, format, dtype; /* dtype: NumPy's, such as "<f4" */
    uint64_t shape[NEOCPU_AXES];
    size_t axes, size; /* size: elements */
    const void *data;  /* null: there is no such array */
} neocpu_array;

/* One question; the places of its records in the file, and how many there are. */
typedef struct {
    neocpu_text name, op, about;
    size_t at;
    uint32_t options, inputs, outputs;
} neocpu_case;

typedef struct {
    neocpu_text name, format;
    int exact;
    neocpu_array canonical, reference, bound, lower, upper, typical;
} neocpu_output;

typedef struct {
    unsigned char *bytes;
    size_t size, place; /* place: of the next record */
    uint32_t cases;     /* that come after it */
} neocpu_suite;

typedef struct {
    size_t elements, wrong, unlikely, first; /* first: flat index of the first wrong one */
    double theirs, reference, bound;         /* there */
    const char *problem;                     /* why nothing could be compared; null for nothing */
} neocpu_verdict;

static inline int neocpu_equal(neocpu_text text, const char *word) {
    return strlen(word) == text.size && memcmp(text.first, word, text.size) == 0;
}

/* Readers of records from a place on, which moves behind them. */

static inline uint32_t neocpu_read_word(const neocpu_suite *suite, size_t *at) {
    *at += 4;
    return neocpu_word(suite->bytes + *at - 4);
}

static inline neocpu_text neocpu_read_text(const neocpu_suite *suite, size_t *at) {
    neocpu_text text;
    text.size = neocpu_read_word(suite, at);
    text.first = (const char *)suite->bytes + *at;
    *at += text.size;
    return text;
}

static inline neocpu_array neocpu_read_array(const neocpu_suite *suite, size_t *at) {
    neocpu_array array;
    array.name = neocpu_read_text(suite, at);
    array.format = neocpu_read_text(suite, at);
    array.dtype = neocpu_read_text(suite, at);
    array.axes = neocpu_read_word(suite, at);
    array.size = 1;
    for (size_t axis = 0; axis < array.axes; ++axis, *at += 8) {
        const uint64_t length = neocpu_long(suite->bytes + *at);
        if (axis < NEOCPU_AXES) array.shape[axis] = length;
        array.size *= (size_t)length;
    }
    array.data = suite->bytes + neocpu_long(suite->bytes + *at);
    *at += 16;
    return array;
}

static inline neocpu_array neocpu_read_input(const neocpu_suite *suite, size_t *at) {
    const neocpu_array array = neocpu_read_array(suite, at);
    neocpu_read_text(suite, at);
    neocpu_read_text(suite, at);
    return array;
}

/* The name of an option, and where its kind and value stand. */
static inline neocpu_text neocpu_read_option(const neocpu_suite *suite, size_t *at, size_t *value) {
    const neocpu_text name = neocpu_read_text(suite, at);
    *value = *at;
    switch (suite->bytes[(*at)++]) {
        case 'b': *at += 1; break;
        case 's': neocpu_read_text(suite, at); break;
        default: *at += 8;
    }
    return name;
}

static inline neocpu_output neocpu_read_output(const neocpu_suite *suite, size_t *at) {
    static const char *const names[] = {"canonical", "reference", "bound", "lower", "upper", "typical"};
    neocpu_output output;
    memset(&output, 0, sizeof output);
    neocpu_array *const parts[] = {&output.canonical, &output.reference, &output.bound,
                                   &output.lower, &output.upper, &output.typical};
    output.name = neocpu_read_text(suite, at);
    neocpu_read_text(suite, at);
    neocpu_read_text(suite, at);
    output.format = neocpu_read_text(suite, at);
    output.exact = suite->bytes[(*at)++];
    for (uint32_t count = neocpu_read_word(suite, at); count > 0; --count) {
        const neocpu_array part = neocpu_read_array(suite, at);
        for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
            if (neocpu_equal(part.name, names[i])) *parts[i] = part;
        }
    }
    return output;
}

/* Read a suite; returns what is wrong with it, or a null pointer. neocpu_close frees it either way. */
static inline const char *neocpu_open(neocpu_suite *suite, const char *path) {
    FILE *file = fopen(path, "rb");
    long size = 0;
    size_t at = NEOCPU_HEADER + 8;
    memset(suite, 0, sizeof *suite);
    if (!file) return "there is no such file";
    if (fseek(file, 0, SEEK_END) == 0) size = ftell(file);
    if (size > 0 && size < LONG_MAX) suite->bytes = (unsigned char *)malloc((size_t)size);
    rewind(file);
    if (suite->bytes) suite->size = fread(suite->bytes, 1, (size_t)size, file);
    fclose(file);
    if (!suite->bytes || !neocpu_is_suite(suite->bytes, suite->size)) {
        return "not a flat suite; neocpu oracle export --flat makes one";
    }
    suite->cases = neocpu_word(suite->bytes + 28);
    neocpu_read_text(suite, &at); /* neocpu's version */
    suite->place = at;
    return neocpu_damage(suite->bytes, suite->size);
}

static inline void neocpu_close(neocpu_suite *suite) {
    free(suite->bytes);
    memset(suite, 0, sizeof *suite);
}

/* The next question; 0 where there is none. */
static inline int neocpu_next(neocpu_suite *suite, neocpu_case *question) {
    size_t at = suite->place, value;
    if (suite->cases == 0) return 0;
    --suite->cases;
    question->name = neocpu_read_text(suite, &at);
    question->op = neocpu_read_text(suite, &at);
    question->about = neocpu_read_text(suite, &at);
    question->options = neocpu_read_word(suite, &at);
    question->inputs = neocpu_read_word(suite, &at);
    question->outputs = neocpu_read_word(suite, &at);
    question->at = at;
    for (uint32_t i = 0; i < question->options; ++i) neocpu_read_option(suite, &at, &value);
    for (uint32_t i = 0; i < question->inputs; ++i) neocpu_read_input(suite, &at);
    for (uint32_t i = 0; i < question->outputs; ++i) neocpu_read_output(suite, &at);
    suite->place = at;
    return 1;
}

/* An input by its name; without data where there is none. */
static inline neocpu_array neocpu_input(
    const neocpu_suite *suite, const neocpu_case *question, const char *name) {
    size_t at = question->at, value;
    neocpu_array none;
    memset(&none, 0, sizeof none);
    for (uint32_t i = 0; i < question->options; ++i) neocpu_read_option(suite, &at, &value);
    for (uint32_t i = 0; i < question->inputs; ++i) {
        const neocpu_array array = neocpu_read_input(suite, &at);
        if (neocpu_equal(array.name, name)) return array;
    }
    return none;
}

/* The output of a number, from 0; it must be below question->outputs. */
static inline neocpu_output neocpu_output_at(
    const neocpu_suite *suite, const neocpu_case *question, uint32_t number) {
    size_t at = question->at, value;
    for (uint32_t i = 0; i < question->options; ++i) neocpu_read_option(suite, &at, &value);
    for (uint32_t i = 0; i < question->inputs; ++i) neocpu_read_input(suite, &at);
    for (uint32_t i = 0; i < number; ++i) neocpu_read_output(suite, &at);
    return neocpu_read_output(suite, &at);
}

/* An option: a text, or a number (whole, real, or 0 and 1); 0 where there is none. */
static inline int neocpu_option(const neocpu_suite *suite, const neocpu_case *question,
                                const char *name, neocpu_text *text, double *number) {
    size_t at = question->at, value;
    for (uint32_t i = 0; i < question->options; ++i) {
        if (!neocpu_equal(neocpu_read_option(suite, &at, &value), name)) continue;
        const unsigned char kind = suite->bytes[value++];
        if ((kind == 's') != (text != NULL)) return 0;
        if (kind == 's') *text = neocpu_read_text(suite, &value);
        if (kind == 'b') *number = suite->bytes[value];
        if (kind == 'i') *number = (double)(int64_t)neocpu_long(suite->bytes + value);
        if (kind == 'f') memcpy(number, suite->bytes + value, sizeof *number);
        return 1;
    }
    return 0;
}

/* Element i of integers of NumPy's dtype. */
static inline int64_t neocpu_integer(neocpu_text dtype, const void *data, size_t i) {
    if (neocpu_equal(dtype, "<i8")) return ((const int64_t *)data)[i];
    if (neocpu_equal(dtype, "<i4")) return ((const int32_t *)data)[i];
    if (neocpu_equal(dtype, "<u4")) return ((const uint32_t *)data)[i];
    if (neocpu_equal(dtype, "<u2")) return ((const uint16_t *)data)[i];
    return neocpu_equal(dtype, "|i1") ? ((const int8_t *)data)[i] : ((const uint8_t *)data)[i];
}

/* Is this answer right? kind: 'f' float, 'd' double, of exact outputs 'i' int64_t; 'c': codes of the
   output's narrow format, or elements of an exact output's own type. */
static inline neocpu_verdict neocpu_judge(
    const neocpu_output *output, char kind, const void *answer, size_t count) {
    neocpu_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    verdict.elements = output->reference.size;
    if (count != verdict.elements) verdict.problem = "another number of elements";
    if (output->exact ? kind != 'i' && kind != 'c' : kind == 'i') {
        verdict.problem = "elements of another kind";
    }
    if (verdict.problem) return verdict;
    for (size_t i = 0; i < count; ++i) {
        double x, reference, bound = 0.0;
        int right;
        if (output->exact) {
            const neocpu_text dtype = output->reference.dtype;
            const int64_t expected = neocpu_integer(dtype, output->reference.data, i);
            const int64_t theirs = kind == 'i' ? ((const int64_t *)answer)[i]
                                               : neocpu_integer(dtype, answer, i);
            right = theirs == expected;
            x = (double)theirs;
            reference = (double)expected;
        } else {
            reference = ((const double *)output->reference.data)[i];
            bound = ((const double *)output->bound.data)[i];
            if (kind == 'c') {
                const uint32_t code = output->canonical.dtype.first[2] == '1'
                                          ? ((const uint8_t *)answer)[i]
                                          : ((const uint16_t *)answer)[i];
                if (!neocpu_decode(output->format.first, output->format.size, code, &x)) {
                    verdict.problem = "no codes of this format";
                    return verdict;
                }
            } else {
                x = kind == 'f' ? (double)((const float *)answer)[i] : ((const double *)answer)[i];
            }
            const double error = fabs(x - reference);
            right = x == reference || (isnan(x) && isnan(reference)) || isinf(bound) || error <= bound;
            if (output->lower.data && x < ((const double *)output->lower.data)[i]) right = 0;
            if (output->upper.data && x > ((const double *)output->upper.data)[i]) right = 0;
            if (right && output->typical.data && error > ((const double *)output->typical.data)[i]) {
                ++verdict.unlikely;
            }
        }
        if (!right && verdict.wrong++ == 0) {
            verdict.first = i;
            verdict.theirs = x;
            verdict.reference = reference;
            verdict.bound = bound;
        }
    }
    return verdict;
}

#endif
