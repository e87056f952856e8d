// Linear: y = x W + b, with an optional ReLU. W lies [IN][padded(OUT)], b after it.

template <int IN, int XS, int OUT, bool BIAS, bool RELU>
struct Linear {
    static constexpr int YS = padded(OUT), COLS = YS / V;
    static constexpr int BIAS_AT = IN * YS, PARAMS = BIAS_AT + (BIAS ? YS : 0);
    // A tile has C vectors of outputs, and rows for as many registers as there are.
    static constexpr int C = split(COLS, REGISTERS == 32 ? 5 : 2), FIT = (REGISTERS - 1 - C) / C;
    static constexpr int R = std::min(FIT, 10);
    // Weights beyond L2 are read once a batch: so many rows of them stay in L1 for all examples.
    static constexpr int DEEP = IN * YS * sizeof(Real) <= 524288 ? IN : std::max(1, 24576 / int(YS * sizeof(Real)));
    Memory turned, scaled;

    void reserve(int n) {
        turned.resize(size_t(V) * YS);
        scaled.resize(size_t(n) * YS);
    }

    void forward(const Real* p, const Real* x, Real* y, int n, const Step&) {
        blocks<IN, DEEP>([&](int k0, auto ks) {
            blocks<COLS, C>([&](int c0, auto cs) {
                constexpr int c = cs.value;
                row_blocks<R>(n, [&](int r0, auto rs) {
                    constexpr int r = rs.value;
                    Real* out = y + r0 * YS + c0 * V;
                    Vec acc[r][c];
                    UNROLL for (int j = 0; j < c; j++) {
                        const Vec b = BIAS ? load(p + BIAS_AT + (c0 + j) * V) : Vec{};
                        UNROLL for (int i = 0; i < r; i++) acc[i][j] = k0 ? load(out + i * YS + j * V) : b;
                    }
                    multiply<r, c, ks.value, XS, YS>(acc, x + r0 * XS + k0, p + k0 * YS + c0 * V);
                    const bool ends = RELU && k0 + ks.value == IN;
                    UNROLL for (int i = 0; i < r; i++)
                        UNROLL for (int j = 0; j < c; j++)
                            store(out + i * YS + j * V, ends ? positive(acc[i][j]) : acc[i][j]);
                });
            });
        });
    }

    // dx first, then W: tile by tile, while V rows of W are in L1.
    void backward(Real* p, Real* g, const Real* x, const Real* y, Real* dy, Real* dx, int n,
                  const Step& s) {
        if constexpr (RELU)
            for (int i = 0; i < n * YS; i += V)
                store(dy + i, load(y + i) > 0 ? load(dy + i) : Vec{});
        const Real* step = dy;
        if constexpr (FUSED) {
            const Vec rate = all(-s.lr);
            for (int i = 0; i < n * YS; i += V) store(scaled.at + i, load(dy + i) * rate);
            step = scaled.at;
        }
        if (dx) blocks<IN, V>([&](int k0, auto ks) { input<ks.value>(p, dy, dx, k0, n); weights<ks.value>(p, g, x, step, k0, n, s); });
        else weights<IN>(p, g, x, step, 0, n, s);
        if constexpr (BIAS)
            for (int c = 0; c < YS; c += V) {
                Vec sum{};
                for (int i = 0; i < n; i++) sum += load(dy + i * YS + c);
                settle(p + BIAS_AT + c, g + BIAS_AT + c, sum, s);
            }
    }

    // dx of KS <= V columns from k0: their rows of W are turned, so that lanes are columns.
    template <int KS>
    INLINE void input(const Real* p, const Real* dy, Real* dx, int k0, int n) {
        Real* t = turned.at;
        if constexpr (KS == V)
            for (int o = 0; o < YS; o += V) transpose(p + k0 * YS + o, YS, t + o * V, V);
        else
            for (int o = 0; o < YS; o++)
                for (int k = 0; k < V; k++) t[o * V + k] = k < KS ? p[(k0 + k) * YS + o] : 0;
        row_blocks<10>(n, [&](int r0, auto rs) {
            constexpr int r = rs.value;
            Vec acc[r][1] = {};
            multiply<r, 1, OUT, YS, V>(acc, dy + r0 * YS, t);
            UNROLL for (int i = 0; i < r; i++) store(dx + (r0 + i) * XS + k0, acc[i][0]);
        });
    }

    // A large batch goes by CHUNK examples, each added up by itself: thousands of small terms added
    // to a weight one by one would be rounded to its size.
    static constexpr int CHUNK = 32;

    template <int ROWS>
    INLINE void weights(Real* p, Real* g, const Real* x, const Real* step, int k0, int n,
                        const Step& s) {
        blocks<COLS, C>([&](int c0, auto cs) {
            constexpr int c = cs.value;
            blocks<ROWS, split(ROWS, FIT)>([&](int k1, auto ks) {
                constexpr int k = ks.value;
                const int at = (k0 + k1) * YS + c0 * V;
                Real* out = (FUSED ? p : g) + at;
                Vec acc[k][c] = {};
                if constexpr (FUSED)
                    UNROLL for (int i = 0; i < k; i++)
                        UNROLL for (int j = 0; j < c; j++) acc[i][j] = load(out + i * YS + j * V) * s.keep;
                multiply_across<k, c, XS, YS>(acc, x + k0 + k1, step + c0 * V, std::min(n, CHUNK));
                UNROLL for (int i = 0; i < k; i++)
                    UNROLL for (int j = 0; j < c; j++) store(out + i * YS + j * V, acc[i][j]);
                for (int r = CHUNK; r < n; r += CHUNK) {
                    Vec more[k][c] = {};
                    multiply_across<k, c, XS, YS>(more, x + size_t(r) * XS + k0 + k1,
                                                  step + size_t(r) * YS + c0 * V, std::min(n - r, CHUNK));
                    UNROLL for (int i = 0; i < k; i++)
                        UNROLL for (int j = 0; j < c; j++)
                            store(out + i * YS + j * V, load(out + i * YS + j * V) + more[i][j]);
                }
            });
        });
    }
};
