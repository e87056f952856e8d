// Convolution, 2x2 max-pooling and optionally ReLU as one: backward walks only the winners.
//
// A pooled value hands its gradient to one of four inputs, to none where the ReLU is off: these are
// the terms of the dense sums that are not zero. `winner` is 0 to 3: bit 1 the row, bit 0 the
// column; the first of equals wins, as in torch. Rows or columns that the pool drops are not computed.

typedef uint8_t Bytes __attribute__((vector_size(V)));
typedef std::conditional_t<sizeof(Real) == 4, int32_t, int64_t> Lane;
typedef Lane Lanes __attribute__((vector_size(WIDTH)));

constexpr Lanes counted() {
    Lanes lanes{};
    for (int i = 0; i < V; i++) lanes[i] = i;
    return lanes;
}
static const Lanes LANE = counted();

struct Hit {
    Real d;
    int32_t at;
};

// Writes the lanes that `on` selects one after another; may write V in any case. Returns how many.
template <class D, class L>
INLINE int squeeze(Hit* to, D d, L at, L on) {
#ifdef __AVX512DQ__
    if constexpr (sizeof(D) == 64 && sizeof(Real) == 4) {
        const __mmask16 mask = _mm512_movepi32_mask(reinterpret_cast<__m512i>(on));
        const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
        const __m512i ds = _mm512_maskz_compress_epi32(mask, reinterpret_cast<__m512i>(d));
        const __m512i ats = _mm512_maskz_compress_epi32(mask, reinterpret_cast<__m512i>(at));
        _mm512_storeu_si512(to, _mm512_permutex2var_epi32(ds, low, ats));
        _mm512_storeu_si512(to + 8, _mm512_permutex2var_epi32(ds, high, ats));
        return __builtin_popcount(mask);
    }
#endif
    int count = 0;
    for (int i = 0; i < V; i++) {
        to[count] = {d[i], int32_t(at[i])};
        count += on[i] != 0;
    }
    return count;
}

// MAJOR: weights lie [CO][KH][KW][CS], where CS is whole vectors; else [KH][KW][CS][padded(CO)].
template <int CI, int CS, int H, int W, int CO, int KH, int KW, int PH, int PW, bool BIAS, bool RELU>
struct PooledConv {
    typedef Frame<H, W, CS, PH, PW> Framed;
    static constexpr bool MAJOR = CS % V == 0, FRAMES = PH || PW;
    static constexpr int OH = (H + 2 * PH - KH + 1) / 2, OW = (W + 2 * PW - KW + 1) / 2;
    static constexpr int YC = padded(CO), COLS = YC / V, XW = Framed::FW;
    static constexpr int XS = H * W * CS, CELLS = OH * OW, YS = CELLS * YC;
    static constexpr int ROW = KW * CS, TAPS = KH * ROW;
    static constexpr int BIAS_AT = MAJOR ? CO * TAPS : TAPS * YC, PARAMS = BIAS_AT + (BIAS ? YC : 0);
    static constexpr int C = tile_columns(COLS);
    // Rows of pixels that `input` holds in registers.
    static constexpr int BAND = split(KH + 1, std::max(1, (REGISTERS - 6) / (KW + 1)));
    // Rows of cells whose patches stay in L1 while V kernels collect them.
    static constexpr int STRIP = std::clamp((40960 / int(XW * CS * sizeof(Real)) - KH + 1) / 2, 1, OH);
    static constexpr size_t LIVE = size_t(CELLS) * CO + V;  // hits of one kind
    Memory framed, turned, rows, spread, sums, packed;
    std::vector<uint8_t> winners;
    std::vector<Hit> hits, live;  // [V][STRIP * OW]; [4][LIVE]
    std::vector<int32_t> ends;    // [CELLS][4]
    int counts[V];

