// The scheduler: one CPU thread runs a block, one of its fibers at a time.
#pragma once
#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <memory>
#include <vector>

#include "cuda.h"
#include "fiber.h"
#include "launch.h"
#ifdef TILERY_HOST_CHECK
#include "check.h"
#endif

namespace host {

inline bool same(Where a, Where b) { return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file)); }

enum class State : unsigned char { READY, BARRIER, MEETING, DONE };

struct Copy {
    char* to;
    const char* from;
    int bytes;
    bool inside;
};

struct Fiber : Thread {
    Context context;
    State state;
    int number;  // of the thread in its block
    // What it waits for.
    const char* op;
    unsigned mask;
    void* arguments;
    Where where;
    // cp.async: copies under way, and how many there were at each commit.
    std::vector<Copy> copies;
    std::vector<size_t> groups;
};

struct Warp {
    unsigned present;  // its lanes
    unsigned waiting;  // how many of them wait at a meeting
    unsigned syncs;    // __syncwarps so far
    unsigned step, start, stride;  // of the round: lanes run in the order start, start + stride, ...
};

// SysV passes a struct of more than 16 bytes in memory, so a kernel reads the beginning of a longer one.
template <int N>
void enter_kernel(const void* kernel, const void* params) {
    struct alignas(16) Params { char bytes[N]; };
    ((void (*)(Params))kernel)(*(const Params*)params);
}

struct Launch {
    const TileryHostLaunch& request;
    void (*enter)(const void* kernel, const void* params) = nullptr;
    alignas(16) char params[4096];
    std::atomic<unsigned long long> next{0};
    std::atomic<bool> failed{false};

    explicit Launch(const TileryHostLaunch& r) : request(r) {
        memcpy(params, r.params, r.params_bytes);
        enter = r.params_bytes <= 256 ? enter_kernel<256> : r.params_bytes <= 1024 ? enter_kernel<1024> : enter_kernel<4096>;
    }
    void report(const char* text) {
        if (!failed.exchange(true)) snprintf(request.error, request.error_bytes, "kernel %s%s", request.name, text);
    }
};

// One CPU thread's fibers and shared memory, used for one block after the other.
class Worker : public Block {
public:
    void run(Launch& of);
    void enter();
    void synchronize(Where where);
    void meet(const char* op, unsigned mask, void* arguments, void (*execute)(void* const*), Where where);
    void copy_async(const Copy& copy, Where where);
    void finish_copies(size_t pending);
    [[noreturn]] void fail(const char* who, const char* text);
    Fiber& self() { return *(Fiber*)current; }

    Launch* launch;
    unsigned long long number;  // of the block
#ifdef TILERY_HOST_CHECK
    Actor actor() { return {self().number, barriers, warps[self().number / 32].syncs}; }
    Shadow shadow;
#endif

private:
    void start(unsigned long long block);
    void go(Context& from, Fiber* next);
    void yield();
    Fiber* pick();
    void change_warp();
    bool release_barrier();
    bool gather(Fiber& last, unsigned wanted, void** lanes);
    Fiber& peer(const Fiber& f, int lane) { return *fibers[f.number / 32 * 32 + lane]; }
    void new_round(Warp& warp);
    unsigned random(unsigned below);
    [[noreturn]] void deadlock();

    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Warp> warps;
    Context main;
    int count;                // threads of a block
    unsigned runnable, turn;  // warps whose round is not over; the one that runs
    unsigned barriers;        // released so far
    unsigned long long seed;
};

inline Worker& worker() { return *(Worker*)current->block; }

inline unsigned Worker::random(unsigned below) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((seed >> 32) * below >> 32);
}

inline void Worker::new_round(Warp& warp) {
    warp.step = 0;
    warp.start = seed ? random(32) : 0;
    warp.stride = seed ? random(16) * 2 + 1 : 1;
}

