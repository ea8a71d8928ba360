// Stacks and the switch between them.
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>

#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "the host device switches fibers on x86-64 only: see docs/decisions/0010-host-device.md"
#endif

namespace host {

// Saves what a call must keep, at *from on its stack, and goes on where `to` was saved.
extern "C" void tilery_host_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.type tilery_host_switch, @function
tilery_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size tilery_host_switch, . - tilery_host_switch
)");

// Where something runs: a fiber, on a stack of its own, or the CPU thread that all of a block's fibers share.
class Context {
public:
    Context() = default;
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;
    ~Context() {
        if (owned) munmap(owned, GUARD + SIZE);
    }

    // The next switch to this context calls entry(), which never returns.
    void prepare(void (*entry)()) {
        if (!owned) allocate();
#ifdef __SANITIZE_ADDRESS__
        ASAN_UNPOISON_MEMORY_REGION(bottom, SIZE);  // a fiber that a fault left behind poisoned it
        fake = nullptr;
#endif
        void** top = (void**)(bottom + SIZE);
        *--top = nullptr;  // where entry() would return to
        *--top = (void*)entry;
        for (int i = 0; i < 6; i++) *--top = nullptr;
        pointer = top;
    }

    // This context is the CPU thread that calls.
    void adopt() {
#ifdef __SANITIZE_ADDRESS__
        pthread_attr_t attributes;
        void* low;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &low, &bytes);
        pthread_attr_destroy(&attributes);
        bottom = (char*)low;
#endif
    }

    // From this context, which goes on when another switches back to it.
    void switch_to(Context& to) {
#ifdef __SANITIZE_ADDRESS__
        __sanitizer_start_switch_fiber(&fake, to.bottom, to.bytes);
#endif
        tilery_host_switch(&pointer, to.pointer);
        arrive();
    }

    // To be called first on a fresh stack.
    void arrive() {
#ifdef __SANITIZE_ADDRESS__
        __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    }

private:
    static constexpr size_t SIZE = 256 << 10, GUARD = 4096;

    void allocate() {
        void* low = mmap(nullptr, GUARD + SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (low == MAP_FAILED) throw std::bad_alloc();
        owned = (char*)low;
        if (mprotect(owned, GUARD, PROT_NONE)) throw std::bad_alloc();
        bottom = owned + GUARD;
    }

    char *owned = nullptr, *bottom = nullptr;
    void* pointer = nullptr;
#ifdef __SANITIZE_ADDRESS__
    size_t bytes = SIZE;
    void* fake = nullptr;
#endif
};

}  // namespace host
