/* Replay of recorded OpenCL commands: one loop, no Python between two launches.
 *
 * An optional accelerator of replay.py, loaded through ctypes: it needs neither Python's nor OpenCL's headers, and takes
 * the driver's entry points from its caller. The struct mirrors replay.Record.
 */
#include <stddef.h>

#if defined(_WIN32)
#define API __stdcall
#define EXPORT __declspec(dllexport)
#else
#define API
#define EXPORT __attribute__((visibility("default")))
#endif

typedef struct {
    int kind;         /* 0 kernel, 1 copy, 2 fill, 3 write */
    unsigned dims;    /* kernel: number of axes; fill: bytes of the pattern */
    void *object;     /* kernel, or the buffer written to */
    void *other;      /* copy: the buffer read; fill, write: host memory */
    size_t start[3];  /* kernel: global offset; else offset in `object`, offset in `other`, bytes */
    size_t global[3];
    size_t local[3];  /* all 0: the driver chooses */
} record;

typedef int(API *kernel_fn)(void *, void *, unsigned, const size_t *, const size_t *, const size_t *, unsigned,
                            const void *, void *);
typedef int(API *copy_fn)(void *, void *, void *, size_t, size_t, size_t, unsigned, const void *, void *);
typedef int(API *fill_fn)(void *, void *, const void *, size_t, size_t, size_t, unsigned, const void *, void *);
typedef int(API *write_fn)(void *, void *, unsigned, size_t, size_t, const void *, unsigned, const void *, void *);

typedef struct {
    kernel_fn kernel;
    copy_fn copy;
    fill_fn fill;
    write_fn write;
} driver;

/* Send `count` commands to `queue`. Returns 0, or the driver's error with the index of its command in `failed`. */
EXPORT int netcl_replay(void *queue, const record *records, int count, const driver *d, int *failed)
{
    for (int i = 0; i < count; i++) {
        const record *r = records + i;
        const size_t *s = r->start;
        int status;
        switch (r->kind) {
        case 0:
            status = d->kernel(queue, r->object, r->dims, s, r->global, r->local[0] ? r->local : NULL, 0, NULL, NULL);
            break;
        case 1:
            status = d->copy(queue, r->other, r->object, s[1], s[0], s[2], 0, NULL, NULL);
            break;
        case 2:
            status = d->fill(queue, r->object, r->other, r->dims, s[0], s[2], 0, NULL, NULL);
            break;
        default:
            status = d->write(queue, r->object, 0, s[0], s[2], r->other, 0, NULL, NULL);
        }
        if (status != 0) {
            *failed = i;
            return status;
        }
    }
    return 0;
}

#if defined(_WIN32)
EXPORT void *PyInit__replay(void) { return NULL; } /* the Windows linker asks for it; nothing imports this file */
#endif
