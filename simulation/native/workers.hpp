// One thread's memory, and what it does with one client.

enum Verdict : uint8_t { COUNTED, NOT_FINITE, TOO_LONG, TOO_LARGE, FAILED };
constexpr int64_t UNMEASURED = -2;  // a fault that is no example's: the received model's loss

struct Client {  // a row of the table, all int64
    int64_t x, y, count, target_bytes, round, client, model, weight;
};

struct Plan {
    int64_t clients, models, epochs, batch, exponent, evaluate, adam;
    double lr, momentum, decay, proximal, beta1, beta2, eps, limit, max_norm, largest_loss;
    const char *shuffles, *dropouts;  // the labels of the streams, up to the round
    const Real* model;                // [models][VALUES], as the manifest has them
    const Client* table;
    uint8_t* verdicts;
    double *losses, *measured;  // [clients]; [2][clients]: loss and correct of the received model
    const double* factors;      // [clients]: what an update is multiplied by in the sum
    int64_t* faults;            // the example that a client failed at
    int64_t* total;             // [VALUES], or null
    Real* rows;                 // [clients][VALUES], or null
};

struct Worker {
    Net net;
    Memory p, g, first, second;
    std::vector<int64_t> sum;
    bool used = false;
    Order order;

    void begin(const Plan& plan) {
        p.resize(Net::PARAMS);
        g.resize(FUSED ? 1 : Net::PARAMS);
        if (!FUSED) first.resize(Net::PARAMS);
        if (plan.adam) second.resize(Net::PARAMS);
        if (plan.total) sum.resize(Net::PARAMS);
        used = false;
    }

    void run(const Plan& plan, int64_t index, const Real* start, const int32_t* places) {
        const Client& c = plan.table[index];
        double loss = 0;
        net.reserve(std::min(plan.batch, c.count));
        if (plan.evaluate && !evaluate(plan, index, c, start)) return fail(plan, index);
        std::memcpy(p.at, start, Net::PARAMS * sizeof(Real));
        if (!epochs(plan, index, c, start, loss)) return fail(plan, index);
        plan.losses[index] = loss;
        const double weight = c.weight * plan.factors[index];
        const Verdict verdict = judge(plan, start);
        plan.verdicts[index] = verdict;
        if (plan.total && verdict == COUNTED) add(plan, weight, start);
        if (plan.rows) row(plan, index, verdict == COUNTED, start, places);
    }

    bool epochs(const Plan& plan, int64_t index, const Client& c, const Real* start, double& loss) {
        Philox bits{stream_key(label(plan.shuffles, c.round, c.client))};
        const uint64_t noise = stream_key(label(plan.dropouts, c.round, c.client))[0];
        Step s;
        s.lr = plan.lr;
        s.keep = 1 - plan.lr * plan.decay;
        s.training = true;
        int64_t steps = 0;
        if constexpr (!FUSED) {  // whatever the last client left, NaN too
            std::memset(first.at, 0, Net::PARAMS * sizeof(Real));
            if (plan.adam) std::memset(second.at, 0, Net::PARAMS * sizeof(Real));
        }
        for (int64_t e = 0; e < plan.epochs; e++) {
            shuffle(bits, c.count, order);
            for (int64_t at = 0; at < c.count; at += plan.batch) {
                const int n = std::min(plan.batch, c.count - at);
                for (int i = 0; i < n; i++)
                    if (!take(c, order[at + i].second, i)) {
                        plan.faults[index] = order[at + i].second;
                        return false;
                    }
                s.noise = mixed(noise, steps);
                net.forward(p.at, n, s);
                loss += Loss::run<true>(net.y[Net::N].at, net.targets.data(), n).loss;
                net.backward(p.at, g.at, n, s);
                if constexpr (!FUSED) optimise(plan, start, steps);
                steps++;
            }
        }
        return true;
    }

    bool evaluate(const Plan& plan, int64_t index, const Client& c, const Real* start) {
        Found found;
        for (int64_t at = 0; at < c.count; at += plan.batch) {
            const int n = std::min(plan.batch, c.count - at);
            for (int i = 0; i < n; i++)
                if (!take(c, at + i, i)) {
                    plan.faults[index] = at + i;
                    return false;
                }
            net.forward(start, n, Step());
            const Found part = Loss::run<false>(net.y[Net::N].at, net.targets.data(), n);
            found.loss += part.loss;
            found.correct += part.correct;
        }
        if (!(found.loss <= plan.largest_loss)) {  // NaN too
            plan.faults[index] = UNMEASURED;
            return false;
        }
        plan.measured[index] = found.loss;
        plan.measured[plan.clients + index] = found.correct;
        return true;
    }

