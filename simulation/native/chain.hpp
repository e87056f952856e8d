// The layers one after another over one batch, and the memory between them.
//
// A layer has XS, YS: values of one example in and out, padding included; PARAMS: values of its
// parameters. `FIRST` is the first layer with parameters: none before it needs a gradient.

template <class Inputs, class Loss, class... Layers>
struct Chain {
    static constexpr int N = sizeof...(Layers);
    static constexpr int WIDTHS[N + 1] = {Inputs::XS, Layers::YS...};
    static constexpr int SIZES[N] = {Layers::PARAMS...};
    typedef typename Loss::Target Target;

    static constexpr int offset(int layer) {
        int at = 0;
        for (int i = 0; i < layer; i++) at += padded(SIZES[i]);
        return at;
    }
    static constexpr int first() {
        int i = 0;
        while (i < N - 1 && SIZES[i] == 0) i++;
        return i;
    }
    static constexpr int PARAMS = offset(N), FIRST = first();

    std::tuple<Layers...> layers;
    Memory y[N + 1], d[N + 1];
    std::vector<Target> targets;
    int capacity = 0;

    void reserve(int batch) {
        if (batch <= capacity) return;
        for (int i = 0; i <= N; i++) {
            y[i].resize(size_t(batch) * WIDTHS[i] + V);
            if (i > FIRST && i < N) d[i].resize(size_t(batch) * WIDTHS[i] + V);
        }
        targets.resize(size_t(batch) * Loss::TARGETS);
        std::apply([&](auto&... layer) { (layer.reserve(batch), ...); }, layers);
        capacity = batch;
    }

    template <int I = 0>
    void forward(const Real* p, int n, const Step& s) {
        if constexpr (I < N) {
            std::get<I>(layers).forward(p + offset(I), y[I].at, y[I + 1].at, n, s);
            forward<I + 1>(p, n, s);
        }
    }

    // The gradient of the outputs lies where the outputs lay: the last layer never reads those.
    template <int I = N - 1>
    void backward(Real* p, Real* g, int n, const Step& s) {
        Real* dy = I == N - 1 ? y[N].at : d[I + 1].at;
        Real* dx = I > FIRST ? d[I].at : nullptr;
        std::get<I>(layers).backward(p + offset(I), g + offset(I), y[I].at, y[I + 1].at, dy, dx, n, s);
        if constexpr (I > FIRST) backward<I - 1>(p, g, n, s);
    }
};

// Inputs: COUNT values an example, filled up to WIDE.
template <int COUNT, int WIDE>
struct Rows {
    typedef Real Source;
    static constexpr int XS = WIDE, SOURCE = COUNT;
    static bool take(const Source* from, Real* to) {
        std::memcpy(to, from, COUNT * sizeof(Real));
        return true;
    }
};

// An image that comes as (channels, height, width) and lies channels last, CS values a pixel.
template <int C, int H, int W, int CS>
struct Image {
    typedef Real Source;
    static constexpr int XS = H * W * CS, SOURCE = C * H * W;
    static bool take(const Source* from, Real* to) {
        if constexpr (C == 1 && CS == 1) std::memcpy(to, from, SOURCE * sizeof(Real));
        else
            for (int c = 0; c < C; c++)
                for (int i = 0; i < H * W; i++) to[i * CS + c] = from[c * H * W + i];
        return true;
    }
};
