/* Products of float rows with a matrix of bytes, for matrix.py, which compiles this.

   The matrix lies in panels of 32 outputs. For each four inputs in turn a panel holds the 32 x 4
   weights that meet them: what two instructions of VNNI multiply and add up. So a core reads its
   share of the matrix from front to back, once for all rows.

   Weights are from -127 to 127 and lie with 128 added, because the instruction wants one side
   without a sign. A sum is then too large by 128 times the sum of its row, which is taken off.

   A row is rounded to 254 steps between its own least and greatest number, so that what comes out
   of a ReLU or a GELU, nearly all above zero, wastes none of them. It is summed in integers, and
   its floats are computed in one order: it is the same to the bit whatever rows come with it. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 32    /* outputs of a panel */
#define FOUR 4      /* inputs that one instruction adds up */
#define GROUP 128   /* bytes of a panel for four inputs */
#define SMALL 65536 /* weights that are read sooner than a second thread wakes up */

typedef struct {
    const uint8_t *weights; /* (panels, inputs / 4, 32, 4) */
    const float *scales;    /* (panels, 32): what a weight of 1 is worth */
    const int32_t *totals;  /* (panels, 32): the sum of all weights of an output */
    int64_t width;          /* of a row */
    int64_t inputs;         /* the same, padded to a multiple of 8 */
    int64_t outputs;
} Matrix;

/* The sums of a panel, and how to add four products to each of them. */
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#define TILE 8    /* rows times panels under way: their sums fill half of the registers */
#define TALL 4    /* rows under way, at most */
#define ADDED 128 /* to each weight in a sum */
typedef struct { __m512i part[2]; } Sums;
static inline void dot(Sums *sums, const uint8_t *weights, const int8_t *row) {
    int32_t four;
    memcpy(&four, row, FOUR);
    __m512i bytes = _mm512_set1_epi32(four);
    for (int i = 0; i < 2; i++)
        sums->part[i] =
            _mm512_dpbusd_epi32(sums->part[i], _mm512_loadu_si512(weights + 64 * i), bytes);
}
#elif defined(__AVX2__)
#include <immintrin.h>
#define TILE 2
#define TALL 2
typedef struct { __m256i part[4]; } Sums;
#if defined(__AVXVNNI__)
#define ADDED 128
static inline __m256i add(__m256i sums, __m256i weights, __m256i bytes) {
    return _mm256_dpbusd_avx_epi32(sums, weights, bytes);
}
#else
#define ADDED 0
/* This one sums pairs in 16 bits: they hold 2 x 127 x 127, not 2 x 255 x 127. */
static inline __m256i add(__m256i sums, __m256i weights, __m256i bytes) {
    __m256i plain = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(plain), _mm256_sign_epi8(bytes, plain));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif
static inline void dot(Sums *sums, const uint8_t *weights, const int8_t *row) {
    int32_t four;
    memcpy(&four, row, FOUR);
    __m256i bytes = _mm256_set1_epi32(four);
    for (int i = 0; i < 4; i++) {
        __m256i some = _mm256_loadu_si256((const __m256i *)(weights + 32 * i));
        sums->part[i] = add(sums->part[i], some, bytes);
    }
}
#else
#define TILE 2
#define TALL 2
#define ADDED 0
typedef struct { int32_t part[LANES]; } Sums;
static inline void dot(Sums *sums, const uint8_t *weights, const int8_t *row) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < FOUR; j++) sums->part[i] += (weights[FOUR * i + j] - 128) * row[j];
}
#endif

/* Rows as bytes. */
typedef struct {
    int8_t *bytes;   /* (rows, inputs) */
    float *scales;   /* what a step of each row is worth */
    int32_t *zeros;  /* the byte that stands for zero */
    int32_t *excess; /* by how much the sums of each row are too large */
} Rows;

static inline Rows from(Rows rows, const Matrix *m, int64_t r) {
    return (Rows){rows.bytes + r * m->inputs, rows.scales + r, rows.zeros + r, rows.excess + r};
}

/* Turn the bits of a float into an integer of the same order, and back. NaN lies at the ends. */
static inline int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

static inline float real(int32_t order) {
    float value;
    order = ordered(order);
    memcpy(&value, &order, sizeof value);
    return value;
}

/* Round to the nearest whole number: above 2^23 a float holds no others. */
static inline int32_t whole(float x) { return (int32_t)((x + 12582912.0f) - 12582912.0f); }