    // One example into the batch; false where a label or an index is none.
    bool take(const Client& c, int64_t row, int i) {
        typedef typename Inputs::Source Source;
        const Source* from = reinterpret_cast<const Source*>(c.x) + row * Inputs::SOURCE;
        Net::Target* to = net.targets.data() + i * Loss::TARGETS;
        if constexpr (std::is_same_v<Net::Target, int64_t>) {
            *to = c.target_bytes == 8 ? reinterpret_cast<const int64_t*>(c.y)[row]
                                      : reinterpret_cast<const int32_t*>(c.y)[row];
            if (*to < 0 || *to >= Loss::CLASSES) return false;
        } else {
            std::memcpy(to, reinterpret_cast<const Real*>(c.y) + row * Loss::TARGETS,
                        Loss::TARGETS * sizeof(Real));
        }
        return Inputs::take(from, net.y[0].at + i * Inputs::XS);
    }

    // The formulas of strategies/optimizers.py, over the whole gradient.
    void optimise(const Plan& plan, const Real* start, int64_t step) {
        const Real lr = plan.lr, decay = plan.decay, mu = plan.proximal, eps = plan.eps;
        Real *w = p.at, *m = first.at, *v = second.at;
        if (plan.adam) {
            const Real b1 = plan.beta1, b2 = plan.beta2;
            const Real size = plan.lr / (1 - std::pow(plan.beta1, step + 1));
            const Real root = 1 / std::sqrt(1 - std::pow(plan.beta2, step + 1));
            for (int i = 0; i < Net::PARAMS; i++) {
                const Real d = g.at[i] + decay * w[i] + mu * (w[i] - start[i]);
                m[i] = b1 * m[i] + (1 - b1) * d;
                v[i] = b2 * v[i] + (1 - b2) * d * d;
                w[i] -= size * m[i] / (std::sqrt(v[i]) * root + eps);
            }
            return;
        }
        const Real momentum = plan.momentum;
        for (int i = 0; i < Net::PARAMS; i++) {
            const Real d = g.at[i] + decay * w[i] + mu * (w[i] - start[i]);
            m[i] = momentum * m[i] + d;
            w[i] -= lr * m[i];
        }
    }

    // By the bits: nothing here may depend on what the compiler thinks of NaN.
    Verdict judge(const Plan& plan, const Real* start) const {
        typedef std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t> Bits;
        constexpr Bits sign = Bits(1) << (8 * sizeof(Real) - 1);
        constexpr Bits infinite = sizeof(Real) == 4 ? Bits(0x7f800000) : Bits(0x7ff0000000000000);
        Bits top = 0;
        for (int i = 0; i < Net::PARAMS; i++) {
            const Real d = p.at[i] - start[i];
            Bits b;
            std::memcpy(&b, &d, sizeof b);
            top = std::max(top, Bits(b & ~sign));
        }
        if (top >= infinite) return NOT_FINITE;
        if (plan.max_norm >= 0) {
            double squares = 0;
            for (int i = 0; i < Net::PARAMS; i++) {
                const double d = p.at[i] - start[i];
                squares += d * d;
            }
            if (std::sqrt(squares) > plan.max_norm) return TOO_LONG;
        }
        Real largest;
        std::memcpy(&largest, &top, sizeof top);
        return plan.total && double(largest) > plan.limit ? TOO_LARGE : COUNTED;
    }

    void add(const Plan& plan, double weight, const Real* start) {
        if (!used) std::fill(sum.begin(), sum.end(), 0);
        used = true;
        const double scale = std::ldexp(weight, plan.exponent);
        for (int i = 0; i < Net::PARAMS; i += V) add_terms(sum.data() + i, load(p.at + i) - load(start + i), scale);
    }

    // to += rint(d * scale), to nearest, ties to even, of the float64 product.
    template <class T>
    static INLINE void add_terms(int64_t* to, T d, double scale) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
        if constexpr (sizeof(T) == 64) {
            UNROLL for (int half = 0; half < V; half += 8) {
                __m512d wide;
                if constexpr (sizeof d[0] == 8) wide = d;
                else wide = _mm512_cvtps_pd(half ? _mm512_extractf32x8_ps(d, 1) : _mm512_castps512_ps256(d));
                const __m512i term = _mm512_cvtpd_epi64(_mm512_mul_pd(wide, _mm512_set1_pd(scale)));
                __m512i* at = reinterpret_cast<__m512i*>(to + half);
                _mm512_storeu_si512(at, _mm512_add_epi64(_mm512_loadu_si512(at), term));
            }
            return;
        }
#endif
        UNROLL for (int i = 0; i < V; i++) to[i] += int64_t(std::rint(double(d[i]) * scale));
    }

    void row(const Plan& plan, int64_t index, bool counted, const Real* start,
             const int32_t* places) const {
        Real* out = plan.rows + index * VALUES;
        if (!counted) std::memset(out, 0, VALUES * sizeof(Real));
        else
            for (int i = 0; i < VALUES; i++) out[i] = p.at[places[i]] - start[places[i]];
    }

    void fail(const Plan& plan, int64_t index) {
        plan.verdicts[index] = FAILED;
        if (plan.rows) std::memset(plan.rows + index * VALUES, 0, VALUES * sizeof(Real));
    }
};