    void reserve(int n) {
        if (FRAMES) framed.resize(size_t(n) * Framed::SIZE), spread.resize(Framed::SIZE);
        if (MAJOR) turned.resize(size_t(TAPS) * YC);
        rows.resize(size_t(2) * 2 * OW * C * V);
        winners.resize(size_t(n) * YS);
        if (MAJOR) {
            hits.resize(V * STRIP * OW);
            live.resize(4 * LIVE);
            ends.resize(4 * CELLS);
            sums.resize(size_t(CO) * TAPS);
            packed.resize(size_t(CO) * TAPS);
        }
    }

    const Real* image(const Real* x, int i) const {
        return FRAMES ? framed.at + size_t(i) * Framed::SIZE : x + size_t(i) * XS;
    }

    void forward(const Real* p, const Real* x, Real* y, int n, const Step&) {
        const Real* w = p;
        if constexpr (MAJOR) turn(p), w = turned.at;
        for (int i = 0; i < n; i++) {
            if constexpr (FRAMES) Framed::put(x + size_t(i) * XS, framed.at + size_t(i) * Framed::SIZE);
            const Real* from = image(x, i);
            blocks<COLS, C>([&](int c0, auto cs) {
                constexpr int c = cs.value;
                for (int r = 0; r < OH; r++) {
                    UNROLL for (int half = 0; half < 2; half++)
                        convolve_row<CS, CS, XW, 2 * OW, KH, KW, YC, c * V, c, false>(
                            from + (2 * r + half) * XW * CS, w + c0 * V, rows.at + half * 2 * OW * c * V,
                            [&](int j) { return BIAS ? load(p + BIAS_AT + (c0 + j) * V) : Vec{}; });
                    const size_t at = (size_t(i) * CELLS + r * OW) * YC + c0 * V;
                    pool<c>(y + at, winners.data() + at);
                }
            });
        }
    }

    // Rows of CO weights into columns. Rows beyond CO are zeros.
    void turn(const Real* p) {
        for (int t = 0; t < TAPS; t += V)
            for (int o = 0; o < YC; o += V) {
                if (o + V <= CO) transpose(p + size_t(o) * TAPS + t, TAPS, turned.at + size_t(t) * YC + o, YC);
                else
                    for (int k = 0; k < V; k++)
                        for (int j = 0; j < V; j++)
                            turned.at[size_t(t + k) * YC + o + j] = o + j < CO ? p[size_t(o + j) * TAPS + t + k] : 0;
            }
    }

    template <int c>
    INLINE void pool(Real* y, uint8_t* winner) {
        constexpr int below = 2 * OW * c * V;
        for (int px = 0; px < OW; px++)
            UNROLL for (int j = 0; j < c; j++) {
                const Real* from = rows.at + (2 * px * c + j) * V;
                Vec top = load(from);
                Lanes which{};
                UNROLL for (int k = 1; k < 4; k++) {
                    const Vec other = load(from + (k >> 1) * below + (k & 1) * c * V);
                    const Lanes more = other > top;
                    top = more ? other : top;
                    which = more ? which * 0 + k : which;
                }
                store(y + px * YC + j * V, RELU ? positive(top) : top);
                const Bytes narrow = __builtin_convertvector(which, Bytes);
                std::memcpy(winner + px * YC + j * V, &narrow, V);
            }
    }

    void backward(Real* p, Real* g, const Real* x, const Real* y, Real* dy, Real* dx, int n,
                  const Step& s) {
        if constexpr (RELU)
            for (size_t i = 0; i < size_t(n) * YS; i += V)
                store(dy + i, load(y + i) > 0 ? load(dy + i) : Vec{});
        if constexpr (BIAS)
            for (int c = 0; c < YC; c += V) {
                Vec sum{};
                for (int j = 0; j < n * CELLS; j++) sum += load(dy + size_t(j) * YC + c);
                settle(p + BIAS_AT + c, g + BIAS_AT + c, sum, s);
            }
        if constexpr (MAJOR) sparse(p, g, x, dy, dx, n, s);
        else
            for (int c = 0; c < COLS; c++) dense(p + c * V, g + c * V, x, dy, n, c, s);
    }

