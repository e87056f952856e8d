// Normalisation of groups of values of one example: y = (x - mean) / sqrt(variance + eps) * w + b.
//
// A group is PIXELS runs of SIZE values, STRIDE apart; groups begin BETWEEN apart. GroupNorm: a run is
// the channels of a group in one pixel. LayerNorm: one run. Value k of group j has the weight
// SHARED ? k : j * SIZE + k. The variance is that of all values (biased), as in torch.

template <int XN, int GROUPS, int BETWEEN, int PIXELS, int STRIDE, int SIZE, bool SHARED, bool AFFINE,
          bool BIAS, int64_t EPS_1E15>
struct Norm {
    static constexpr int XS = XN, YS = XN, WIDE = padded(SHARED ? SIZE : GROUPS * SIZE);
    static constexpr int BIAS_AT = WIDE, PARAMS = (AFFINE ? WIDE : 0) + (BIAS ? WIDE : 0);
    static constexpr double COUNT = double(PIXELS) * SIZE;
    std::vector<Real> means, scales;
    Memory gw, gb;

    void reserve(int n) {
        means.resize(size_t(n) * GROUPS);
        scales.resize(size_t(n) * GROUPS);
        gw.resize(WIDE);
        gb.resize(WIDE);
    }

    static INLINE int weight(int group, int k) { return SHARED ? k : group * SIZE + k; }

    void forward(const Real* p, const Real* x, Real* y, int n, const Step&) {
        if constexpr (XN != GROUPS * PIXELS * SIZE) std::memset(y, 0, size_t(n) * YS * sizeof(Real));
        for (int i = 0; i < n; i++)
            for (int j = 0; j < GROUPS; j++) {
                const size_t at = size_t(i) * XS + j * BETWEEN;
                double sum = 0, squares = 0;
                for (int q = 0; q < PIXELS; q++)
                    for (int k = 0; k < SIZE; k++) sum += x[at + q * STRIDE + k];
                const Real mean = sum / COUNT;
                for (int q = 0; q < PIXELS; q++)
                    for (int k = 0; k < SIZE; k++) {
                        const double d = x[at + q * STRIDE + k] - mean;
                        squares += d * d;
                    }
                const Real scale = 1 / std::sqrt(squares / COUNT + double(EPS_1E15) * 1e-15);
                means[size_t(i) * GROUPS + j] = mean;
                scales[size_t(i) * GROUPS + j] = scale;
                for (int q = 0; q < PIXELS; q++)
                    for (int k = 0; k < SIZE; k++) {
                        const Real w = AFFINE ? p[weight(j, k)] : Real(1);
                        const Real b = BIAS ? p[BIAS_AT + weight(j, k)] : Real(0);
                        y[at + q * STRIDE + k] = (x[at + q * STRIDE + k] - mean) * scale * w + b;
                    }
            }
    }

    void backward(Real* p, Real* g, const Real* x, const Real*, Real* dy, Real* dx, int n, const Step& s) {
        std::memset(gw.at, 0, WIDE * sizeof(Real));
        std::memset(gb.at, 0, WIDE * sizeof(Real));
        if (dx && XN != GROUPS * PIXELS * SIZE) std::memset(dx, 0, size_t(n) * XS * sizeof(Real));
        for (int i = 0; i < n; i++)
            for (int j = 0; j < GROUPS; j++) {
                const size_t at = size_t(i) * XS + j * BETWEEN;
                const Real mean = means[size_t(i) * GROUPS + j], scale = scales[size_t(i) * GROUPS + j];
                double sum = 0, product = 0;  // of the gradient, and of it times the normalised value
                for (int q = 0; q < PIXELS; q++)
                    for (int k = 0; k < SIZE; k++) {
                        const Real d = dy[at + q * STRIDE + k], z = (x[at + q * STRIDE + k] - mean) * scale;
                        gw.at[weight(j, k)] += d * z;
                        gb.at[weight(j, k)] += d;
                        const Real e = AFFINE ? d * p[weight(j, k)] : d;
                        sum += e;
                        product += e * z;
                    }
                if (!dx) continue;
                const Real a = sum / COUNT, b = product / COUNT;
                for (int q = 0; q < PIXELS; q++)
                    for (int k = 0; k < SIZE; k++) {
                        const Real z = (x[at + q * STRIDE + k] - mean) * scale;
                        const Real d = dy[at + q * STRIDE + k];
                        const Real e = AFFINE ? d * p[weight(j, k)] : d;
                        dx[at + q * STRIDE + k] = scale * (e - a - z * b);
                    }
            }
        for (int k = 0; k < WIDE; k += V) {
            if constexpr (AFFINE) settle(p + k, g + k, load(gw.at + k), s);
            if constexpr (BIAS) settle(p + BIAS_AT + k, g + BIAS_AT + k, load(gb.at + k), s);
        }
    }
};