static void shrink(const Matrix *m, const float *row, Rows to) {
    int32_t least = 0, most = 0, total = 0; /* zero is in the range, and has a byte of its own */
    for (int64_t i = 0; i < m->width; i++) {
        int32_t bits;
        memcpy(&bits, row + i, sizeof bits);
        bits = ordered(bits);
        least = bits < least ? bits : least;
        most = bits > most ? bits : most;
    }
    float range = real(most) - real(least);
    memset(to.bytes, 0, m->inputs);
    *to.excess = *to.zeros = 0;
    *to.scales = isfinite(range) ? range / 253.0f : NAN; /* a bad number spoils its row, openly */
    if (!isfinite(range) || range < 1e-30f) return;
    float times = 253.0f / range;
    int32_t zero = -127 - whole(real(least) * times);
    for (int64_t i = 0; i < m->width; i++) {
        int32_t step = whole(row[i] * times) + zero;
        to.bytes[i] = (int8_t)step;
        total += step;
    }
    *to.zeros = zero;
    *to.excess = ADDED * total;
}

static inline void put(const Matrix *m, int64_t panel, const Sums *sums, Rows row,
                       const float *bias, float *to) {
    int64_t first = panel * LANES;
    int64_t count = m->outputs - first < LANES ? m->outputs - first : LANES;
    int32_t kept[LANES];
    float out[LANES];
    memcpy(kept, sums, sizeof kept);
    for (int i = 0; i < LANES; i++) {
        int32_t sum = kept[i] - *row.excess - *row.zeros * m->totals[first + i];
        out[i] = (float)sum * *row.scales * m->scales[first + i];
    }
    if (bias)
        for (int64_t i = 0; i < count; i++) out[i] += bias[first + i];
    memcpy(to + first, out, count * sizeof *to);
}

/* Multiply some rows with some panels that follow each other. Both numbers are known to the compiler
   wherever this is called, so that all sums lie in registers. Several panels are several streams
   of memory, and a core waits for them together: alone, one is read at three quarters the speed. */
static inline __attribute__((always_inline)) void block(const Matrix *m, int64_t panel, int panels,
                                                        int count, Rows rows, const float *bias,
                                                        float *to) {
    const uint8_t *weights = m->weights + panel * m->inputs * LANES;
    Sums sums[TILE] = {0};
    for (int64_t i = 0; i < m->inputs; i += FOUR, weights += GROUP)
        for (int p = 0; p < panels; p++)
            for (int r = 0; r < count; r++)
                dot(&sums[p * count + r], weights + p * m->inputs * LANES,
                    rows.bytes + r * m->inputs + i);
    for (int p = 0; p < panels; p++)
        for (int r = 0; r < count; r++)
            put(m, panel + p, &sums[p * count + r], from(rows, m, r), bias, to + r * m->outputs);
}

/* Multiply some rows with the next panels, as many as there are registers for; return how many. */
static int64_t some(const Matrix *m, int64_t panel, int64_t left, int64_t count, Rows rows,
                    const float *bias, float *to) {
#define CASE(n, c) \
    if (count == (c) && left >= (n)) { block(m, panel, n, c, rows, bias, to); return n; }
#if TILE == 8
    CASE(8, 1) CASE(4, 1) CASE(4, 2) CASE(2, 2) CASE(2, 3) CASE(2, 4) CASE(1, 3) CASE(1, 4)
#endif
    CASE(2, 1) CASE(1, 1) CASE(1, 2)
#undef CASE
    return 0;
}

/* Write x times the matrix, plus the bias: (rows, outputs). Return 0, or 1 where memory ran out. */
int multiply(const Matrix *m, const float *x, const float *bias, float *to, int64_t count,
             int threads) {
    int64_t panels = (m->outputs + LANES - 1) / LANES, size = panels * m->inputs * LANES;
    if (!count) return 0;
    int8_t *bytes = malloc(count * (m->inputs + 3 * 4)); /* a multiple of 4 a row */
    if (!bytes) return 1;
    float *scales = (float *)(bytes + count * m->inputs);
    int32_t *zeros = (int32_t *)(scales + count);
    Rows rows = {bytes, scales, zeros, zeros + count};
#pragma omp parallel for num_threads(threads) if (count > 8)
    for (int64_t r = 0; r < count; r++) shrink(m, x + r * m->width, from(rows, m, r));
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (size > SMALL)
    for (int t = 0; t < threads; t++) {
        int64_t p = panels * t / threads, end = panels * (t + 1) / threads, most = TILE / TALL;
        while (p < end) { /* the weights of some panels are near while all rows meet them */
            int64_t left = count > TALL && end - p > most ? most : end - p, done = left;
            for (int64_t r = 0; r < count; r += TALL) {
                int64_t tall = count - r < TALL ? count - r : TALL;
                for (int64_t q = 0; q < left; q += done) {
                    done = some(m, p + q, left - q, tall, from(rows, m, r), bias,
                                to + r * m->outputs);
                    if (count <= TALL) break;
                }
            }
            p += count > TALL ? left : done;
        }
    }
    free(bytes);
    return 0;
}
