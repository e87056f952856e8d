// Convolution, 2x2 max-pooling and optionally ReLU as one: backward walks only the winners.
//
// A pooled value hands its gradient to one of four inputs, to none where the ReLU is off: these are
// the terms of the dense sums that are not zero. `winner` is 0 to 3: bit 1 the row, bit 0 the
// column; the first of equals wins, as in torch. Rows or columns that the pool drops are not computed.

typedef uint8_t Bytes __attribute__((vector_size(V)));
typedef std::conditional_t<sizeof(Real) == 4, int32_t, int64_t> Lane;
typedef Lane Lanes __attribute__((vector_size(WIDTH)));

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
    struct Hit {
        Real d;
        int32_t at;
    };
    Memory framed, turned, rows, spread, sums;
    std::vector<uint8_t> winners;
    std::vector<Hit> hits;  // [V][CELLS]
    int counts[V];

    void reserve(int n) {
        if (FRAMES) framed.resize(size_t(n) * Framed::SIZE), spread.resize(Framed::SIZE);
        if (MAJOR) turned.resize(size_t(TAPS) * YC);
        rows.resize(size_t(2) * 2 * OW * C * V);
        winners.resize(size_t(n) * YS);
        if (MAJOR) hits.resize(size_t(V) * CELLS + 1), sums.resize(size_t(CO) * TAPS);
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

    // Where the patch of a cell's winner begins in the (framed) image, seen from its first one.
    static constexpr int32_t SHIFT[4] = {0, CS, XW * CS, XW * CS + CS};
    static INLINE int32_t corner(int cell) { return (cell / OW * 2 * XW + cell % OW * 2) * CS; }

    // All kernels: dx with the weights that forward had, then their gradients.
    void sparse(Real* p, Real* g, const Real* x, const Real* dy, Real* dx, int n, const Step& s) {
        std::memset(sums.at, 0, size_t(CO) * TAPS * sizeof(Real));
        for (int i = 0; i < n; i++) {
            Real* out = FRAMES ? spread.at : dx + size_t(i) * XS;
            if (dx) std::memset(out, 0, (FRAMES ? Framed::SIZE : XS) * sizeof(Real));
            for (int c = 0; c < COLS; c++) {
                const size_t at = size_t(i) * YS + c * V;
                const int channels = std::min(V, CO - c * V);
                spread_and_list(p + size_t(c) * V * TAPS, dy + at, winners.data() + at, dx ? out : nullptr, channels);
                for (int j = 0; j < channels; j++)
                    kernel(sums.at + size_t(c * V + j) * TAPS, image(x, i), hits.data() + j * CELLS, counts[j]);
            }
            if constexpr (FRAMES)
                if (dx) Framed::take(out, dx + size_t(i) * XS);
        }
        for (int t = 0; t < CO * TAPS; t += V) settle(p + t, g + t, load(sums.at + t), s);
    }

    // Goes over one image's cells: dx gets each winner's kernel, scaled by its gradient, and each
    // channel's list the winner.
    void spread_and_list(const Real* p, const Real* dy, const uint8_t* winner, Real* out, int channels) {
        std::fill(counts, counts + V, 0);
        for (int cell = 0; cell < CELLS; cell++, dy += YC, winner += YC) {
            Hit found[V];
            int which[V];
            const int count = alive(dy, winner, corner(cell), channels, found, which);
            for (int k = 0; k < count; k++) hits[which[k] * CELLS + counts[which[k]]++] = found[k];
            if (!out) continue;
            for (int k = 0; k < count; k++) {
                const Vec d = all(found[k].d);
                const Real* w = p + which[k] * TAPS;
                Real* to = out + found[k].at;
                UNROLL for (int t = 0; t < TAPS; t += V) {
                    Real* tap = to + t / ROW * XW * CS + t % ROW;
                    store(tap, load(tap) + load(w + t) * d);
                }
            }
        }
    }

    // The channels whose gradient is not zero, with the places of their winners.
    static INLINE int alive(const Real* dy, const uint8_t* winner, int32_t corner, int channels,
                            Hit* found, int* which) {
#ifdef __AVX512F__
        if constexpr (sizeof(Real) == 4 && V == 16) {
            const __m512 d = _mm512_load_ps(dy);
            const __mmask16 on = _mm512_cmp_ps_mask(d, _mm512_setzero_ps(), _CMP_NEQ_UQ);
            const __m512i w = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(winner)));
            const __m512i shifts = _mm512_castsi128_si512(_mm_setr_epi32(SHIFT[0], SHIFT[1], SHIFT[2], SHIFT[3]));
            const __m512i at = _mm512_add_epi32(_mm512_permutexvar_epi32(w, shifts), _mm512_set1_epi32(corner));
            const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            const __m512 ds = _mm512_maskz_compress_ps(on, d);
            const __m512i ats = _mm512_maskz_compress_epi32(on, at);
            const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            const __m512i bits = _mm512_castps_si512(ds);
            _mm512_storeu_si512(found, _mm512_permutex2var_epi32(bits, low, ats));
            _mm512_storeu_si512(found + 8, _mm512_permutex2var_epi32(bits, high, ats));
            _mm512_storeu_si512(which, _mm512_maskz_compress_epi32(on, lane));
            return __builtin_popcount(on);
        }
#endif
        int count = 0;
        for (int o = 0; o < channels; o++) {
            found[count] = {dy[o], corner + SHIFT[winner[o]]};
            which[count] = o;
            count += dy[o] != 0;
        }
        return count;
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
                        Bytes narrow;
                        std::memcpy(&narrow, winners.data() + at, V);
                        const Lanes which = __builtin_convertvector(narrow, Lanes);
                        const Vec d = load(dy + at);
                        const Real* patch = image(x, i) + (2 * r * XW + 2 * q) * CS;
                        UNROLL for (int k = 0; k < 4; k++) {
                            const Vec e = which == k ? d : Vec{};
                            const Real* shifted = patch + ((k >> 1) * XW + (k & 1)) * CS;
                            UNROLL for (int t = 0; t < T; t++)
                                acc[t] += e * all(shifted[(t0 + t) / ROW * XW * CS + (t0 + t) % ROW]);
                        }
                    }
            UNROLL for (int t = 0; t < T; t++)
                settle(p + (t0 + t) * YC, g + (t0 + t) * YC, acc[t], s);
        });
    }
};
