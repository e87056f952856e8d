// A pool of threads, each a client at a time, and what Python calls. The caller's thread works too.

struct Pool {
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::condition_variable work, idle;
    std::vector<std::pair<int64_t, int64_t>> waiting;  // a heap of (examples, index): the longest first
    std::vector<int32_t> places;
    Memory models;
    Plan plan;
    int busy = 0;
    bool closing = false;

    Pool(int count, const int32_t* at) : places(at, at + VALUES) {
        for (int i = 0; i < count; i++) workers.push_back(std::make_unique<Worker>());
        for (int i = 1; i < count; i++) threads.emplace_back([this, i] { serve(*workers[i]); });
    }
    ~Pool() {
        {
            std::lock_guard lock(mutex);
            closing = true;
        }
        work.notify_all();
        for (auto& thread : threads) thread.join();
    }

    void begin(const Plan& given) {
        plan = given;
        models.resize(size_t(plan.models) * Net::PARAMS);
        for (int64_t m = 0; m < plan.models; m++)
            for (int i = 0; i < VALUES; i++)
                models.at[m * Net::PARAMS + places[i]] = plan.model[m * VALUES + i];
        for (auto& worker : workers) worker->begin(plan);
    }

    void add(int64_t from, int64_t to) {
        {
            std::lock_guard lock(mutex);
            for (int64_t i = from; i < to; i++) {
                if (plan.table[i].count < 1) continue;  // the task failed
                waiting.emplace_back(plan.table[i].count, -i);
                std::push_heap(waiting.begin(), waiting.end());
            }
        }
        if (to - from > 1) work.notify_all();
        else work.notify_one();
    }

    // Takes one client under the lock; false if none waits.
    bool one(Worker& worker, std::unique_lock<std::mutex>& lock) {
        if (waiting.empty()) return false;
        std::pop_heap(waiting.begin(), waiting.end());
        const int64_t index = -waiting.back().second;
        waiting.pop_back();
        busy++;
        lock.unlock();
        const Real* start = models.at + plan.table[index].model * Net::PARAMS;
        try {
            worker.run(plan, index, start, places.data());
        } catch (const std::bad_alloc&) {
            worker.fail(plan, index);
        }
        lock.lock();
        if (--busy == 0 && waiting.empty()) idle.notify_all();
        return true;
    }

    void serve(Worker& worker) {
        std::unique_lock lock(mutex);
        while (!closing)
            if (!one(worker, lock)) work.wait(lock);
    }

    // Works until all is done, or for about so long; false if there is more.
    bool help(int64_t milliseconds) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
        std::unique_lock lock(mutex);
        while (one(*workers[0], lock))
            if (std::chrono::steady_clock::now() > end) return waiting.empty() && busy == 0;
        return idle.wait_until(lock, end, [this] { return busy == 0; });
    }

    void drop() {
        std::unique_lock lock(mutex);
        waiting.clear();
        idle.wait(lock, [this] { return busy == 0; });
    }

    void finish() {
        if (!plan.total) return;
        std::memset(plan.total, 0, VALUES * sizeof(int64_t));
        for (auto& worker : workers)
            if (worker->used)
                for (int i = 0; i < VALUES; i++) plan.total[i] += worker->sum[places[i]];
    }
};

template <class F>
int guarded(F&& f) {
    try {
        return f();
    } catch (...) {
        return -1;
    }
}

extern "C" {
Pool* umbel_pool(int threads, const int32_t* places) {
    Pool* made = nullptr;
    guarded([&] { return made = new Pool(threads, places), 0; });
    return made;
}
void umbel_close(Pool* pool) { delete pool; }
int umbel_begin(Pool* pool, const Plan* plan) {
    return guarded([&] { return pool->begin(*plan), 0; });
}
int umbel_add(Pool* pool, int64_t from, int64_t to) {
    return guarded([&] { return pool->add(from, to), 0; });
}
int umbel_help(Pool* pool, int64_t milliseconds) {
    return guarded([&] { return pool->help(milliseconds) ? 1 : 0; });
}
void umbel_drop(Pool* pool) { pool->drop(); }
void umbel_finish(Pool* pool) { pool->finish(); }
int64_t umbel_params() { return Net::PARAMS; }
}
