// How the runtime starts a kernel on the host device, from C.
#pragma once
#include <stddef.h>

// Memory that a kernel may touch. TILERY_HOST_CHECK refuses everything else.
struct TileryHostRange {
    const char *name, *base;
    size_t bytes;
    long long* writers;  // null, or for each element the number of the block * 1024 + that of the thread that wrote it; -1 before
    int element;         // bytes of one
    int writable;
};

struct TileryHostLaunch {
    size_t size;  // of this struct, so that a caller of another version is refused
    const char* name;
    const void* kernel;  // a function that takes one struct by value
    const void* params;
    size_t params_bytes;
    unsigned grid[3], block[3];
    unsigned shared_bytes, workers;  // CPU threads; 0: as many as there are
    unsigned long long seed;         // of the order of threads; 0: in order
    const TileryHostRange* ranges;
    size_t range_count;
    long long stop_block, stop_thread;  // this thread calls tilery_host_stop() as it starts; -1: none
    char* error;
    size_t error_bytes;
};

enum TileryHostStatus { TILERY_HOST_DONE = 0, TILERY_HOST_FAULT = 1, TILERY_HOST_REFUSED = 2 };

// Returns a TileryHostStatus; what is not DONE leaves a text in `error`. Outputs of a launch that failed are undefined.
extern "C" int tilery_host_run(const TileryHostLaunch* launch);

// Does nothing: a place for a breakpoint, which shows who has come.
extern "C" void tilery_host_stop(long long block, long long thread);

namespace host {

struct Where;
struct Place { char text[80]; };
Place place(Where where);  // "gemm_mma.cuh:214"

}  // namespace host
