/* Preloaded by faults.py: lets one call that changes a file fail, as a full or broken disk would.

   fault_arm(folder, at, kind, sticky) counts the calls under `folder` from 1; call number `at` fails.
   kind is an errno, or -1 for a write of half of its bytes; if sticky, all later calls fail, too.
   fault_count() is the number of calls so far. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[4096];
static int at, kind, sticky, count;

void fault_arm(const char *where, int which, int what, int stays) {
    snprintf(folder, sizeof folder, "%s", where);
    at = which, kind = what, sticky = stays, count = 0;
}

int fault_count(void) { return count; }

static int is_under(const char *path) {
    size_t length = strlen(folder);
    return length && path && strncmp(path, folder, length) == 0;
}

static int is_open_under(int descriptor) {
    char name[64], path[4096];
    if (!folder[0])
        return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return is_under(path);
}

/* Whether this call fails; a call that cannot be short (kind -1) does not. */
static int fails(void) {
    int number = __sync_add_and_fetch(&count, 1);
    if (kind < 0 || !(number == at || (sticky && at && number > at)))
        return 0;
    errno = kind;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPENS(name, parameters, arguments, path)                                                   \
    int name parameters {                                                                          \
        mode_t mode = 0;                                                                           \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                                     \
            va_list list;                                                                          \
            va_start(list, flags);                                                                 \
            mode = va_arg(list, mode_t);                                                           \
            va_end(list);                                                                          \
        }                                                                                          \
        if ((flags & (O_CREAT | O_TRUNC)) && is_under(path) && fails())                            \
            return -1;                                                                             \
        return REAL(name) arguments;                                                               \
    }

OPENS(open, (const char *path, int flags, ...), (path, flags, mode), path)
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode), path)
OPENS(openat, (int in, const char *path, int flags, ...), (in, path, flags, mode), path)
OPENS(openat64, (int in, const char *path, int flags, ...), (in, path, flags, mode), path)

ssize_t write(int descriptor, const void *bytes, size_t size) {
    if (is_open_under(descriptor)) {
        if (fails())
            return -1;
        if (kind < 0 && count == at && size > 1)
            size /= 2;
    }
    return REAL(write)(descriptor, bytes, size);
}

#define ON_A_FILE(name, type, parameters, arguments)                                               \
    type name parameters {                                                                         \
        if (is_open_under(descriptor) && fails())                                                  \
            return -1;                                                                             \
        return REAL(name) arguments;                                                               \
    }

ON_A_FILE(pwrite64, ssize_t, (int descriptor, const void *b, size_t n, off64_t o), (descriptor, b, n, o))
ON_A_FILE(writev, ssize_t, (int descriptor, const struct iovec *v, int n), (descriptor, v, n))
ON_A_FILE(fsync, int, (int descriptor), (descriptor))
ON_A_FILE(fdatasync, int, (int descriptor), (descriptor))
ON_A_FILE(ftruncate64, int, (int descriptor, off64_t size), (descriptor, size))

#define ON_A_NAME(name, parameters, arguments, path)                                               \
    int name parameters {                                                                          \
        if (is_under(path) && fails())                                                             \
            return -1;                                                                             \
        return REAL(name) arguments;                                                               \
    }

ON_A_NAME(mkdir, (const char *path, mode_t mode), (path, mode), path)
ON_A_NAME(rename, (const char *from, const char *to), (from, to), to)
ON_A_NAME(renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), to)
ON_A_NAME(renameat2, (int a, const char *from, int b, const char *to, unsigned f), (a, from, b, to, f), to)
ON_A_NAME(link, (const char *from, const char *to), (from, to), to)
