/* Faults in calls of the C library, for `shim_sweep.py`: LD_PRELOAD puts these functions before the C library's.

   One fault at a time: the k-th call of a name that concerns a path below a prefix. It fails and is not made (ERROR), is
   made and reports a failure all the same (DONE), or moves half of what it was asked for (SHORT); or before it the
   process is killed (KILL), or stops until another one lets it go on (STOP). `shim_arm` sets the fault, `shim_fired`
   says whether it was met, `shim_count` how often a call was made since. Nothing happens before `shim_arm`.
   `shim_without_exchange` makes renames with flags fail, as on FUSE and NFS. strace changes only calls of the kernel,
   and by their number; here they have paths. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

enum mode { OFF, ERROR, DONE, SHORT, KILL, STOP };

static char prefix[PATH_MAX];
static size_t prefix_length;
static char armed_name[32];
static long armed_k;
static int armed_errno, armed_mode, armed_always;
static atomic_int active, fired, without_exchange;

#define NAMES 64
static struct { const char *name; atomic_long calls; } counts[NAMES];
static atomic_int known;

void shim_arm(const char *name, const char *below, long k, int code, int mode, int always)
{
    snprintf(armed_name, sizeof armed_name, "%s", name);
    snprintf(prefix, sizeof prefix, "%s", below);
    prefix_length = strlen(prefix);
    armed_k = k, armed_errno = code, armed_mode = mode, armed_always = always;
    for (int i = 0; i < known; i++)
        counts[i].calls = 0;
    fired = 0;
    active = 1;
}

void shim_disarm(void) { active = 0; }
void shim_without_exchange(int yes) { without_exchange = yes; }
int shim_fired(void) { return fired; }

const char *shim_name(int i) { return i < known ? counts[i].name : NULL; }
long shim_count(int i) { return counts[i].calls; }

/* Return how a call of this name on this path must end; OFF for one that must not be disturbed. */
static int judged(const char *name, const char *path)
{
    if (strncmp(path, prefix, prefix_length) != 0 || (path[prefix_length] && path[prefix_length] != '/'))
        return OFF;
    int i = 0;
    while (i < known && strcmp(counts[i].name, name) != 0)
        i++;
    if (i == known) {
        if (known == NAMES)
            return OFF;
        counts[known++].name = name;
    }
    long k = ++counts[i].calls;
    if (armed_mode == OFF || strcmp(name, armed_name) != 0 || (armed_always ? k < armed_k : k != armed_k))
        return OFF;
    fired = 1;
    if (armed_mode == KILL || armed_mode == STOP) {
        raise(armed_mode == KILL ? SIGKILL : SIGSTOP);
        return OFF;
    }
    return armed_mode;
}

static ssize_t of_fd(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    path[n < 0 ? 0 : n] = 0;
    return n;
}

static int by_fd(const char *name, int fd)
{
    if (!active)
        return OFF;
    char path[PATH_MAX];
    int before = errno;
    int how = of_fd(fd, path) < 0 ? OFF : judged(name, path);
    errno = before;
    return how;
}