inline void Worker::start(unsigned long long block) {
    const TileryHostLaunch& r = launch->request;
    number = block;
    index = {(unsigned)(block % grid.x), (unsigned)(block / grid.x % grid.y), (unsigned)(block / grid.x / grid.y)};
    seed = r.seed ? (r.seed * 0x9e3779b97f4a7c15ull ^ block * 0xbf58476d1ce4e5b9ull) | 1 : 0;
    barriers = turn = 0;
    // NaN in every float format.
    for (unsigned i = 0; i < r.shared_bytes; i++) shared[i] = (char)(i % 2 ? 0xff : 0xcb);
#ifdef TILERY_HOST_CHECK
    shadow.start(shared, r.shared_bytes);
#endif
    while ((int)fibers.size() < count) fibers.push_back(std::make_unique<Fiber>());
    for (int i = 0; i < count; i++) {
        Fiber& f = *fibers[i];
        f.index = {i % threads.x, i / threads.x % threads.y, i / threads.x / threads.y};
        f.lane = i % 32, f.block = this, f.state = State::READY, f.number = i;
        f.copies.clear(), f.groups.clear();
        f.context.prepare([] { worker().enter(); });
    }
    warps.assign((count + 31) / 32, Warp());
    for (size_t i = 0; i < warps.size(); i++) {
        int lanes = count - 32 * (int)i;
        warps[i].present = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
        new_round(warps[i]);
    }
    runnable = (unsigned)((1ull << warps.size()) - 1);
}

inline void Worker::run(Launch& of) {
    const TileryHostLaunch& r = of.request;
    launch = &of;
    threads = {r.block[0], r.block[1], r.block[2]};
    grid = {r.grid[0], r.grid[1], r.grid[2]};
    count = (int)(threads.x * threads.y * threads.z);
    void* memory;
    if (posix_memalign(&memory, 128, r.shared_bytes + !r.shared_bytes)) throw std::bad_alloc();
    std::unique_ptr<char, void (*)(void*)> owner(shared = (char*)memory, free);
    main.adopt();
    unsigned long long blocks = (unsigned long long)grid.x * grid.y * grid.z, block;
    while (!of.failed && (block = of.next++) < blocks) {
        start(block);
        go(main, pick());
    }
}

// The first that runs on a fiber.
inline void Worker::enter() {
    Fiber& f = self();
    f.context.arrive();
    const TileryHostLaunch& r = launch->request;
    if (r.stop_thread == f.number && r.stop_block == (long long)number) tilery_host_stop(r.stop_block, r.stop_thread);
    launch->enter(r.kernel, launch->params);
    f.state = State::DONE;
    go(f.context, pick());
}

inline void Worker::go(Context& from, Fiber* next) {
    current = next;
    from.switch_to(next ? next->context : main);
}

// Lets others run until this fiber is ready and its turn comes.
inline void Worker::yield() {
    Fiber& f = self();
    Fiber* next = pick();
    if (next != &f) go(f.context, next);
}

// The next fiber to run; null at the end of the block.
inline Fiber* Worker::pick() {
    for (;;) {
        Warp& warp = warps[turn];
        while (warp.step < 32) {
            int i = (int)(turn * 32 + (warp.start + warp.step++ * warp.stride) % 32);
            if (i < count && fibers[i]->state == State::READY) return fibers[i].get();
        }
        runnable &= ~(1u << turn);
        if (!runnable && !release_barrier()) return nullptr;
        change_warp();
    }
}

inline void Worker::change_warp() {
    unsigned left = runnable;
    for (unsigned skip = seed ? random((unsigned)__builtin_popcount(left)) : 0; skip; skip--) left &= left - 1;
    turn = (unsigned)__builtin_ctz(left);
}

// Nobody is ready. False at the end of the block. A GPU's barrier would not wait for threads that have returned; here that is an error.
inline bool Worker::release_barrier() {
    int gone = 0, arrived = 0;
    for (int i = 0; i < count; i++) {
        gone += fibers[i]->state == State::DONE;
        arrived += fibers[i]->state == State::BARRIER && same(fibers[i]->where, fibers[0]->where);
    }
    if (gone == count) return false;
    if (arrived < count) deadlock();
    barriers++;
    for (int i = 0; i < count; i++) fibers[i]->state = State::READY;
    for (Warp& warp : warps) new_round(warp);
    runnable = (unsigned)((1ull << warps.size()) - 1);
    return true;
}

