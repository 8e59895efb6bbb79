/* Sending OpenCL commands without Python in between: one launch with its arguments, or a recording in a loop.
 *
 * An optional accelerator of native.py, loaded through ctypes: it needs neither Python's nor OpenCL's headers, and takes
 * the driver's entry points from its caller. The structs mirror those of native.py and of runtime/capture.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define API __stdcall
#define EXPORT __declspec(dllexport)
#else
#define API
#define EXPORT __attribute__((visibility("default")))
#endif

typedef int(API *kernel_fn)(void *, void *, unsigned, const size_t *, const size_t *, const size_t *, unsigned,
                            const void *, void **);
typedef int(API *copy_fn)(void *, void *, void *, size_t, size_t, size_t, unsigned, const void *, void *);
typedef int(API *fill_fn)(void *, void *, const void *, size_t, size_t, size_t, unsigned, const void *, void *);
typedef int(API *write_fn)(void *, void *, unsigned, size_t, size_t, const void *, unsigned, const void *, void *);
typedef int(API *argument_fn)(void *, unsigned, size_t, const void *);

typedef struct {
    kernel_fn kernel;
    copy_fn copy;
    fill_fn fill;
    write_fn write;
    argument_fn argument;
} driver;

/* -- one launch -- */

typedef struct {
    void *kernel;
    const driver *driver;
    unsigned count;        /* arguments */
    unsigned known;        /* whether `sent` holds what the kernel object holds */
    const uint32_t *sizes; /* bytes of each argument; the highest bit marks memory */
    unsigned char *sent;   /* the arguments as set last */
} call;

#define MEMORY 0x80000000u

/* Set the arguments that changed. Memory is set each time: a new buffer may have the address of one that is gone. */
static int set_arguments(call *c, const unsigned char *value)
{
    unsigned char *sent = c->sent;
    for (unsigned i = 0; i < c->count; i++) {
        size_t bytes = c->sizes[i] & ~MEMORY, slot = (bytes + 7) & ~(size_t)7;
        if (!c->known || c->sizes[i] & MEMORY || memcmp(sent, value, bytes) != 0) {
            int status = c->driver->argument(c->kernel, i, bytes, value);
            if (status != 0) {
                c->known = 0;
                return status;
            }
            memcpy(sent, value, bytes);
        }
        value += slot;
        sent += slot;
    }
    c->known = 1;
    return 0;
}

/* `packed`: number of axes, three global and three local sizes (a local size of 0: the driver chooses), address of the
 * call, queue, then the arguments; each in a multiple of eight bytes. Returns the driver's status. */
EXPORT int netcl_launch_event(const unsigned char *packed, void **event)
{
    uint64_t head[9];
    size_t global[3], local[3];
    memcpy(head, packed, sizeof head);
    for (int k = 0; k < 3; k++) {
        global[k] = (size_t)head[1 + k];
        local[k] = (size_t)head[4 + k];
    }
    call *c = (call *)(uintptr_t)head[7];
    int status = set_arguments(c, packed + sizeof head);
    if (status != 0)
        return status;
    return c->driver->kernel((void *)(uintptr_t)head[8], c->kernel, (unsigned)head[0], NULL, global,
                             local[0] ? local : NULL, 0, NULL, event);
}

/* The same without an event, which is cheaper. */
EXPORT int netcl_launch(const unsigned char *packed)
{
    return netcl_launch_event(packed, NULL);
}

/* -- a recording -- */

typedef struct {
    int kind;         /* 0 kernel, 1 copy, 2 fill, 3 write */
    unsigned dims;    /* kernel: number of axes; fill: bytes of the pattern */
    void *object;     /* kernel, or the buffer written to */
    void *other;      /* copy: the buffer read; fill, write: host memory */
    size_t start[3];  /* kernel: global offset; else offset in `object`, offset in `other`, bytes */
    size_t global[3];
    size_t local[3];  /* all 0: the driver chooses */
} record;

typedef struct {
    void *kernel;
    const uint64_t *word; /* what it holds now: the bytes of a number, or the address of memory */
    unsigned index, bytes;
    uint64_t known;       /* whether `sent` is what the kernel object holds */
    uint64_t sent;
} changing;

typedef struct {
    void *queue;
    const driver *driver;
    changing *arguments; /* set where they differ from what was sent last, then come the commands */
    const record *records;
    int argument_count, count;
    int failed;          /* index of the command that failed; below 0: -1 - index of the argument */
} batch;

/* Send a recording. Returns 0, or the driver's error. */
EXPORT int netcl_send(batch *b)
{
    const driver *d = b->driver;
    void *queue = b->queue;
    for (int i = 0; i < b->argument_count; i++) {
        changing *a = b->arguments + i;
        uint64_t value = *a->word;
        if (a->known && a->sent == value)
            continue;
        int status = d->argument(a->kernel, a->index, a->bytes, a->word);
        a->known = status == 0;
        a->sent = value;
        if (status != 0) {
            b->failed = -1 - i;
            return status;
        }
    }
    for (int i = 0; i < b->count; i++) {
        const record *r = b->records + i;
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
            b->failed = i;
            return status;
        }
    }
    return 0;
}

#if defined(_WIN32)
EXPORT void *PyInit__send(void) { return NULL; } /* the Windows linker asks for it; nothing imports this file */
#endif
