/* Which ways a run took, in the compiled modules and in Python, as counters in one map.

Preloaded, so that modules built with -fsanitize-coverage=trace-pc find __sanitizer_cov_trace_pc here. Python's lines
come through PyEval_SetTrace. An entry of the map is a pair of places that followed each other. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAP_BITS 18
#define MAP_SIZE (1u << MAP_BITS)

static uint8_t map[MAP_SIZE];
static uint8_t seen[MAP_SIZE];
static uintptr_t before_c, before_python;

static inline void count(uintptr_t *before, uintptr_t place)
{
    uint32_t entry = (uint32_t)(((place ^ (*before >> 1)) * 0x9E3779B97F4A7C15ull) >> (64 - MAP_BITS));
    if (map[entry] != 255)
        map[entry]++;
    *before = place;
}

void __sanitizer_cov_trace_pc(void)
{
    count(&before_c, (uintptr_t)__builtin_return_address(0));
}

/* A function's place in Python is its code object's address, which stays for as long as the process lives. */
static int on_event(PyObject *Py_UNUSED(self), PyFrameObject *frame, int what, PyObject *Py_UNUSED(arg))
{
    if (what == PyTrace_LINE || what == PyTrace_CALL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        count(&before_python, ((uintptr_t)code << 16) ^ (uintptr_t)PyFrame_GetLasti(frame));
        Py_DECREF(code);
    }
    return 0;
}

void coverage_trace_python(int on)
{
    PyEval_SetTrace(on ? on_event : NULL, NULL);
}

void coverage_reset(void)
{
    memset(map, 0, sizeof map);
    before_c = before_python = 0;
}

/* How often, roughly: 1, 2, 3, 4-7, 8-15, 16-31, 32-127, more. */
static inline uint8_t bucket(uint8_t n)
{
    return n < 4 ? (uint8_t)(1u << n >> 1) : n < 8 ? 8 : n < 16 ? 16 : n < 32 ? 32 : n < 128 ? 64 : 128;
}

/* How much of the last run had not been seen before; 2 and more: pairs of places, 1: only other numbers of times. */
int coverage_news(void)
{
    int pairs = 0, times = 0;
    for (uint32_t word = 0; word < MAP_SIZE; word += 8) {
        uint64_t some;
        memcpy(&some, map + word, 8);
        if (!some)
            continue;
        for (uint32_t i = word; i < word + 8; i++) {
            uint8_t is = map[i] ? bucket(map[i]) : 0;
            if (is & ~seen[i]) {
                if (seen[i])
                    times = 1;
                else
                    pairs++;
                seen[i] |= is;
            }
        }
    }
    return pairs ? pairs + 1 : times;
}

int coverage_edges(void)
{
    int n = 0;
    for (uint32_t i = 0; i < MAP_SIZE; i++)
        n += seen[i] != 0;
    return n;
}
