/* What is the machine's limit? The same work in plain C with GCC vectors, width D fixed at compile time (-DD=128), fp32 sums in any
 * order: no exactness, no checks, no generality. Tables are T pointers to E rows of D floats; bag t*B+b holds L lookups. */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define BLOCKS (D / LANES)
#define FAR 48  /* lookups ahead that a row is asked into the second-level cache */
#ifndef NEAR
#define NEAR 4  /* ... into the first; limits.py says how many suit this processor */
#endif
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef double vec8 __attribute__((vector_size(64)));
typedef float half __attribute__((vector_size(32), aligned(4), may_alias));

/* Always inlined: gcc takes a function that only prefetches for one that does nothing, and drops its calls. */
#define always static inline __attribute__((always_inline))

void threads(int n) { omp_set_num_threads(n); }

always void ask(const float *row, int near) {
    for (int c = 0; c < D; c += 16) {
        if (near) __builtin_prefetch(row + c, 0, 3);
        else __builtin_prefetch(row + c, 0, 2);
    }
}

/* Rows that will be read soon, across bags and tables. */
always void ask_ahead(float *const *tables, const int64_t *rows, long j, long t, long n, long end) {
    long far = j + FAR, near = j + NEAR, next = (t + 1) * n;
    if (far < end && far < next + n) ask(tables[t + (far >= next)] + rows[far] * D, 0);
    if (near < end && near < next + n) ask(tables[t + (near >= next)] + rows[near] * D, 1);
}

/* fp32 to fp64 and back, 8 at a time (gcc's own conversion splits the vectors) */
#ifdef __AVX512F__
#include <immintrin.h>
static inline vec8 widen(const float *x) { return (vec8)_mm512_cvtps_pd(_mm256_loadu_ps(x)); }
static inline void narrow(float *x, vec8 v) { _mm256_storeu_ps(x, _mm512_cvtpd_ps((__m512d)v)); }
#else
static inline vec8 widen(const float *x) { return __builtin_convertvector(*(const half *)x, vec8); }
static inline void narrow(float *x, vec8 v) { *(half *)x = __builtin_convertvector(v, half); }
#endif

/* out[b, t*D + c] = sum of the bag's rows, fp32 */
void gather(float *const *tables, const int64_t *rows, long T, long B, long L, float *out) {
    #pragma omp parallel for schedule(static, 64)
    for (long bag = 0; bag < T * B; bag++) {
        long t = bag / B, b = bag % B;
        vec sum[BLOCKS];
        for (int k = 0; k < BLOCKS; k++) sum[k] = (vec){0};
        for (long j = bag * L; j < (bag + 1) * L; j++) {
            ask_ahead(tables, rows, j, t, B * L, T * B * L);
            const float *row = tables[t] + rows[j] * D;
            for (int k = 0; k < BLOCKS; k++) sum[k] += *(const vec *)(row + LANES * k);
        }
        for (int k = 0; k < BLOCKS; k++) *(vec *)(out + (b * T + t) * D + LANES * k) = sum[k];
    }
}

/* The same with a weight per lookup. */
void gather_weighted(float *const *tables, const int64_t *rows, const float *weights, long T, long B, long L, float *out) {
    #pragma omp parallel for schedule(static, 64)
    for (long bag = 0; bag < T * B; bag++) {
        long t = bag / B, b = bag % B;
        vec sum[BLOCKS];
        for (int k = 0; k < BLOCKS; k++) sum[k] = (vec){0};
        for (long j = bag * L; j < (bag + 1) * L; j++) {
            ask_ahead(tables, rows, j, t, B * L, T * B * L);
            const float *row = tables[t] + rows[j] * D;
            for (int k = 0; k < BLOCKS; k++) sum[k] += weights[j] * *(const vec *)(row + LANES * k);
        }
        for (int k = 0; k < BLOCKS; k++) *(vec *)(out + (b * T + t) * D + LANES * k) = sum[k];
    }
}

/* The same with fp64 sums rounded once: what exactness costs at least (no certificate). */
void gather64(float *const *tables, const int64_t *rows, long T, long B, long L, float *out) {
    #pragma omp parallel for schedule(static, 64)
    for (long bag = 0; bag < T * B; bag++) {
        long t = bag / B, b = bag % B;
        vec8 sum[2 * BLOCKS];
        for (int k = 0; k < 2 * BLOCKS; k++) sum[k] = (vec8){0};
        for (long j = bag * L; j < (bag + 1) * L; j++) {
            ask_ahead(tables, rows, j, t, B * L, T * B * L);
            const float *row = tables[t] + rows[j] * D;
            for (int k = 0; k < 2 * BLOCKS; k++) sum[k] += widen(row + 8 * k);
        }
        for (int k = 0; k < 2 * BLOCKS; k++) narrow(out + (b * T + t) * D + 8 * k, sum[k]);
    }
}

/* One stable counting pass by `shift`: keys and samples of one table. */
static void scatter(const uint32_t *key, const uint32_t *bag, uint32_t *key2, uint32_t *bag2, long n, int shift) {
    uint32_t start[513] = {0};
    for (long i = 0; i < n; i++) start[((key[i] >> shift) & 511) + 1]++;
    for (int i = 0; i < 512; i++) start[i + 1] += start[i];
    for (long i = 0; i < n; i++) {
        uint32_t to = start[(key[i] >> shift) & 511]++;
        key2[to] = key[i];
        bag2[to] = bag[i];
    }
}

