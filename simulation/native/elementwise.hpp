// Layers that treat each value by itself. XS = YS, padding included: zero stays zero.

template <int SIZE>
struct Elementwise {
    static constexpr int XS = SIZE, YS = SIZE, PARAMS = 0;
    void reserve(int) {}
};

template <int SIZE>
struct Relu : Elementwise<SIZE> {
    void forward(const Real*, const Real* x, Real* y, int n, const Step&) {
        for (size_t i = 0; i < size_t(n) * SIZE; i++) y[i] = x[i] > 0 ? x[i] : 0;
    }
    void backward(Real*, Real*, const Real*, const Real* y, Real* dy, Real* dx, int n, const Step&) {
        for (size_t i = 0; i < size_t(n) * SIZE; i++) dx[i] = y[i] > 0 ? dy[i] : 0;
    }
};

// Outputs apart from those of the last layer: their gradient takes their place, and what came before
// may need its own to go back.
template <int SIZE>
struct Apart : Elementwise<SIZE> {
    void forward(const Real*, const Real* x, Real* y, int n, const Step&) {
        std::memcpy(y, x, size_t(n) * SIZE * sizeof(Real));
    }
    void backward(Real*, Real*, const Real*, const Real*, Real* dy, Real* dx, int n, const Step&) {
        std::memcpy(dx, dy, size_t(n) * SIZE * sizeof(Real));
    }
};

template <int SIZE>
struct Tanh : Elementwise<SIZE> {
    void forward(const Real*, const Real* x, Real* y, int n, const Step&) {
        for (size_t i = 0; i < size_t(n) * SIZE; i++) y[i] = std::tanh(x[i]);
    }
    void backward(Real*, Real*, const Real*, const Real* y, Real* dy, Real* dx, int n, const Step&) {
        for (size_t i = 0; i < size_t(n) * SIZE; i++) dx[i] = dy[i] * (1 - y[i] * y[i]);
    }
};

// x * Phi(x), exactly or by tanh (Hendrycks & Gimpel 2016, arXiv 1606.08415).
template <int SIZE, bool TANH>
struct Gelu : Elementwise<SIZE> {
    static constexpr Real ROOT_HALF = 0.70710678118654752440, DENSITY = 0.39894228040143267794;
    static constexpr Real ROOT = 0.79788456080286535588, CUBE = 0.044715;

    void forward(const Real*, const Real* x, Real* y, int n, const Step&) {
        for (size_t i = 0; i < size_t(n) * SIZE; i++) {
            const Real v = x[i];
            if constexpr (TANH) y[i] = v * Real(0.5) * (1 + std::tanh(ROOT * (v + CUBE * v * v * v)));
            else y[i] = v * Real(0.5) * (1 + std::erf(v * ROOT_HALF));
        }
    }
    void backward(Real*, Real*, const Real* x, const Real*, Real* dy, Real* dx, int n, const Step&) {
        for (size_t i = 0; i < size_t(n) * SIZE; i++) {
            const Real v = x[i];
            if constexpr (TANH) {
                const Real t = std::tanh(ROOT * (v + CUBE * v * v * v));
                const Real slope = ROOT * (1 + 3 * CUBE * v * v);
                dx[i] = dy[i] * Real(0.5) * (1 + t + v * (1 - t * t) * slope);
            } else {
                const Real phi = Real(0.5) * (1 + std::erf(v * ROOT_HALF));
                dx[i] = dy[i] * (phi + v * DENSITY * std::exp(Real(-0.5) * v * v));
            }
        }
    }
};

// The mask is a function of client, step, layer and element alone, so it is made twice, not kept.
// A value survives where 32 bits are at least DROPPED = round(rate * 2^32).
template <int SIZE, uint64_t LAYER, uint64_t DROPPED>
struct Dropout : Elementwise<SIZE> {
    static constexpr Real SCALE = Real(1 / (1 - double(DROPPED) / 4294967296.0));

    void forward(const Real*, const Real* x, Real* y, int n, const Step& s) {
        if (s.training) apply(x, y, n, s);
        else std::memcpy(y, x, size_t(n) * SIZE * sizeof(Real));
    }
    void backward(Real*, Real*, const Real*, const Real*, Real* dy, Real* dx, int n, const Step& s) {
        apply(dy, dx, n, s);
    }
    void apply(const Real* from, Real* to, int n, const Step& s) {
        const uint64_t key = mixed(s.noise, LAYER);
        const uint32_t k0 = key, k1 = key >> 32;
        for (uint32_t i = 0; i < uint32_t(n) * SIZE; i++)
            to[i] = element_bits(k0, k1, i) >= uint32_t(DROPPED) ? from[i] * SCALE : 0;
    }
};
