/* A wall clock under a test's control. Preloaded into a server, it reads the time from the file named in
 * FAKECLOCK, mapped into memory: 8 bytes, Unix microseconds, 0 for the real time. The monotonic clock, by which
 * servers pace themselves, runs on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
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