/* One row-wise AdaGrad update of the row w by its merged gradient. */
always void adagrad(float *w, float *moment, const vec *sum, float rate, float eps) {
    vec squares = {0}, step = {0};
    for (int k = 0; k < BLOCKS; k++) squares += sum[k] * sum[k];
    float mean = 0;
    for (int c = 0; c < LANES; c++) mean += squares[c];
    *moment += mean / D;
    step += rate / (sqrtf(*moment) + eps);
    for (int k = 0; k < BLOCKS; k++) *(vec *)(w + LANES * k) -= sum[k] * step;
}

/* Sort the lookups of each table by row, add the gradients of a row, one row-wise AdaGrad update per row. */
void backward(float *const *tables, float *const *moments, const int64_t *rows, long T, long B, long L, const float *grad,
              float rate, float eps) {
    #pragma omp parallel for schedule(dynamic, 1)
    for (long t = 0; t < T; t++) {
        long n = B * L;
        uint32_t *memory = malloc(16 * n), *key = memory, *bag = key + n, *key2 = bag + n, *bag2 = key2 + n, top = 0;
        for (long i = 0; i < n; i++) {
            key[i] = rows[t * n + i];
            bag[i] = i / L;
            if (key[i] > top) top = key[i];
        }
        for (int shift = 0; shift < 32 && top >> shift; shift += 9) {
            scatter(key, bag, key2, bag2, n, shift);
            uint32_t *swap = key; key = key2; key2 = swap;
            swap = bag; bag = bag2; bag2 = swap;
        }
        for (long i = 0; i < n;) {
            uint32_t row = key[i];
            vec sum[BLOCKS];
            for (int k = 0; k < BLOCKS; k++) sum[k] = (vec){0};
            for (; i < n && key[i] == row; i++) {
                const float *g = grad + (bag[i] * T + t) * D;
                for (int k = 0; k < BLOCKS; k++) sum[k] += *(const vec *)(g + LANES * k);
            }
            if (i + FAR < n) {
                ask(tables[t] + (size_t)key[i + FAR] * D, 0);
                ask(grad + (bag[i + FAR] * T + t) * D, 0);
                __builtin_prefetch(moments[t] + key[i + FAR], 1);
            }
            if (i + NEAR < n) {
                ask(tables[t] + (size_t)key[i + NEAR] * D, 1);
                ask(grad + (bag[i + NEAR] * T + t) * D, 1);
            }
            adagrad(tables[t] + (size_t)row * D, moments[t] + row, sum, rate, eps);
        }
        free(memory);
    }
}

/* The same for lookups that are sorted: unique rows [first[t], first[t+1]) are of table t, row unique[u] has the gradients from the
 * elements place[starts[u]] .. place[starts[u+1]-1] on. */
void update(float *const *tables, float *const *moments, const int64_t *first, const int64_t *unique, const int64_t *starts,
            const int64_t *place, long T, const float *grad, float rate, float eps) {
    #pragma omp parallel for schedule(dynamic, 1)
    for (long t = 0; t < T; t++) {
        long end = first[t + 1];
        for (long u = first[t]; u < end; u++) {
            if (u + FAR < end) {
                ask(tables[t] + unique[u + FAR] * D, 0);
                ask(grad + place[starts[u + FAR]], 0);
                __builtin_prefetch(moments[t] + unique[u + FAR], 1);
            }
            if (u + NEAR < end) {
                ask(tables[t] + unique[u + NEAR] * D, 1);
                ask(grad + place[starts[u + NEAR]], 1);
            }
            vec sum[BLOCKS];
            for (int k = 0; k < BLOCKS; k++) sum[k] = (vec){0};
            for (long j = starts[u]; j < starts[u + 1]; j++)
                for (int k = 0; k < BLOCKS; k++) sum[k] += *(const vec *)(grad + place[j] + LANES * k);
            adagrad(tables[t] + unique[u] * D, moments[t] + unique[u], sum, rate, eps);
        }
    }
}

/* Memory: the sum of n floats, n a multiple of 64; every thread reads a stretch. */
double read_all(const float *x, long n) {
    double total = 0;
    #pragma omp parallel for schedule(static) reduction(+ : total)
    for (long i = 0; i < n; i += 64) {
        vec sum = {0};
        for (int k = 0; k < 64; k += LANES) sum += *(const vec *)(x + i + k);
        total += sum[0];
    }
    return total;
}

/* Arithmetic: `steps` rounds of 16 independent fused multiply-adds of LANES floats, in every thread. */
double multiply_add(long steps) {
    double total = 0;
    #pragma omp parallel reduction(+ : total)
    {
        vec chain[16], a = {0}, b = {0};
        a += 0.9999f + 1e-9f * omp_get_thread_num();
        b += 1e-4f;
        for (int k = 0; k < 16; k++) chain[k] = b * (float)k;
        for (long i = 0; i < steps; i++) {
            #pragma GCC unroll 16
            for (int k = 0; k < 16; k++) chain[k] = chain[k] * a + b;
        }
        for (int k = 0; k < 16; k++) total += chain[k][0];
    }
    return total;
}
