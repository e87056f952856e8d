// Rows of a table by number. The numbers come in the place of values, by their bits.

template <int COUNT, int ROWS, int SIZE>
struct Embedding {
    static constexpr int WIDE = padded(SIZE), XS = COUNT, YS = COUNT * WIDE, PARAMS = ROWS * WIDE;
    void reserve(int) {}

    static INLINE int row(const Real* x) {
        int32_t number;
        std::memcpy(&number, x, sizeof number);
        return number;
    }

    void forward(const Real* p, const Real* x, Real* y, int n, const Step&) {
        for (int i = 0; i < n * COUNT; i++)
            std::memcpy(y + size_t(i) * WIDE, p + size_t(row(x + i)) * WIDE, WIDE * sizeof(Real));
    }

    void backward(Real* p, Real* g, const Real* x, const Real*, Real* dy, Real*, int n, const Step& s) {
        if constexpr (!FUSED) std::memset(g, 0, size_t(PARAMS) * sizeof(Real));
        else if (s.keep != 1)
            for (int i = 0; i < PARAMS; i++) p[i] *= s.keep;
        for (int i = 0; i < n * COUNT; i++)
            for (int k = 0; k < WIDE; k += V) {
                const Vec d = load(dy + size_t(i) * WIDE + k);
                Real* to = (FUSED ? p : g) + size_t(row(x + i)) * WIDE + k;
                store(to, FUSED ? load(to) - d * s.lr : load(to) + d);
            }
    }
};

// Inputs: COUNT numbers below ROWS an example.
template <int COUNT, int ROWS>
struct Numbers {
    typedef int64_t Source;
    static constexpr int XS = COUNT, SOURCE = COUNT;
    static bool take(const Source* from, Real* to) {
        for (int i = 0; i < COUNT; i++) {
            if (from[i] < 0 || from[i] >= ROWS) return false;
            const int32_t number = from[i];
            std::memcpy(to + i, &number, sizeof number);
        }
        return true;
    }
};
