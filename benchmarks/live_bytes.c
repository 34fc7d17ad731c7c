// Counts the bytes in live blocks of malloc and its kin, for LD_PRELOAD; blocks under LEAST bytes are not counted.
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

enum { LEAST = 16384 };

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static atomic_long live, peak;

static void *made(void *block) {
  size_t size = block ? malloc_usable_size(block) : 0;
  if (size >= LEAST) {
    long now = atomic_fetch_add(&live, (long)size) + (long)size, before = atomic_load(&peak);
    while (now > before && !atomic_compare_exchange_weak(&peak, &before, now)) {}
  }
  return block;
}

static void gone(void *block) {
  size_t size = block ? malloc_usable_size(block) : 0;
  if (size >= LEAST) atomic_fetch_sub(&live, (long)size);
}

void *malloc(size_t size) { return made(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return made(__libc_calloc(count, size)); }
void *memalign(size_t alignment, size_t size) { return made(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return made(__libc_memalign(alignment, size)); }
int posix_memalign(void **block, size_t alignment, size_t size) {
  *block = made(__libc_memalign(alignment, size));
  return *block ? 0 : ENOMEM;
}
void *realloc(void *block, size_t size) {
  gone(block);
  return made(__libc_realloc(block, size));
}
void free(void *block) {
  gone(block);
  __libc_free(block);
}

long live_bytes(void) { return atomic_load(&live); }
long peak_bytes(void) { return atomic_load(&peak); }
void reset_peak(void) { atomic_store(&peak, atomic_load(&live)); }