static int by_path(const char *name, int dir, const char *path)
{
    if (!active || path == NULL)
        return OFF;
    char full[2 * PATH_MAX];
    int before = errno;
    if (path[0] == '/')
        snprintf(full, sizeof full, "%s", path);
    else {
        char base[PATH_MAX];
        if (dir == AT_FDCWD ? getcwd(base, sizeof base) == NULL : of_fd(dir, base) < 0)
            return OFF;
        snprintf(full, sizeof full, path[0] ? "%s/%s" : "%s", base, path);
    }
    errno = before;
    return judged(name, full);
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (real == NULL) \
        real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* End a call that returns an int. */
#define END(how, call, failure) \
    do { \
        int how_ = (how); \
        if (how_ == ERROR) { \
            errno = armed_errno; \
            return failure; \
        } \
        __typeof__(call) result_ = (call); \
        if (how_ == DONE) { \
            errno = armed_errno; \
            return failure; \
        } \
        return result_; \
    } while (0)

#define HALF(how, size) ((how) == SHORT && (size) > 1 ? (size) / 2 : (size))

/* Opening */

#define OPEN(function) \
    int function(const char *path, int flags, ...) \
    { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        REAL(function); \
        int how = by_path(flags & O_CREAT ? "create" : "open", AT_FDCWD, path); \
        if (how == ERROR) { \
            errno = armed_errno; \
            return -1; \
        } \
        return real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(function) \
    int function(int dir, const char *path, int flags, ...) \
    { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        REAL(function); \
        int how = by_path(flags & O_CREAT ? "create" : "open", dir, path); \
        if (how == ERROR) { \
            errno = armed_errno; \
            return -1; \
        } \
        return real(dir, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

/* Reading and writing */

ssize_t read(int fd, void *buffer, size_t size)
{
    REAL(read);
    int how = by_fd("read", fd);
    END(how, real(fd, buffer, HALF(how, size)), -1);
}

ssize_t write(int fd, const void *buffer, size_t size)
{
    REAL(write);
    int how = by_fd("write", fd);
    END(how, real(fd, buffer, HALF(how, size)), -1);
}

#define PREAD(function) \
    ssize_t function(int fd, void *buffer, size_t size, off_t at) \
    { \
        REAL(function); \
        int how = by_fd("pread", fd); \
        END(how, real(fd, buffer, HALF(how, size), at), -1); \
    }
PREAD(pread)
PREAD(pread64)

#define PWRITE(function) \
    ssize_t function(int fd, const void *buffer, size_t size, off_t at) \
    { \
        REAL(function); \
        int how = by_fd("pwrite", fd); \
        END(how, real(fd, buffer, HALF(how, size), at), -1); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define PREADV(function) \
    ssize_t function(int fd, const struct iovec *parts, int count, off_t at) \
    { \
        REAL(function); \
        int how = by_fd("pread", fd); \
        if (how == SHORT && count == 1) { \
            struct iovec half = {parts[0].iov_base, HALF(how, parts[0].iov_len)}; \
            return real(fd, &half, 1, at); \
        } \
        END(how, real(fd, parts, count, at), -1); \
    }
PREADV(preadv)
PREADV(preadv64)

#define PREADV2(function) \
    ssize_t function(int fd, const struct iovec *parts, int count, off_t at, int flags) \
    { \
        REAL(function); \
        int how = by_fd("pread", fd); \
        if (how == SHORT && count == 1) { \
            struct iovec half = {parts[0].iov_base, HALF(how, parts[0].iov_len)}; \
            return real(fd, &half, 1, at, flags); \
        } \
        END(how, real(fd, parts, count, at, flags), -1); \
    }
PREADV2(preadv2)
PREADV2(preadv64v2)

#define MMAP(function) \
    void *function(void *address, size_t size, int protection, int flags, int fd, off_t at) \
    { \
        REAL(function); \
        if (fd >= 0 && by_fd("mmap", fd) == ERROR) { \
            errno = armed_errno; \
            return MAP_FAILED; \
        } \
        return real(address, size, protection, flags, fd, at); \
    }
MMAP(mmap)
MMAP(mmap64)

/* Files by their numbers. The kernel closes a file even when it reports an error. */

int close(int fd)
{
    REAL(close);
    int how = by_fd("close", fd);
    int result = real(fd);
    if (how != OFF) {
        errno = armed_errno;
        return -1;
    }
    return result;
}

#define BY_FD(function, label, parameters, arguments) \
    int function parameters \
    { \
        REAL(function); \
        int how = by_fd(label, fd); \
        END(how, real arguments, -1); \
    }
BY_FD(fsync, "fsync", (int fd), (fd))
BY_FD(fdatasync, "fsync", (int fd), (fd))
BY_FD(flock, "flock", (int fd, int operation), (fd, operation))
BY_FD(ftruncate, "ftruncate", (int fd, off_t size), (fd, size))
BY_FD(ftruncate64, "ftruncate", (int fd, off64_t size), (fd, size))
BY_FD(fstat, "fstat", (int fd, struct stat *into), (fd, into))
BY_FD(fstat64, "fstat", (int fd, struct stat64 *into), (fd, into))
BY_FD(fchmod, "chmod", (int fd, mode_t mode), (fd, mode))
BY_FD(fchown, "chown", (int fd, uid_t user, gid_t group), (fd, user, group))
BY_FD(futimens, "utime", (int fd, const struct timespec times[2]), (fd, times))
BY_FD(fsetxattr, "setxattr", (int fd, const char *name, const void *value, size_t size, int flags),
      (fd, name, value, size, flags))
BY_FD(fstatvfs, "statvfs", (int fd, struct statvfs *into), (fd, into))
BY_FD(fstatvfs64, "statvfs", (int fd, struct statvfs64 *into), (fd, into))

#define FALLOCATE(function) \
    int function(int fd, off_t at, off_t size) \
    { \
        REAL(function); \
        int how = by_fd("fallocate", fd); \
        return how == ERROR ? armed_errno : real(fd, at, size); \
    }
FALLOCATE(posix_fallocate)
FALLOCATE(posix_fallocate64)

/* Files by their names */

#define BY_PATH(function, label, parameters, arguments) \
    int function parameters \
    { \
        REAL(function); \
        int how = by_path(label, AT_FDCWD, path); \
        END(how, real arguments, -1); \
    }
BY_PATH(stat, "stat", (const char *path, struct stat *into), (path, into))
BY_PATH(stat64, "stat", (const char *path, struct stat64 *into), (path, into))
BY_PATH(lstat, "lstat", (const char *path, struct stat *into), (path, into))
BY_PATH(lstat64, "lstat", (const char *path, struct stat64 *into), (path, into))
BY_PATH(statvfs, "statvfs", (const char *path, struct statvfs *into), (path, into))
BY_PATH(statvfs64, "statvfs", (const char *path, struct statvfs64 *into), (path, into))
BY_PATH(access, "access", (const char *path, int mode), (path, mode))
BY_PATH(unlink, "unlink", (const char *path), (path))
BY_PATH(rmdir, "rmdir", (const char *path), (path))
BY_PATH(mkdir, "mkdir", (const char *path, mode_t mode), (path, mode))
BY_PATH(chmod, "chmod", (const char *path, mode_t mode), (path, mode))
BY_PATH(chown, "chown", (const char *path, uid_t user, gid_t group), (path, user, group))
BY_PATH(lchown, "chown", (const char *path, uid_t user, gid_t group), (path, user, group))
BY_PATH(rename, "rename", (const char *path, const char *target), (path, target))
BY_PATH(symlink, "symlink", (const char *target, const char *path), (target, path))
BY_PATH(link, "link", (const char *path, const char *target), (path, target))

ssize_t readlink(const char *restrict path, char *restrict into, size_t size)
{
    REAL(readlink);
    END(by_path("readlink", AT_FDCWD, path), real(path, into, size), -1);
}

ssize_t readlinkat(int dir, const char *restrict path, char *restrict into, size_t size)
{
    REAL(readlinkat);
    END(by_path("readlink", dir, path), real(dir, path, into, size), -1);
}

#define BY_DIR(function, label, parameters, arguments) \
    int function parameters \
    { \
        REAL(function); \
        int how = by_path(label, dir, path); \
        END(how, real arguments, -1); \
    }
BY_DIR(fstatat, flags & AT_SYMLINK_NOFOLLOW ? "lstat" : "stat",
       (int dir, const char *restrict path, struct stat *restrict into, int flags), (dir, path, into, flags))
BY_DIR(fstatat64, flags & AT_SYMLINK_NOFOLLOW ? "lstat" : "stat",
       (int dir, const char *restrict path, struct stat64 *restrict into, int flags), (dir, path, into, flags))
BY_DIR(faccessat, "access", (int dir, const char *path, int mode, int flags), (dir, path, mode, flags))
BY_DIR(unlinkat, flags & AT_REMOVEDIR ? "rmdir" : "unlink", (int dir, const char *path, int flags), (dir, path, flags))
BY_DIR(mkdirat, "mkdir", (int dir, const char *path, mode_t mode), (dir, path, mode))
BY_DIR(fchmodat, "chmod", (int dir, const char *path, mode_t mode, int flags), (dir, path, mode, flags))
BY_DIR(fchownat, "chown", (int dir, const char *path, uid_t user, gid_t group, int flags),
       (dir, path, user, group, flags))
BY_DIR(renameat, "rename", (int dir, const char *path, int other, const char *target), (dir, path, other, target))
BY_DIR(symlinkat, "symlink", (const char *target, int dir, const char *path), (target, dir, path))
BY_DIR(utimensat, "utime", (int dir, const char *path, const struct timespec times[2], int flags),
       (dir, path, times, flags))
BY_DIR(linkat, "link", (int dir, const char *path, int other, const char *target, int flags),
       (dir, path, other, target, flags))

int renameat2(int dir, const char *path, int other, const char *target, unsigned int flags)
{
    REAL(renameat2);
    if (flags && active && without_exchange) {
        errno = EINVAL;
        return -1;
    }
    END(by_path("rename", dir, path), real(dir, path, other, target, flags), -1);
}

/* Directories */

DIR *opendir(const char *path)
{
    REAL(opendir);
    if (by_path("opendir", AT_FDCWD, path) == ERROR) {
        errno = armed_errno;
        return NULL;
    }
    return real(path);
}

DIR *fdopendir(int fd)
{
    REAL(fdopendir);
    if (by_fd("opendir", fd) == ERROR) {
        errno = armed_errno;
        return NULL;
    }
    return real(fd);
}

#define READDIR(function, type) \
    type *function(DIR *directory) \
    { \
        REAL(function); \
        if (by_fd("readdir", dirfd(directory)) == ERROR) { \
            errno = armed_errno; \
            return NULL; \
        } \
        return real(directory); \
    }
READDIR(readdir, struct dirent)
READDIR(readdir64, struct dirent64)
