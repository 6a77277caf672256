/* An allocator that aligns to 8 bytes and never to 16. Servers that keep the size of a block in front of it, as those
 * built with musl do, hand modules such blocks. Preloaded into a server that uses glibc's malloc, it shifts each block
 * by 8 bytes. Blocks of aligned_alloc and its relatives are left as they are, which their addresses tell. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define SHIFT 8

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void __libc_free(void *block);

static void *shifted(char *block) { return block == NULL ? NULL : block + SHIFT; }

static int is_shifted(void *block) { return ((uintptr_t)block & 15) == SHIFT; }

void *malloc(size_t size) {
    if (size > PTRDIFF_MAX - SHIFT) {
        errno = ENOMEM;
        return NULL;
    }
    return shifted(__libc_malloc(size + SHIFT));
}

void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX - SHIFT) {
        errno = ENOMEM;
        return NULL;
    }
    return shifted(__libc_calloc(1, bytes + SHIFT));
}

void *realloc(void *block, size_t size) {
    if (block == NULL) return malloc(size);
    if (!is_shifted(block)) return __libc_realloc(block, size);
    if (size > PTRDIFF_MAX - SHIFT) {
        errno = ENOMEM;
        return NULL;
    }
    return shifted(__libc_realloc((char *)block - SHIFT, size + SHIFT));
}

void free(void *block) { __libc_free(is_shifted(block) ? (char *)block - SHIFT : block); }

size_t malloc_usable_size(void *block) {
    static size_t (*usable_size)(void *);
    if (block == NULL) return 0;
    if (usable_size == NULL) usable_size = (size_t(*)(void *))dlsym(RTLD_NEXT, "malloc_usable_size");
    return is_shifted(block) ? usable_size((char *)block - SHIFT) - SHIFT : usable_size(block);
}