inline void Worker::synchronize(Where where) {
    Fiber& f = self();
    f.state = State::BARRIER, f.op = "__syncthreads", f.mask = 0, f.where = where;
    yield();
}

inline void Worker::meet(const char* op, unsigned mask, void* arguments, void (*execute)(void* const*), Where where) {
    Fiber& f = self();
    Warp& warp = warps[f.number / 32];
    unsigned wanted = mask & warp.present, size = (unsigned)__builtin_popcount(wanted);
    if (!(wanted >> f.lane & 1)) host::fail("calls %s (%s) with mask %08x, not for lane %d", op, place(where).text, mask, f.lane);
    f.state = State::MEETING, f.op = op, f.mask = mask, f.arguments = arguments, f.where = where;
    void* lanes[32] = {};
    if (++warp.waiting >= size && gather(f, wanted, lanes)) {
        if (execute) execute(lanes);
        else warp.syncs++;
        warp.waiting -= size;
        for (int i = 0; i < 32; i++)
            if (wanted >> i & 1) peer(f, i).state = State::READY;
        new_round(warp);
        if (seed && !random(4)) change_warp();
    }
    yield();
}

// The arguments of all wanted lanes, if they wait for the same as the last of them.
inline bool Worker::gather(Fiber& last, unsigned wanted, void** lanes) {
    for (int i = 0; i < 32; i++) {
        if (!(wanted >> i & 1)) continue;
        Fiber& f = peer(last, i);
        if (f.state != State::MEETING || f.op != last.op || f.mask != last.mask || !same(f.where, last.where)) return false;
        lanes[i] = f.arguments;
    }
    return true;
}

inline void Worker::copy_async(const Copy& copy, Where where) {
    if ((size_t)copy.to % copy.bytes || (size_t)copy.from % copy.bytes)
        host::fail("cp.async of %d bytes (%s) to %p from %p: misaligned", copy.bytes, place(where).text, (void*)copy.to, (void*)copy.from);
#ifdef TILERY_HOST_CHECK
    if (copy.inside) check_global(copy.from, copy.bytes, Access::READ, where);
    shadow.write(actor(), copy.to, copy.bytes, true, where);
#endif
    self().copies.push_back(copy);
}

// Makes the copies of all groups but the last `pending`.
inline void Worker::finish_copies(size_t pending) {
    Fiber& f = self();
    if (f.groups.size() <= pending) return;
    size_t groups = f.groups.size() - pending, done = f.groups[groups - 1];
    for (size_t i = 0; i < done; i++) {
        const Copy& copy = f.copies[i];
        if (copy.inside) memcpy(copy.to, copy.from, copy.bytes);
        else memset(copy.to, 0, copy.bytes);
#ifdef TILERY_HOST_CHECK
        shadow.arrive(actor(), copy.to, copy.bytes);
#endif
    }
    f.copies.erase(f.copies.begin(), f.copies.begin() + done);
    f.groups.erase(f.groups.begin(), f.groups.begin() + groups);
    for (size_t& end : f.groups) end -= done;
}

inline void Worker::fail(const char* who, const char* text) {
    char message[1500];
    snprintf(message, sizeof message, ", block (%u, %u, %u)%s: %s", index.x, index.y, index.z, who, text);
    launch->report(message);
    go(self().context, nullptr);
    __builtin_unreachable();
}

inline void Worker::deadlock() {
    char text[1200] = "deadlock";
    std::vector<bool> told(count);
    for (int i = 0; i < count; i++) {
        if (told[i]) continue;
        const Fiber& f = *fibers[i];
        bool gone = f.state == State::DONE;
        int threads = 0;
        for (int j = i; j < count; j++) {
            const Fiber& other = *fibers[j];
            bool alike = other.state == f.state && (gone || (other.op == f.op && other.mask == f.mask && same(other.where, f.where)));
            if (alike) told[j] = true, threads++;
        }
        char doing[200] = "have returned";
        if (!gone) snprintf(doing, sizeof doing, "wait at %s (%s)", f.op, place(f.where).text);
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s %d threads (from %d on) %s", i ? ";" : ":", threads, i, doing);
    }
    std::vector<bool>().swap(told);
    fail("", text);
}

}  // namespace host