    // Where the patch of a cell's first input begins in the (framed) image; a winner's is CS further
    // where it is to the right, a row further where it is below.
    static INLINE int32_t corner(int cell) { return (cell / OW * 2 * XW + cell % OW * 2) * CS; }

    // All kernels: dx with the weights that forward had, and the gradients of the weights.
    void sparse(Real* p, Real* g, const Real* x, const Real* dy, Real* dx, int n, const Step& s) {
        std::memset(sums.at, 0, size_t(CO) * TAPS * sizeof(Real));
        if (dx) pack(p);
        for (int i = 0; i < n; i++) {
            for (int c = 0; c < COLS; c++) {
                const size_t at = size_t(i) * YS + c * V;
                const int channels = std::min(V, CO - c * V);
                for (int r = 0; r < OH; r += STRIP) {
                    list(dy + at, winners.data() + at, r * OW, std::min(OH, r + STRIP) * OW);
                    for (int j = 0; j < channels; j++)
                        kernel(sums.at + size_t(c * V + j) * TAPS, image(x, i), hits.data() + j * STRIP * OW, counts[j]);
                }
            }
            if (!dx) continue;
            Real* out = FRAMES ? spread.at : dx + size_t(i) * XS;
            std::memset(out, 0, (FRAMES ? Framed::SIZE : XS) * sizeof(Real));
            sort(dy + size_t(i) * YS, winners.data() + size_t(i) * YS);
            for (int c = 0; c < CS / V; c++)
                parts<KH + 1, BAND>([&](auto first, auto rows) {
                    input<first.value, rows.value>(packed.at + size_t(c) * CO * KH * KW * V, out + c * V);
                });
            if constexpr (FRAMES) Framed::take(out, dx + size_t(i) * XS);
        }
        for (int t = 0; t < CO * TAPS; t += V) settle(p + t, g + t, load(sums.at + t), s);
    }

    // [CS / V][CO][KH * KW][V]: what `input` reads of one vector of channels lies together.
    void pack(const Real* p) {
        Real* to = packed.at;
        for (int c = 0; c < CS; c += V)
            for (int t = 0; t < CO * KH * KW; t++, to += V) store(to, load(p + size_t(t) * CS + c));
    }

    // For each kind of winner the channels whose gradient is not zero, cell after cell.
    void sort(const Real* dy, const uint8_t* winner) {
        int32_t count[4] = {};
        for (int cell = 0; cell < CELLS; cell++, dy += YC, winner += YC) {
            for (int c = 0; c < CO; c += V) {
                const Vec d = load(dy + c);
                const Lanes kinds = kind(winner + c), on = d != 0;
                UNROLL for (int k = 0; k < 4; k++)
                    count[k] += squeeze(live.data() + k * LIVE + count[k], d, (LANE + c) * (KH * KW * V), on & (kinds == k));
            }
            std::memcpy(&ends[cell * 4], count, sizeof count);
        }
    }

    static INLINE Lanes kind(const uint8_t* winner) {
        Bytes narrow;
        std::memcpy(&narrow, winner, V);
        return __builtin_convertvector(narrow, Lanes);
    }

    // One vector of channels of dx: each winner's kernel, scaled by its gradient. A cell's winners
    // touch (KH + 1) x (KW + 1) pixels, of which ROWS rows from R0 on are in registers.
    template <int R0, int ROWS>
    void input(const Real* w, Real* out) {
        const Hit* at[4];
        for (int k = 0; k < 4; k++) at[k] = live.data() + k * LIVE;
        for (int cell = 0; cell < CELLS; cell++) {
            Real* patch = out + corner(cell) + R0 * XW * CS;
            Vec acc[ROWS][KW + 1];
            UNROLL for (int r = 0; r < ROWS; r++)
                UNROLL for (int q = 0; q <= KW; q++) acc[r][q] = load(patch + (r * XW + q) * CS);
            parts<4, 1>([&](auto kind, auto) {
                constexpr int k = kind.value, down = k >> 1, right = k & 1;
                const Hit* end = live.data() + k * LIVE + ends[cell * 4 + k];
                for (; at[k] < end; at[k]++) {
                    const Vec d = all(at[k]->d);
                    const Real* taps = w + at[k]->at;
                    UNROLL for (int r = 0; r < ROWS; r++)
                        if (R0 + r - down >= 0 && R0 + r - down < KH)
                            UNROLL for (int q = 0; q < KW; q++)
                                acc[r][q + right] += d * load(taps + ((R0 + r - down) * KW + q) * V);
                }
            });
            UNROLL for (int r = 0; r < ROWS; r++)
                UNROLL for (int q = 0; q <= KW; q++) store(patch + (r * XW + q) * CS, acc[r][q]);
        }
    }

