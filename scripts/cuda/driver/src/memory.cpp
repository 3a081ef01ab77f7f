// Device memory. Each allocation has pages of its own between pages that are not mapped, so that an access beyond them faults.
// It ends at the last 256 bytes of its pages; the bytes that are left before and behind are checked when it is freed.
#include "driver.hpp"
#include <cstring>
#include <map>
#include <sys/mman.h>

namespace cuda_on_cpu {
namespace {

constexpr size_t PAGE = 4096, ALIGNMENT = 256;
/// What stays unmapped between allocations.
constexpr size_t GUARD = 256 << 10;
/// Nothing else maps memory there.
constexpr uintptr_t FIRST = 0x200000000000, END = 0x500000000000;

struct Allocation {
    size_t size, whole;
    uintptr_t pages;
    uint64_t number;
    enum { RESERVED, USABLE, FREED } state;
    bool freed_by_host;
};
/// By their start; freed ones stay for messages. Never destroyed: they are checked when the program ends.
auto &allocations = *new std::map<uintptr_t, Allocation>;
auto &freed = *new std::deque<uintptr_t>;
constexpr size_t REMEMBERED = 20000;
uintptr_t next_page = FIRST + (1 << 20);
uint64_t made = 0;
/// The bytes of allocations that are not freed in the order of their streams.
size_t in_use = 0;

/// The allocation at an address or before it.
std::map<uintptr_t, Allocation>::iterator before(uintptr_t at) {
    auto found = allocations.upper_bound(at);
    return found == allocations.begin() ? allocations.end() : std::prev(found);
}

void check_border(uintptr_t start, const Allocation &of) {
    const auto check = [&](uintptr_t from, uintptr_t to, const char *where) {
        for (uintptr_t at = from; at < to; at++)
            if (*reinterpret_cast<const unsigned char *>(at) != POISON)
                fail("something wrote %s allocation %llu of %zu bytes, %zu bytes %s", where,
                     static_cast<unsigned long long>(of.number), of.size, at < start ? start - at : at - (start + of.size),
                     at < start ? "before its start" : "past its end");
    };
    check(of.pages, start, "before");
    check(start + of.size, of.pages + of.whole, "past the end of");
}

} // namespace

size_t free_memory() { return ALL_MEMORY - in_use; }

uintptr_t reserve_memory(size_t size) {
    if (size > free_memory()) run_everything(); // frees may wait in the queues
    if (size > free_memory()) return 0;
    const size_t rounded = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, whole = (rounded + PAGE - 1) / PAGE * PAGE;
    if (next_page + whole + 2 * GUARD > END) return 0;
    const uintptr_t pages = next_page + GUARD;
    next_page = pages + whole;
    const uintptr_t start = pages + whole - rounded;
    allocations[start] = {size, whole, pages, ++made, Allocation::RESERVED, false};
    in_use += size;
    return start;
}

void make_usable(uintptr_t start) {
    Allocation &of = allocations.at(start);
    void *const at = reinterpret_cast<void *>(of.pages);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_POPULATE;
    if (mmap(at, of.whole, PROT_READ | PROT_WRITE, flags, -1, 0) != at)
        fail("no memory for an allocation of %zu bytes (%s)", of.size, strerror(errno));
    memset(at, POISON, of.whole);
    of.state = Allocation::USABLE;
}

void make_unusable(uintptr_t start, bool again) {
    Allocation &of = allocations.at(start);
    if (of.state != Allocation::USABLE) fail("allocation %llu is freed twice", static_cast<unsigned long long>(of.number));
    check_border(start, of);
    munmap(reinterpret_cast<void *>(of.pages), of.whole);
    of.state = Allocation::FREED;
    if (!again) forget_memory(start);
}

void forget_memory(uintptr_t start) {
    Allocation &of = allocations.at(start);
    if (of.state == Allocation::USABLE) return make_unusable(start);
    of.state = Allocation::FREED;
    of.freed_by_host = true;
    in_use -= of.size;
    freed.push_back(start);
    if (freed.size() > REMEMBERED) {
        allocations.erase(freed.front());
        freed.pop_front();
    }
}

bool starts_allocation(uintptr_t start, bool mark_freed) {
    const auto found = allocations.find(start);
    if (found == allocations.end() || found->second.freed_by_host) return false;
    if (mark_freed) found->second.freed_by_host = true;
    return true;
}

bool is_device(const void *at) {
    const auto address = reinterpret_cast<uintptr_t>(at);
    return address >= FIRST && address < END;
}

void check_device(const char *what, const void *pointer, size_t size) {
    const auto at = reinterpret_cast<uintptr_t>(pointer);
    if (!is_device(pointer)) fail("%s: %p is not device memory", what, pointer);
    const auto found = before(at);
    const bool inside = found != allocations.end() && at + size <= found->first + found->second.size;
    if (inside && found->second.state == Allocation::USABLE) return;
    fail("%s: %zu bytes at %p, %s", what, size, pointer, describe(at).c_str());
}

std::string describe(uintptr_t at) {
    if (at < FIRST || at >= END) return "which is not device memory";
    const auto found = before(at);
    char text[200];
    if (found == allocations.end()) {
        const size_t distance = allocations.empty() ? 0 : allocations.begin()->first - at;
        return std::to_string(distance) + " bytes before the start of allocation 1";
    }
    const auto &[start, of] = *found;
    const char *const state = of.state == Allocation::USABLE     ? ""
                              : of.state == Allocation::RESERVED ? " that is not allocated yet in the order of its stream"
                                                                 : " that has been freed";
    const auto next = std::next(found);
    if (at >= start + of.size && next != allocations.end() && next->first - at < at - start - of.size)
        snprintf(text, sizeof text, "%zu bytes before the start of allocation %llu of %zu bytes", next->first - at,
                 static_cast<unsigned long long>(next->second.number), next->second.size);
    else if (at < start + of.size)
        snprintf(text, sizeof text, "%zu bytes into allocation %llu of %zu bytes%s", at - start,
                 static_cast<unsigned long long>(of.number), of.size, state);
    else
        snprintf(text, sizeof text, "%zu bytes past the end of allocation %llu of %zu bytes%s", at - start - of.size,
                 static_cast<unsigned long long>(of.number), of.size, state);
    return text;
}

void check_all_borders() {
    for (const auto &[start, of] : allocations)
        if (of.state == Allocation::USABLE) check_border(start, of);
}

} // namespace cuda_on_cpu
