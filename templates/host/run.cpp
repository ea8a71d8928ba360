// The host device's launch. A library of kernels holds this file once.
#include <stdarg.h>

#include <algorithm>
#include <mutex>
#include <system_error>
#include <thread>

#include "worker.h"

namespace host {

__thread Thread* current;

Place place(Where where) {
    const char* slash = strrchr(where.file, '/');
    Place place;
    snprintf(place.text, sizeof place.text, "%s:%d", slash ? slash + 1 : where.file, where.line);
    return place;
}

namespace {

// Workers that no launch uses now: their stacks are kept for the next one.
struct Pool {
    std::mutex lock;
    std::vector<std::unique_ptr<Worker>> idle;

    std::unique_ptr<Worker> take() {
        std::lock_guard<std::mutex> hold(lock);
        if (idle.empty()) return std::make_unique<Worker>();
        std::unique_ptr<Worker> worker = std::move(idle.back());
        idle.pop_back();
        return worker;
    }
    void give(std::unique_ptr<Worker> worker) {
        std::lock_guard<std::mutex> hold(lock);
        idle.push_back(std::move(worker));
    }
} pool;

void work(Launch& launch) {
    try {
        std::unique_ptr<Worker> worker = pool.take();
        worker->run(launch);
        pool.give(std::move(worker));
    } catch (const std::bad_alloc&) {
        launch.report(": no memory for the stacks of its threads");
    }
}

void work_together(Launch& launch, unsigned workers) {
    std::vector<std::thread> others;
    try {
        while (others.size() + 1 < workers) others.emplace_back(work, std::ref(launch));
    } catch (const std::system_error&) {  // no more threads to be had: those that there are do it
    }
    work(launch);
    for (std::thread& other : others) other.join();
}

const char* refuse(const TileryHostLaunch& r) {
    unsigned long long threads = 1ull * r.block[0] * r.block[1] * r.block[2];
    if (!r.kernel) return ": the kernel is a null pointer";
    if (r.params_bytes <= 16 || r.params_bytes > 4096) return ": its parameter must be a struct of 17 to 4096 bytes";
    if (!threads || std::max({r.block[0], r.block[1], r.block[2]}) > 1024 || threads > 1024) return ": a block has 1 to 1024 threads";
    if (!std::min({r.grid[0], r.grid[1], r.grid[2]}) || r.grid[1] > 65535 || r.grid[2] > 65535) return ": a grid beyond CUDA's limits";
    if (r.shared_bytes > 232448) return ": a block has at most 232448 bytes of shared memory";
    return nullptr;
}

}  // namespace

void synchronize(Where where) { worker().synchronize(where); }
void meet(const char* op, unsigned mask, void* arguments, void (*execute)(void* const*), Where where) {
    worker().meet(op, mask, arguments, execute, where);
}
void copy_async(void* shared, const void* global, int bytes, bool inside, Where where) {
    worker().copy_async({(char*)shared, (const char*)global, bytes, inside}, where);
}
void copy_async_commit() {
    Fiber& f = worker().self();
    f.groups.push_back(f.copies.size());
}
void copy_async_wait(int pending) { worker().finish_copies((size_t)pending); }

void fail(const char* format, ...) {
    char who[32], text[1200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(who, sizeof who, ", thread %d", worker().self().number);
    worker().fail(who, text);
}

#ifdef TILERY_HOST_CHECK
void check_shared(const void* p, int bytes, Access access, Where where) {
    if (access == Access::READ) worker().shadow.read(worker().actor(), p, bytes, where);
    else worker().shadow.write(worker().actor(), p, bytes, false, where);
}
void check_global(const void* p, int bytes, Access access, Where where) {
    long long writer = (long long)worker().number * 1024 + worker().self().number;
    Ranges::check(worker().launch->request, writer, p, bytes, access, where);
}
#endif

}  // namespace host

extern "C" __attribute__((visibility("default"), noinline)) void tilery_host_stop(long long block, long long thread) {
    asm volatile("" ::"r"(block), "r"(thread));
}

extern "C" __attribute__((visibility("default"))) int tilery_host_run(const TileryHostLaunch* request) {
    using namespace host;
    const TileryHostLaunch& r = *request;
    if (r.size != sizeof r) return TILERY_HOST_REFUSED;
    if (const char* why = refuse(r)) {
        snprintf(r.error, r.error_bytes, "kernel %s%s", r.name, why);
        return TILERY_HOST_REFUSED;
    }
    Launch launch(r);
    unsigned long long blocks = 1ull * r.grid[0] * r.grid[1] * r.grid[2];
    unsigned most = r.workers ? r.workers : std::max(1u, std::thread::hardware_concurrency());
    work_together(launch, (unsigned)std::min<unsigned long long>(most, blocks));
    return launch.failed ? TILERY_HOST_FAULT : TILERY_HOST_DONE;
}
