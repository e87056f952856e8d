// A loss turns outputs into their gradient in place, and returns the sum over the examples.

struct Found {
    double loss = 0;
    int64_t correct = 0;
};

// Mean softmax cross-entropy over the batch; OUT classes in rows of XS values.
template <int OUT, int XS>
struct CrossEntropy {
    typedef int64_t Target;
    static constexpr int TARGETS = 1, CLASSES = OUT;

    template <bool GRADIENT>
    static Found run(Real* out, const Target* labels, int n) {
        Found found;
        for (int i = 0; i < n; i++) {
            Real* row = out + i * XS;
            Real top = row[0];
            int best = 0;
            for (int c = 1; c < OUT; c++)
                if (row[c] > top) top = row[c], best = c;
            const Real picked = row[labels[i]] - top;
            alignas(64) Real e[XS];
            for (int c = 0; c < OUT; c++) e[c] = std::exp(row[c] - top);
            Real sum = 0;
            for (int c = 0; c < OUT; c++) sum += e[c];
            found.loss += std::log(sum) - picked;
            found.correct += best == labels[i];
            if constexpr (GRADIENT) {
                const Real scale = 1 / (sum * n);
                for (int c = 0; c < XS; c++) row[c] = c < OUT ? e[c] * scale : 0;
                row[labels[i]] -= Real(1) / n;
            }
        }
        return found;
    }
};

// Squared error, mean over all elements of the batch.
template <int OUT, int XS>
struct SquaredError {
    typedef Real Target;
    static constexpr int TARGETS = OUT, CLASSES = 0;

    template <bool GRADIENT>
    static Found run(Real* out, const Target* targets, int n) {
        Found found;
        const Real scale = Real(2) / (Real(n) * OUT);
        for (int i = 0; i < n; i++) {
            double sum = 0;
            for (int c = 0; c < OUT; c++) {
                const Real d = out[i * XS + c] - targets[i * OUT + c];
                sum += double(d) * double(d);
                if constexpr (GRADIENT) out[i * XS + c] = d * scale;
            }
            found.loss += sum / OUT;
        }
        return found;
    }
};