    // For each of V channels those of one image's cells [first, end) whose gradient is not zero.
    void list(const Real* dy, const uint8_t* winner, int first, int end) {
        std::fill(counts, counts + V, 0);
        for (int cell = first; cell < end; cell++) {
            Hit found[V], which[V];
            const Vec d = load(dy + cell * YC);
            const Lanes kinds = kind(winner + cell * YC), on = d != 0;
            const Lanes at = corner(cell) + (-(kinds & 1) & CS) + (-(kinds >> 1) & XW * CS);
            squeeze(found, d, at, on);
            const int count = squeeze(which, d, LANE, on);
            for (int k = 0; k < count; k++) hits[which[k].at * STRIP * OW + counts[which[k].at]++] = found[k];
        }
    }

    // Adds the winners' patches, each scaled by its gradient, to the gradient of one kernel.
    static void kernel(Real* sum, const Real* x, const Hit* hit, int count) {
        constexpr int VECTORS = TAPS / V, ACROSS = ROW / V;
        parts<VECTORS, split(VECTORS, REGISTERS - 4)>([&](auto first, auto size) {
            constexpr int t0 = first.value, T = size.value;
            Vec acc[T];
            UNROLL for (int t = 0; t < T; t++) acc[t] = load(sum + (t0 + t) * V);
            for (int k = 0; k < count; k++) {
                const Vec d = all(hit[k].d);
                const Real* patch = x + hit[k].at;
                UNROLL for (int t = 0; t < T; t++)
                    acc[t] += d * load(patch + (t0 + t) / ACROSS * XW * CS + (t0 + t) % ACROSS * V);
            }
            UNROLL for (int t = 0; t < T; t++) store(sum + (t0 + t) * V, acc[t]);
        });
    }

    // Few input channels: V kernels at once over all cells, d at its winner and zero at the others.
    void dense(Real* p, Real* g, const Real* x, const Real* dy, int n, int c, const Step& s) {
        parts<TAPS, split(TAPS, REGISTERS - 6)>([&](auto first, auto size) {
            constexpr int t0 = first.value, T = size.value;
            Vec acc[T] = {};
            for (int i = 0; i < n; i++)
                for (int r = 0; r < OH; r++)
                    for (int q = 0; q < OW; q++) {
                        const size_t at = (size_t(i) * CELLS + r * OW + q) * YC + c * V;
                        const Lanes which = kind(winners.data() + at);
                        const Vec d = load(dy + at);
                        const Real* patch = image(x, i) + (2 * r * XW + 2 * q) * CS;
                        Vec e[4];
                        UNROLL for (int k = 0; k < 4; k++) e[k] = which == k ? d : Vec{};
                        // Each input of the cell's patches once, for up to four taps.
                        UNROLL for (int u = 0; u <= KH; u++)
                            UNROLL for (int v = 0; v < ROW + CS; v++) {
                                const Vec value = all(patch[u * XW * CS + v]);
                                UNROLL for (int k = 0; k < 4; k++) {
                                    const int row = u - (k >> 1), at = v - (k & 1) * CS, t = row * ROW + at - t0;
                                    if (row >= 0 && row < KH && at >= 0 && at < ROW && t >= 0 && t < T)
                                        acc[t] += e[k] * value;
                                }
                            }
                    }
            UNROLL for (int t = 0; t < T; t++)
                settle(p + (t0 + t) * YC, g + (t0 + t) * YC, acc[t], s);
        });
    }
};
