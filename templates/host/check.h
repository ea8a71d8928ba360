// What TILERY_HOST_CHECK watches: who touched each byte of a block's shared memory last, and where global accesses go.
#pragma once
#include <stdio.h>

#include <vector>

#include "cuda.h"
#include "launch.h"

namespace host {

// A thread, and how often its block and its warp have synchronised so far.
struct Actor {
    int thread;
    unsigned barriers, syncs;
};

class Shadow {
public:
    void start(const char* first, size_t size) {
        base = first;
        bytes.assign(size, Byte());
    }

    void read(const Actor& by, const void* p, int size, Where where) {
        for (size_t at = locate("reads", p, size, where), end = at + size; at < end; at++) {
            Byte& byte = bytes[at];
            if (byte.coming) refuse("reads", at, where, "before the wait for the cp.async that fills it", &byte.written);
            if (byte.written.thread == NOBODY) refuse("reads", at, where, "which nobody has written");
            if (!ordered(byte.written, by)) refuse("race: reads", at, where, "with no barrier since it was written", &byte.written);
            bool alone = byte.seen.thread == NOBODY || ordered(byte.seen, by);
            int warp = alone || byte.seen.warp == by.thread / 32 ? by.thread / 32 : MANY;
            byte.seen = {alone ? by.thread : MANY, warp, by.barriers, by.syncs, where};
        }
    }

    // `coming`: by a cp.async, which arrives at its wait.
    void write(const Actor& by, const void* p, int size, bool coming, Where where) {
        for (size_t at = locate("writes", p, size, where), end = at + size; at < end; at++) {
            Byte& byte = bytes[at];
            if (byte.coming) refuse("writes", at, where, "before the wait for the cp.async that fills it", &byte.written);
            if (!ordered(byte.written, by)) refuse("race: writes", at, where, "with no barrier since it was written", &byte.written);
            if (!ordered(byte.seen, by)) refuse("race: writes", at, where, "with no barrier since it was read", &byte.seen);
            byte = {touch(by, where), Touch(), coming};
        }
    }

    // A copy is there, for the thread that waited for it.
    void arrive(const Actor& by, const void* p, int size) {
        for (size_t at = (const char*)p - base, end = at + size; at < end; at++)
            bytes[at] = {touch(by, bytes[at].written.where), Touch(), false};
    }

private:
    static constexpr int NOBODY = -1, MANY = -2;
    struct Touch {
        int thread = NOBODY, warp = NOBODY;
        unsigned barriers = 0, syncs = 0;
        Where where = {};
    };
    struct Byte {
        Touch written, seen;  // seen: by those that nothing has synchronised since
        bool coming = false;
    };

    static Touch touch(const Actor& by, Where where) { return {by.thread, by.thread / 32, by.barriers, by.syncs, where}; }

    static bool ordered(const Touch& before, const Actor& now) {
        if (before.thread == NOBODY || before.thread == now.thread || before.barriers < now.barriers) return true;
        return before.warp == now.thread / 32 && before.syncs < now.syncs;
    }

    [[noreturn]] static void refuse(const char* does, size_t at, Where where, const char* why, const Touch* other = nullptr) {
        char by[160] = "";
        if (other && other->thread >= 0) snprintf(by, sizeof by, " by thread %d at %s", other->thread, place(other->where).text);
        else if (other) snprintf(by, sizeof by, " by several threads at %s", place(other->where).text);
        fail("%s byte %zu of shared memory at %s, %s%s", does, at, place(where).text, why, by);
    }

    size_t locate(const char* does, const void* p, int size, Where where) const {
        long long at = (const char*)p - base, last = (long long)bytes.size() - size;
        if (at >= 0 && at <= last && (size_t)p % size == 0) return (size_t)at;
        Place here = place(where);
        if (at >= 0 && at <= last) fail("%s %d bytes from byte %lld of shared memory at %s: misaligned", does, size, at, here.text);
        const char* text = "%s %d bytes from byte %lld of shared memory at %s, outside of its %zu bytes";
        fail(text, does, size, at, here.text, bytes.size());
    }

    const char* base = nullptr;
    std::vector<Byte> bytes;
};

// A global access must lie in one of the launch's ranges, and no element may be written twice.
class Ranges {
public:
    static void check(const TileryHostLaunch& launch, long long writer, const void* p, int size, Access access, Where where) {
        if (!launch.range_count) return;
        bool reads = access == Access::READ;
        const char *does = reads ? "reads" : "writes", *at = (const char*)p;
        if ((size_t)p % size) fail("%s %d bytes of global memory at %s: misaligned, at %p", does, size, place(where).text, p);
        const TileryHostRange *found = nullptr, *nearest = launch.ranges;
        for (const TileryHostRange* r = launch.ranges; r < launch.ranges + launch.range_count; r++) {
            if (distance(*r, at) < distance(*nearest, at)) nearest = r;
            if (at >= r->base && at + size <= r->base + r->bytes && (reads || r->writable)) found = r;
        }
        if (!found) outside(*nearest, does, at, size, where);
        if (!reads && found->writers) record(*found, writer, at, size, access, where);
    }

private:
    static long long distance(const TileryHostRange& r, const char* at) {
        return at < r.base ? r.base - at : at >= r.base + r.bytes ? at - (r.base + r.bytes) + 1 : 0;
    }

    [[noreturn]] static void outside(const TileryHostRange& r, const char* does, const char* at, int size, Where where) {
        const char* end = r.base + r.bytes;
        Place here = place(where);
        if (at < r.base) fail("%s %d bytes at %s, from %lld bytes before %s on", does, size, here.text, (long long)(r.base - at), r.name);
        if (at + size <= end) fail("%s %d bytes of %s at %s, which is an input", does, size, r.name, here.text);
        fail("%s %d bytes at %s, up to %lld bytes after the end of %s", does, size, here.text, (long long)(at + size - end), r.name);
    }

    static void record(const TileryHostRange& r, long long writer, const char* at, int size, Access access, Where where) {
        long long first = (at - r.base) / r.element, last = (at - r.base + size - 1) / r.element;
        for (long long e = first; e <= last; e++) {
            long long before = __atomic_exchange_n(r.writers + e, writer, __ATOMIC_RELAXED);
            if (before < 0 || access == Access::UPDATE) continue;
            const char* text = "writes element %lld of %s at %s a second time: thread %lld of block %lld has written it";
            fail(text, e, r.name, place(where).text, before % 1024, before / 1024);
        }
    }
};

}  // namespace host
