// Vectors of the machine's width, and what all pages of this folder use.
//
// The generator writes before this page: REAL (float or double), LANES (values in a vector) and
// FUSED (1: the weight gradient goes straight into the weights, plain SGD; 0: into a buffer).

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

typedef REAL Real;
constexpr int V = LANES;
constexpr int WIDTH = V * sizeof(Real);
typedef Real Vec __attribute__((vector_size(WIDTH), may_alias));
typedef Real Loose __attribute__((vector_size(WIDTH), may_alias, aligned(sizeof(Real))));
#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 64")

constexpr int padded(int n) { return (n + V - 1) / V * V; }
INLINE Vec load(const Real* p) { return *reinterpret_cast<const Vec*>(p); }
INLINE void store(Real* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
INLINE Vec load_loose(const Real* p) { return *reinterpret_cast<const Loose*>(p); }
INLINE void store_loose(Real* p, Vec v) { *reinterpret_cast<Loose*>(p) = v; }
INLINE Vec all(Real s) { return s - Vec{}; }
INLINE Vec positive(Vec v) { return v > 0 ? v : Vec{}; }

// Memory on a boundary of 64 bytes, zero at first.
struct Memory {
    Real* at = nullptr;
    size_t size = 0;
    Memory() = default;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { std::free(at); }
    void resize(size_t values) {
        if (values <= size) return;
        std::free(at);
        size = 0;
        at = static_cast<Real*>(std::aligned_alloc(64, (values * sizeof(Real) + 127) / 64 * 64));
        if (!at) throw std::bad_alloc();
        std::memset(at, 0, values * sizeof(Real));
        size = values;
    }
};

// What one step needs beside parameters and examples.
struct Step {
    Real lr = 0, keep = 1;  // FUSED: p = keep * p - lr * g, keep = 1 - lr * weight decay
    bool training = false;
    uint64_t noise = 0;  // keys the dropout masks of this client and step
};

// A finished gradient: into the weights, or into its buffer.
INLINE void settle(Real* p, Real* g, Vec gradient, const Step& s) {
    if constexpr (FUSED) store(p, load(p) * s.keep - gradient * s.lr);
    else store(g, gradient);
}

// V rows of V values, rows `stride` apart, transposed in registers: butterflies of blocks.
template <int S, int... I>
INLINE void butterfly(Vec (&t)[V], std::integer_sequence<int, I...> lanes) {
    UNROLL for (int i = 0; i < V; i++)
        if (!(i & S)) {
            const Vec a = t[i], b = t[i + S];
            t[i] = __builtin_shufflevector(a, b, (I & S ? V + I - S : I)...);
            t[i + S] = __builtin_shufflevector(a, b, (I & S ? V + I : I + S)...);
        }
    if constexpr (S > 1) butterfly<S / 2>(t, lanes);
}

INLINE void transpose(const Real* in, int stride, Real* out, int out_stride) {
    Vec t[V];
    UNROLL for (int i = 0; i < V; i++) t[i] = load_loose(in + i * stride);
    butterfly<V / 2>(t, std::make_integer_sequence<int, V>());
    UNROLL for (int i = 0; i < V; i++) store_loose(out + i * out_stride, t[i]);
}
