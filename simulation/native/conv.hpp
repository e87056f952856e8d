// Convolution with stride 1, straight from the image: no im2col. Images lie channels last.
//
// y[row][px][co] = sum over u, q, ci of x[row + u][px + q][ci] * w[u][q][ci][co]. A tile of registers
// holds some pixels of a row times some vectors of output channels, for all of the sum. Weights lie
// [KH][KW][CI][padded(CO)], bias after them.

// Vectors of output channels in a tile, and pixels beside them.
constexpr int tile_columns(int cols) { return cols < 4 || REGISTERS < 32 ? split(cols, REGISTERS < 32 ? 2 : 3) : split(cols, 4); }
constexpr int tile_pixels(int columns, int width) {
    return split(width, std::max(1, (REGISTERS - 1 - columns) / columns));
}

// Columns C0.. of rows [row, row + ROWS) of one image. CS, XW: values from one pixel to the next and
// pixels from one row to the next of x; WS: values from one tap to the next of w; YC: from one pixel
// to the next of y, whose rows have OW pixels.
template <int CI, int CS, int XW, int OW, int KH, int KW, int WS, int YC, int C, bool RELU, class Start>
INLINE void convolve_row(const Real* x, const Real* w, Real* y, Start&& start) {
    blocks<OW, tile_pixels(C, OW)>([&](int px, auto size) {
        constexpr int P = size.value;
        Vec acc[P][C];
        UNROLL for (int c = 0; c < C; c++) {
            const Vec b = start(c);
            UNROLL for (int i = 0; i < P; i++) acc[i][c] = b;
        }
        for (int u = 0; u < KH; u++) {
            const Real* from = x + (u * XW + px) * CS;
            const Real* taps = w + u * KW * CI * WS;
            if constexpr (CI == CS) multiply<P, C, KW * CI, CS, WS>(acc, from, taps);
            else
                for (int q = 0; q < KW; q++)
                    multiply<P, C, CI, CS, WS>(acc, from + q * CS, taps + q * CI * WS);
        }
        UNROLL for (int i = 0; i < P; i++)
            UNROLL for (int c = 0; c < C; c++)
                store(y + (px + i) * YC + c * V, RELU ? positive(acc[i][c]) : acc[i][c]);
    });
}

// A frame of zeros around an image of C values a pixel: PH rows and PW pixels on each side.
template <int H, int W, int C, int PH, int PW>
struct Frame {
    static constexpr int FW = W + 2 * PW, SIZE = (H + 2 * PH) * FW * C;
    static constexpr int INSIDE = (PH * FW + PW) * C;
    static void put(const Real* x, Real* framed) {
        for (int r = 0; r < H; r++)
            std::memcpy(framed + INSIDE + r * FW * C, x + r * W * C, W * C * sizeof(Real));
    }
    static void take(const Real* framed, Real* x) {
        for (int r = 0; r < H; r++)
            std::memcpy(x + r * W * C, framed + INSIDE + r * FW * C, W * C * sizeof(Real));
    }
};

// CI channels of CS values a pixel, H x W; CO kernels of KH x KW; PH, PW: padding with zeros.
template <int CI, int CS, int H, int W, int CO, int KH, int KW, int PH, int PW, bool BIAS, bool RELU>
struct Conv {
    typedef Frame<H, W, CS, PH, PW> Framed;
    static constexpr int OH = H + 2 * PH - KH + 1, OW = W + 2 * PW - KW + 1, YC = padded(CO);
    static constexpr int XS = H * W * CS, YS = OH * OW * YC, XW = Framed::FW;
    static constexpr int TAPS = KH * KW * CI, BIAS_AT = TAPS * YC, PARAMS = BIAS_AT + (BIAS ? YC : 0);
    static constexpr int C = tile_columns(YC / V);
    static constexpr bool FRAMES = PH || PW;
    // The input gradient is a convolution of dy in a frame with the kernels turned round.
    typedef Frame<OH, OW, YC, KH - 1 - PH, KW - 1 - PW> Back;
    Memory framed, back, turned;

    void reserve(int n) {
        if (FRAMES) framed.resize(size_t(n) * Framed::SIZE);
        if (CS % V == 0) {
            back.resize(Back::SIZE);
            turned.resize(size_t(KH) * KW * CO * CS);
        }
    }

