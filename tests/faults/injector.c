/* Faults for a real process: preloaded, it makes calls on files under one folder fail, stop half way, take long or hang, and moves
 * the wall clock. A file mapped by the process and by its test says what is to happen, so that a fault is armed while the process
 * runs. Processes that it starts are left alone; those that it forks are not.
 *
 *   cc -shared -fPIC -O1 -o injector.so injector.c -ldl
 *   INJECTOR_CONTROL=FILE LD_PRELOAD=./injector.so COMMAND
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, MAKE = 4, ALLOCATE = 8, NAME = 16, CUT = 32 }; /* kinds of calls; MAKE: of files and folders */
enum { NOTHING = 0, FAIL = 1, HALVE = 2, DELAY = 3, HANG = 4 };

/* The layout is known to tests/faults/injection.py too. */
struct control {
    uint64_t calls;    /* counted so far */
    uint64_t at;       /* the call that begins a fault, from 1 */
    uint64_t length;   /* so many calls have it */
    uint64_t period;   /* it comes again after so many calls, or never (0) */
    uint64_t struck;   /* calls that had it */
    uint64_t struck_ns; /* CLOCK_MONOTONIC, of the last one */
    int64_t clock_ns;  /* added to the wall clock */
    uint32_t counted;  /* kinds of calls that count */
    uint32_t stricken; /* kinds of calls that have the fault: the first at or behind `at` begins it */
    uint32_t fault;
    int32_t error;     /* errno of FAIL */
    uint32_t delay_us; /* of DELAY */
    uint32_t kind;     /* of the call struck last */
    char folder[1024];
    char spared[1024]; /* a folder in it whose files are let alone; may be empty */
    char path[1024]; /* of the call struck last */
};

static volatile struct control *control;
static uint64_t left; /* calls of the fault under way */
static uint64_t next; /* where the next one begins; 0: `at` was not looked at yet */
static uint64_t seen_at;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("INJECTOR_CONTROL");
    unsetenv("LD_PRELOAD");
    if (path == NULL)
        return;
    int file = open(path, O_RDWR | O_CLOEXEC);
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        perror("injector");
        _exit(127);
    }
    close(file);
    control = mapped;
}

static int begins(const char *path, volatile const char *folder) {
    size_t length = strlen((const char *)folder);
    return length > 0 && strncmp(path, (const char *)folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int watched(const char *path) {
    return control != NULL && begins(path, control->folder) && !begins(path, control->spared);
}

/* Count a call; say which fault it has. */
static int strike(uint32_t kind, const char *path) {
    if (!watched(path) || !((control->counted | control->stricken) & kind))
        return NOTHING;
    uint64_t call = control->calls;
    if (control->counted & kind)
        call = __atomic_add_fetch(&control->calls, 1, __ATOMIC_SEQ_CST);
    if (control->fault == NOTHING || control->at == 0)
        return NOTHING;
    if (seen_at != control->at) { /* armed anew */
        seen_at = next = control->at;
        left = 0;
    }
    if (!(control->stricken & kind))
        return NOTHING;
    if (left == 0) {
        if (next == 0 || call < next)
            return NOTHING;
        left = control->length;
        if (control->period == 0)
            next = 0;
        else
            while (next <= call)
                next += control->period;
    }
    left--;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    control->struck_ns = (uint64_t)now.tv_sec * 1000000000u + now.tv_nsec;
    control->kind = kind;
    strncpy((char *)control->path, path, sizeof control->path - 1);
    control->struck++;
    if (control->fault == DELAY)
        usleep(control->delay_us);
    while (control->fault == HANG)
        usleep(1000);
    return control->fault;
}

static int strike_file(uint32_t kind, int file) {
    char link[64], path[PATH_MAX];
    if (control == NULL)
        return NOTHING;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return NOTHING;
    path[length] = 0;
    int kept = errno;
    int fault = strike(kind, path);
    errno = kept;
    return fault;
}

#define REAL(name, result, ...)                            \
    static result (*real)(__VA_ARGS__);                    \
    if (real == NULL)                                      \
        real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
#define FAILS(fault)               \
    if ((fault) == FAIL) {         \
        errno = control->error;    \
        return -1;                 \
    }

static size_t shortened(int fault, size_t length) { return fault == HALVE && length > 1 ? length / 2 : length; }

ssize_t write(int file, const void *data, size_t length) {
    REAL("write", ssize_t, int, const void *, size_t);
    int fault = strike_file(WRITE, file);
    FAILS(fault);
    return real(file, data, shortened(fault, length));
}

ssize_t pwrite(int file, const void *data, size_t length, off_t offset) {
    REAL("pwrite", ssize_t, int, const void *, size_t, off_t);
    int fault = strike_file(WRITE, file);
    FAILS(fault);
    return real(file, data, shortened(fault, length), offset);
}

ssize_t pwrite64(int file, const void *data, size_t length, off64_t offset) {
    REAL("pwrite64", ssize_t, int, const void *, size_t, off64_t);
    int fault = strike_file(WRITE, file);
    FAILS(fault);
    return real(file, data, shortened(fault, length), offset);
}

int fsync(int file) {
    REAL("fsync", int, int);
    FAILS(strike_file(SYNC, file));
    return real(file);
}

int fdatasync(int file) {
    REAL("fdatasync", int, int);
    FAILS(strike_file(SYNC, file));
    return real(file);
}

int posix_fallocate(int file, off_t offset, off_t length) {
    REAL("posix_fallocate", int, int, off_t, off_t);
    return strike_file(ALLOCATE, file) == FAIL ? control->error : real(file, offset, length);
}

int posix_fallocate64(int file, off64_t offset, off64_t length) {
    REAL("posix_fallocate64", int, int, off64_t, off64_t);
    return strike_file(ALLOCATE, file) == FAIL ? control->error : real(file, offset, length);
}

int ftruncate(int file, off_t size) {
    REAL("ftruncate", int, int, off_t);
    FAILS(strike_file(CUT, file));
    return real(file, size);
}

int ftruncate64(int file, off64_t size) {
    REAL("ftruncate64", int, int, off64_t);
    FAILS(strike_file(CUT, file));
    return real(file, size);
}

static int makes(const char *path, int flags) { return (flags & O_CREAT) && access(path, F_OK) != 0; }

int open(const char *path, int flags, ...) {
    REAL("open", int, const char *, int, ...);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (control != NULL && makes(path, flags))
        FAILS(strike(MAKE, path));
    return real(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    REAL("open64", int, const char *, int, ...);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (control != NULL && makes(path, flags))
        FAILS(strike(MAKE, path));
    return real(path, flags, mode);
}

int mkdir(const char *path, mode_t mode) {
    REAL("mkdir", int, const char *, mode_t);
    if (control != NULL && access(path, F_OK) != 0)
        FAILS(strike(MAKE, path));
    return real(path, mode);
}

int rename(const char *from, const char *to) {
    REAL("rename", int, const char *, const char *);
    FAILS(strike(NAME, to));
    return real(from, to);
}

int unlink(const char *path) {
    REAL("unlink", int, const char *);
    FAILS(strike(NAME, path));
    return real(path);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL("clock_gettime", int, clockid_t, struct timespec *);
    int result = real(clock, now);
    if (result == 0 && control != NULL && control->clock_ns != 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t moved = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + control->clock_ns;
        now->tv_sec = moved / 1000000000;
        now->tv_nsec = moved % 1000000000;
    }
    return result;
}

time_t time(time_t *stored) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (stored != NULL)
        *stored = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
