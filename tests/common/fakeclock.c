/* A wall clock under a test's control. Preloaded into a server, it reads the time from the file named in
 * FAKECLOCK, mapped into memory: 8 bytes, Unix microseconds, 0 for the real time. The monotonic clock, by which
 * servers pace themselves, runs on.
 *
 * Valkey from 9.1 on asks for the wall clock only once in a millisecond and counts on with the processor's own
 * counter, which no library can replace. It does so only if it can read from /proc/cpuinfo that the counter is
 * steady, so that file is hidden. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t real_time = 0;

static int64_t set_time_us(void) {
    static const volatile int64_t *mapped;
    if (mapped == NULL) {
        mapped = &real_time;
        const char *path = getenv("FAKECLOCK");
        int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            void *memory = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
            close(file);
            if (memory != MAP_FAILED) mapped = memory;
        }
    }
    return *mapped;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int64_t us = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ? set_time_us() : 0;
    if (us == 0) return (int)syscall(SYS_clock_gettime, clock, time);
    time->tv_sec = us / 1000000;
    time->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *time, void *zone) {
    (void)zone;
    struct timespec precise;
    int status = clock_gettime(CLOCK_REALTIME, &precise);
    time->tv_sec = precise.tv_sec;
    time->tv_usec = precise.tv_nsec / 1000;
    return status;
}

time_t time(time_t *out) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (out != NULL) *out = precise.tv_sec;
    return precise.tv_sec;
}

typedef FILE *(*open_function)(const char *, const char *);

static FILE *open_unless_hidden(const char *function, const char *path, const char *mode) {
    if (strcmp(path, "/proc/cpuinfo") == 0) {
        errno = ENOENT;
        return NULL;
    }
    open_function open_file = (open_function)dlsym(RTLD_NEXT, function);
    return open_file(path, mode);
}

FILE *fopen(const char *path, const char *mode) { return open_unless_hidden("fopen", path, mode); }

FILE *fopen64(const char *path, const char *mode) { return open_unless_hidden("fopen64", path, mode); }