    const Real* image(const Real* x, int i) const {
        return FRAMES ? framed.at + size_t(i) * Framed::SIZE : x + size_t(i) * XS;
    }

    void forward(const Real* p, const Real* x, Real* y, int n, const Step&) {
        for (int i = 0; i < n; i++) {
            if constexpr (FRAMES) Framed::put(x + size_t(i) * XS, framed.at + size_t(i) * Framed::SIZE);
            const Real* from = image(x, i);
            blocks<YC / V, C>([&](int c0, auto cs) {
                for (int r = 0; r < OH; r++)
                    convolve_row<CI, CS, XW, OW, KH, KW, YC, YC, cs.value, RELU>(
                        from + r * XW * CS, p + c0 * V, y + size_t(i) * YS + r * OW * YC + c0 * V,
                        [&](int c) { return BIAS ? load(p + BIAS_AT + (c0 + c) * V) : Vec{}; });
            });
        }
    }

    void backward(Real* p, Real* g, const Real* x, const Real* y, Real* dy, Real* dx, int n,
                  const Step& s) {
        if constexpr (RELU)
            for (size_t i = 0; i < size_t(n) * YS; i += V)
                store(dy + i, load(y + i) > 0 ? load(dy + i) : Vec{});
        if constexpr (CS % V == 0)
            if (dx) input(p, dy, dx, n);
        if constexpr (BIAS)
            for (int c = 0; c < YC; c += V) {
                Vec sum{};
                for (int j = 0; j < n * OH * OW; j++) sum += load(dy + size_t(j) * YC + c);
                settle(p + BIAS_AT + c, g + BIAS_AT + c, sum, s);
            }
        for (int u = 0; u < KH; u++) {
            if constexpr (CI == CS) weights<KW * CI>(p, g, x, dy, n, u, 0, s);
            else
                for (int q = 0; q < KW; q++) weights<CI>(p, g, x, dy, n, u, q, s);
        }
    }

    void input(const Real* p, const Real* dy, Real* dx, int n) {
        for (int u = 0; u < KH; u++)
            for (int q = 0; q < KW; q++)
                for (int i = 0; i < CI; i++)
                    for (int o = 0; o < CO; o++)
                        turned.at[(((KH - 1 - u) * KW + KW - 1 - q) * CO + o) * CS + i] =
                            p[((u * KW + q) * CI + i) * YC + o];
        constexpr int D = tile_columns(CS / V);
        for (int i = 0; i < n; i++) {
            Back::put(dy + size_t(i) * YS, back.at);
            blocks<CS / V, D>([&](int c0, auto cs) {
                for (int r = 0; r < H; r++)
                    convolve_row<CO, YC, Back::FW, W, KH, KW, CS, CS, cs.value, false>(
                        back.at + r * Back::FW * YC, turned.at + c0 * V,
                        dx + size_t(i) * XS + r * W * CS + c0 * V, [](int) { return Vec{}; });
            });
        }
    }

    // The gradient of COUNT taps that lie together in row u, from tap q on.
    template <int COUNT>
    INLINE void weights(Real* p, Real* g, const Real* x, const Real* dy, int n, int u, int q,
                        const Step& s) {
        blocks<YC / V, C>([&](int c0, auto cs) {
            constexpr int c = cs.value;
            blocks<COUNT, split(COUNT, std::max(1, (REGISTERS - 1 - c) / c))>([&](int t0, auto ts) {
                constexpr int t = ts.value;
                Vec acc[t][c] = {};
                for (int i = 0; i < n; i++)
                    for (int r = 0; r < OH; r++)
                        multiply_across<t, c, CS, YC>(
                            acc, image(x, i) + ((r + u) * XW + q) * CS + t0,
                            dy + size_t(i) * YS + r * OW * YC + c0 * V, OW);
                const int at = ((u * KW + q) * CI + t0) * YC + c0 * V;
                UNROLL for (int i = 0; i < t; i++)
                    UNROLL for (int j = 0; j < c; j++)
                        settle(p + at + i * YC + j * V, g + at + i * YC + j * V, acc[i][j], s);
            });
        });
    }
};
