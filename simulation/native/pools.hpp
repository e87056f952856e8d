// Pooling by itself: windows of any size and stride. Images lie channels last, C values a pixel.

template <int H, int W, int C, int KH, int KW, int SH, int SW, int PH, int PW>
struct Windows {
    static constexpr int OH = (H + 2 * PH - KH) / SH + 1, OW = (W + 2 * PW - KW) / SW + 1;
    static constexpr int XS = H * W * C, YS = OH * OW * C, PARAMS = 0;

    // Calls f(offset in the image, number of the place in its window) for what lies in the image.
    template <class F>
    static INLINE void places(int r, int q, F&& f) {
        for (int u = 0; u < KH; u++)
            for (int v = 0; v < KW; v++) {
                const int row = r * SH + u - PH, column = q * SW + v - PW;
                if (row >= 0 && row < H && column >= 0 && column < W) f((row * W + column) * C, u * KW + v);
            }
    }
};

template <int H, int W, int C, int KH, int KW, int SH, int SW, int PH, int PW>
struct MaxPool : Windows<H, W, C, KH, KW, SH, SW, PH, PW> {
    typedef Windows<H, W, C, KH, KW, SH, SW, PH, PW> Base;
    using Base::OH, Base::OW, Base::XS, Base::YS;
    typedef std::conditional_t<sizeof(Real) == 4, int32_t, int64_t> Lane;
    typedef Lane Lanes __attribute__((vector_size(WIDTH), may_alias));
    std::vector<Lane> winners;

    void reserve(int n) { winners.resize(size_t(n) * YS + V); }

    void forward(const Real*, const Real* x, Real* y, int n, const Step&) {
        for (int i = 0; i < n * OH * OW; i++)
            for (int c = 0; c < C; c += V) {
                const Real* image = x + size_t(i / (OH * OW)) * XS + c;
                Vec top = all(-std::numeric_limits<Real>::infinity());
                Lanes which{};
                Base::places(i / OW % OH, i % OW, [&](int at, int number) {
                    const Vec other = load(image + at);
                    const auto more = other > top;
                    top = more ? other : top;
                    which = more ? which * 0 + number : which;
                });
                store(y + size_t(i) * C + c, top);
                std::memcpy(winners.data() + size_t(i) * C + c, &which, sizeof which);
            }
    }

    void backward(Real*, Real*, const Real*, const Real*, Real* dy, Real* dx, int n, const Step&) {
        std::memset(dx, 0, size_t(n) * XS * sizeof(Real));
        for (int i = 0; i < n * OH * OW; i++)
            for (int c = 0; c < C; c += V) {
                Real* image = dx + size_t(i / (OH * OW)) * XS + c;
                const Vec d = load(dy + size_t(i) * C + c);
                Lanes which;
                std::memcpy(&which, winners.data() + size_t(i) * C + c, sizeof which);
                Base::places(i / OW % OH, i % OW, [&](int at, int number) {
                    store(image + at, load(image + at) + (which == number ? d : Vec{}));
                });
            }
    }
};

// PADDING: whether what lies around the image counts among the values of a window, as zeros.
template <int H, int W, int C, int KH, int KW, int SH, int SW, int PH, int PW, bool PADDING>
struct AvgPool : Windows<H, W, C, KH, KW, SH, SW, PH, PW> {
    typedef Windows<H, W, C, KH, KW, SH, SW, PH, PW> Base;
    using Base::OH, Base::OW, Base::XS;
    void reserve(int) {}

    static INLINE Real share(int r, int q) {
        int count = 0;
        Base::places(r, q, [&](int, int) { count++; });
        return Real(1) / (PADDING ? KH * KW : count);
    }

    void forward(const Real*, const Real* x, Real* y, int n, const Step&) {
        for (int i = 0; i < n * OH * OW; i++) {
            const Real part = share(i / OW % OH, i % OW);
            for (int c = 0; c < C; c += V) {
                const Real* image = x + size_t(i / (OH * OW)) * XS + c;
                Vec sum{};
                Base::places(i / OW % OH, i % OW, [&](int at, int) { sum += load(image + at); });
                store(y + size_t(i) * C + c, sum * part);
            }
        }
    }

    void backward(Real*, Real*, const Real*, const Real*, Real* dy, Real* dx, int n, const Step&) {
        std::memset(dx, 0, size_t(n) * XS * sizeof(Real));
        for (int i = 0; i < n * OH * OW; i++) {
            const Real part = share(i / OW % OH, i % OW);
            for (int c = 0; c < C; c += V) {
                Real* image = dx + size_t(i / (OH * OW)) * XS + c;
                const Vec d = load(dy + size_t(i) * C + c) * part;
                Base::places(i / OW % OH, i % OW, [&](int at, int) { store(image + at, load(image + at) + d); });
            }
        }
    }
};
