// Matrix products by tiles of registers: R rows times C vectors, sizes known when compiled.

constexpr int REGISTERS = WIDTH == 64 ? 32 : 16;

constexpr int split(int total, int most) {  // the size of the most equal blocks of at most `most`
    const int n = (total + most - 1) / most;
    return (total + n - 1) / n;
}

// acc[r][c] += sum over k < K of a[r * LDA + k] * b[k * LDB + c-th vector]
template <int R, int C, int K, int LDA, int LDB>
INLINE void multiply(Vec (&acc)[R][C], const Real* a, const Real* b) {
    for (int k = 0; k < K; k++, b += LDB) {
        Vec w[C];
        UNROLL for (int c = 0; c < C; c++) w[c] = load(b + c * V);
        UNROLL for (int r = 0; r < R; r++) {
            const Vec s = all(a[r * LDA + k]);
            UNROLL for (int c = 0; c < C; c++) acc[r][c] += s * w[c];
        }
    }
}

// acc[r][c] += sum over k < n of a[k * LDA + r] * b[k * LDB + c-th vector]
template <int R, int C, int LDA, int LDB>
INLINE void multiply_across(Vec (&acc)[R][C], const Real* a, const Real* b, int n) {
    for (int k = 0; k < n; k++, a += LDA, b += LDB) {
        Vec w[C];
        UNROLL for (int c = 0; c < C; c++) w[c] = load(b + c * V);
        UNROLL for (int r = 0; r < R; r++) {
            const Vec s = all(a[r]);
            UNROLL for (int c = 0; c < C; c++) acc[r][c] += s * w[c];
        }
    }
}

// Calls f with each start of a block of SIZE in [0, TOTAL), and its compile-time length.
template <int TOTAL, int SIZE, class F>
INLINE void blocks(F&& f) {
    constexpr int whole = TOTAL / SIZE * SIZE;
    for (int i = 0; i < whole; i += SIZE) f(i, std::integral_constant<int, SIZE>{});
    if constexpr (whole < TOTAL) f(whole, std::integral_constant<int, TOTAL - whole>{});
}

template <int SIZE, class F>
INLINE void rest(int at, int count, F&& f) {
    if (count == SIZE) f(at, std::integral_constant<int, SIZE>{});
    else if constexpr (SIZE > 1) rest<SIZE - 1>(at, count, f);
}

// The same for a count known only at run time.
template <int SIZE, class F>
INLINE void row_blocks(int total, F&& f) {
    int i = 0;
    for (; i + SIZE <= total; i += SIZE) f(i, std::integral_constant<int, SIZE>{});
    if constexpr (SIZE > 1)
        if (i < total) rest<SIZE - 1>(i, total - i, f);
}

// As `blocks`, but where a block begins is known when compiled too.
template <int TOTAL, int SIZE, int AT = 0, class F>
INLINE void parts(F&& f) {
    constexpr int size = std::min(SIZE, TOTAL - AT);
    f(std::integral_constant<int, AT>{}, std::integral_constant<int, size>{});
    if constexpr (AT + size < TOTAL) parts<TOTAL, SIZE, AT + size>(f);
}
