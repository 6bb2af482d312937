/* Records what a process does to the files of one folder, as the disk would be told of it.
 *
 * Loaded into a process with LD_PRELOAD (DYLD_INSERT_LIBRARIES has no part in this: Linux only).
 * RECORDED_FOLDER names the folder, RECORDED_TRACE the file that the trace is appended to. Every
 * write, change of size, sync and rename in the folder becomes one record, in the order in which
 * they took effect: a record is written under a lock, of all recorded processes, that is held
 * across the call itself. Writes to the descriptor 1000 are markers of the program's own.
 *
 *     kind (1 byte) | flags (1) | file (2) | process (4) | offset (8) | length (8) | bytes
 *
 * Kinds: O opened (its size as offset; bytes: its path), W write, T change of size, S fsync or fdatasync, M msync,
 * R rename (bytes: old path, NUL, new path), U unlink (path), D sync of a folder (path), K marker.
 * Flag 1: the descriptor was opened with O_SYNC or O_DSYNC; flag 2: the file was created.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define DESCRIPTORS 4096
#define FILES 1024
#define MARKER 1000

enum { SYNCED = 1, CREATED = 2 };

struct record {
    char kind;
    uint8_t flags;
    uint16_t file; /* counted from 1 by each process */
    uint32_t process;
    uint64_t offset;
    uint64_t length;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static int trace = -1;
static char folder[PATH_MAX];
static size_t folder_length;
/* Of each descriptor: which file it is, counted from 1, and how it was opened. */
static uint16_t file_of[DESCRIPTORS];
static uint8_t flags_of[DESCRIPTORS];
static char *paths[FILES];
static uint16_t known;

static int (*real_open)(const char *, int, ...);
static int (*real_open64)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_openat64)(int, const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_pwrite64)(int, const void *, size_t, off64_t);
static ssize_t (*real_pwritev)(int, const struct iovec *, int, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_ftruncate64)(int, off64_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_msync)(void *, size_t, int);
static int (*real_rename)(const char *, const char *);
static int (*real_renameat)(int, const char *, int, const char *);
static int (*real_unlink)(const char *);
static int (*real_unlinkat)(int, const char *, int);
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static void *(*real_mmap64)(void *, size_t, int, int, int, off64_t);

#define FIND(name) real_##name = dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    const char *where = getenv("RECORDED_FOLDER"), *to = getenv("RECORDED_TRACE");
    FIND(open); FIND(open64); FIND(openat); FIND(openat64); FIND(close); FIND(write);
    FIND(writev); FIND(pwrite); FIND(pwrite64); FIND(pwritev); FIND(ftruncate);
    FIND(ftruncate64); FIND(fsync); FIND(fdatasync); FIND(msync); FIND(rename);
    FIND(renameat); FIND(unlink); FIND(unlinkat); FIND(mmap); FIND(mmap64);
    if (!where || !to)
        return;
    snprintf(folder, sizeof folder, "%s/", where);
    folder_length = strlen(folder);
    trace = real_open(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (trace < 0) {
        perror("recorder: the trace cannot be opened");
        _exit(70);
    }
    /* Out of the way of the program's own descriptors. */
    int high = fcntl(trace, F_DUPFD_CLOEXEC, MARKER + 1);
    real_close(trace);
    trace = high;
}

static void lock(void) {
    pthread_mutex_lock(&guard);
    while (flock(trace, LOCK_EX) != 0 && errno == EINTR)
        ;
}

static void unlock(void) {
    int before = errno;
    flock(trace, LOCK_UN);
    pthread_mutex_unlock(&guard);
    errno = before;
}

/* A trace with a gap would prove nothing: better no process than one. */
static void put(const void *bytes, size_t length) {
    const char *at = bytes;
    while (length > 0) {
        ssize_t done = real_write(trace, at, length);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            perror("recorder: the trace cannot be written");
            _exit(70);
        }
        at += done;
        length -= (size_t)done;
    }
}

static void note(char kind, uint8_t flags, uint16_t file, uint64_t offset, uint64_t length,
                 const void *bytes, size_t size) {
    struct record one = {kind, flags, file, (uint32_t)getpid(), offset, length};
    int before = errno;
    put(&one, sizeof one);
    if (size)
        put(bytes, size);
    errno = before;
}

static void note_path(char kind, const char *path) {
    note(kind, 0, 0, 0, strlen(path), path, strlen(path));
}

static int is_recorded(int fd) {
    return trace >= 0 && fd >= 0 && fd < DESCRIPTORS && file_of[fd] != 0;
}

static const char *within(const char *path) {
    return trace >= 0 && path && strncmp(path, folder, folder_length) == 0
               ? path + folder_length : NULL;
}

/* The number of a path; one that was renamed or removed is forgotten, and may come again. */
static uint16_t number_of(const char *name) {
    for (uint16_t i = 1; i <= known; i++)
        if (paths[i] && strcmp(paths[i], name) == 0)
            return i;
    if (known + 1 >= FILES) {
        fprintf(stderr, "recorder: too many files\n");
        _exit(70);
    }
    paths[++known] = strdup(name);
    return known;
}

static void forget(const char *name) {
    for (uint16_t i = 1; i <= known; i++)
        if (paths[i] && strcmp(paths[i], name) == 0) {
            free(paths[i]);
            paths[i] = NULL;
        }
}

static void opened(int fd, const char *path, int how, int was_there) {
    const char *name = within(path);
    struct stat about;
    if (!name || fd < 0)
        return;
    if (fd >= DESCRIPTORS || fstat(fd, &about) != 0) {
        fprintf(stderr, "recorder: a descriptor that cannot be followed\n");
        _exit(70);
    }
    uint8_t flags = (how & (O_DSYNC | O_SYNC) ? SYNCED : 0) | (was_there ? 0 : CREATED);
    if (S_ISDIR(about.st_mode))
        name = *name ? name : ".";
    else if (!S_ISREG(about.st_mode))
        return;
    file_of[fd] = number_of(name);
    flags_of[fd] = (flags & SYNCED) | (S_ISDIR(about.st_mode) ? 4 : 0);
    if (!S_ISDIR(about.st_mode))
        note('O', flags, file_of[fd], (uint64_t)about.st_size, strlen(name), name, strlen(name));
    if (how & O_TRUNC)
        note('T', flags_of[fd], file_of[fd], 0, 0, NULL, 0);
}

#define MODE(how) \
    mode_t mode = 0; \
    if ((how) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, how); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

#define OPEN(path, how, call) \
    if (!within(path)) \
        return call; \
    lock(); \
    int was_there = access(path, F_OK) == 0; \
    int fd = call; \
    opened(fd, path, how, was_there); \
    unlock(); \
    return fd;

int open(const char *path, int how, ...) {
    MODE(how)
    OPEN(path, how, real_open(path, how, mode))
}

int open64(const char *path, int how, ...) {
    MODE(how)
    OPEN(path, how, real_open64(path, how, mode))
}

int openat(int at, const char *path, int how, ...) {
    MODE(how)
    OPEN(path, how, real_openat(at, path, how, mode))
}

int openat64(int at, const char *path, int how, ...) {
    MODE(how)
    OPEN(path, how, real_openat64(at, path, how, mode))
}

int close(int fd) {
    if (!is_recorded(fd))
        return real_close(fd);
    lock();
    file_of[fd] = 0;
    int result = real_close(fd);
    unlock();
    return result;
}

/* The call, and its record if it wrote something; all under the lock. */
#define WRITE(fd, offset, data, call) \
    if (!is_recorded(fd)) \
        return call; \
    lock(); \
    off64_t at = (offset); \
    ssize_t done = call; \
    if (done > 0) \
        note('W', flags_of[fd], file_of[fd], (uint64_t)at, (uint64_t)done, data, (size_t)done); \
    unlock(); \
    return done;

static off64_t position(int fd) {
    return fcntl(fd, F_GETFL) & O_APPEND ? lseek64(fd, 0, SEEK_END) : lseek64(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *data, size_t size) {
    if (fd == MARKER && trace >= 0) {
        lock();
        note('K', 0, 0, 0, size, data, size);
        unlock();
        return (ssize_t)size;
    }
    WRITE(fd, position(fd), data, real_write(fd, data, size))
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    WRITE(fd, offset, data, real_pwrite(fd, data, size, offset))
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    WRITE(fd, offset, data, real_pwrite64(fd, data, size, offset))
}

static ssize_t write_parts(int fd, const struct iovec *parts, int count, off64_t offset,
                           ssize_t done) {
    struct record one = {'W', flags_of[fd], file_of[fd], (uint32_t)getpid(), (uint64_t)offset,
                         (uint64_t)done};
    int before = errno;
    put(&one, sizeof one);
    size_t left = (size_t)done;
    for (int i = 0; i < count && left > 0; i++) {
        size_t size = parts[i].iov_len < left ? parts[i].iov_len : left;
        put(parts[i].iov_base, size);
        left -= size;
    }
    errno = before;
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (!is_recorded(fd))
        return real_writev(fd, parts, count);
    lock();
    off64_t at = position(fd);
    ssize_t done = real_writev(fd, parts, count);
    if (done > 0)
        write_parts(fd, parts, count, at, done);
    unlock();
    return done;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    if (!is_recorded(fd))
        return real_pwritev(fd, parts, count, offset);
    lock();
    ssize_t done = real_pwritev(fd, parts, count, offset);
    if (done > 0)
        write_parts(fd, parts, count, offset, done);
    unlock();
    return done;
}

#define SIMPLE(fd, kind, size, call) \
    if (!is_recorded(fd)) \
        return call; \
    lock(); \
    int result = call; \
    if (result == 0) { \
        if (flags_of[fd] & 4) \
            note_path('D', paths[file_of[fd]]); \
        else \
            note(kind, flags_of[fd], file_of[fd], (uint64_t)(size), 0, NULL, 0); \
    } \
    unlock(); \
    return result;

int ftruncate(int fd, off_t size) { SIMPLE(fd, 'T', size, real_ftruncate(fd, size)) }
int ftruncate64(int fd, off64_t size) { SIMPLE(fd, 'T', size, real_ftruncate64(fd, size)) }
int fsync(int fd) { SIMPLE(fd, 'S', 0, real_fsync(fd)) }
int fdatasync(int fd) { SIMPLE(fd, 'S', 0, real_fdatasync(fd)) }

/* Writes through a mapping would pass unseen; LMDB's data file is only read through its own. The
 * three that are written so are memory that running processes share, made anew without them. */
static int is_shared_memory(const char *name) {
    const char *end = strrchr(name, '/');
    end = end ? end + 1 : name;
    return strcmp(end, "lock.mdb") == 0 || strcmp(end, "safe-point") == 0
           || strcmp(end, "leases") == 0;
}

static void refuse_shared_writes(int fd, int protection, int flags) {
    if (!is_recorded(fd) || !(flags & MAP_SHARED) || !(protection & PROT_WRITE))
        return;
    if (!is_shared_memory(paths[file_of[fd]])) {
        fprintf(stderr, "recorder: %s is written through a mapping\n", paths[file_of[fd]]);
        _exit(70);
    }
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    refuse_shared_writes(fd, protection, flags);
    return real_mmap(at, size, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset) {
    refuse_shared_writes(fd, protection, flags);
    return real_mmap64(at, size, protection, flags, fd, offset);
}

int msync(void *at, size_t size, int flags) {
    int result = real_msync(at, size, flags);
    if (trace >= 0 && result == 0) {
        lock();
        note('M', 0, 0, size, 0, NULL, 0);
        unlock();
    }
    return result;
}

static void renamed(const char *from, const char *to) {
    const char *old = within(from), *new = within(to);
    if (old && new) {
        char both[2 * PATH_MAX];
        size_t first = strlen(old) + 1, second = strlen(new);
        memcpy(both, old, first);
        memcpy(both + first, new, second);
        note('R', 0, 0, 0, first + second, both, first + second);
        forget(new);
        for (uint16_t i = 1; i <= known; i++)
            if (paths[i] && strcmp(paths[i], old) == 0) {
                free(paths[i]);
                paths[i] = strdup(new);
            }
    }
}

#define RENAME(from, to, call) \
    if (!within(from) || !within(to)) \
        return call; \
    lock(); \
    int result = call; \
    if (result == 0) \
        renamed(from, to); \
    unlock(); \
    return result;

int rename(const char *from, const char *to) { RENAME(from, to, real_rename(from, to)) }

int renameat(int old, const char *from, int new, const char *to) {
    RENAME(from, to, real_renameat(old, from, new, to))
}

static void unlinked(const char *path) {
    const char *name = within(path);
    if (name) {
        note_path('U', name);
        forget(name);
    }
}

#define UNLINK(path, call) \
    if (!within(path)) \
        return call; \
    lock(); \
    int result = call; \
    if (result == 0) \
        unlinked(path); \
    unlock(); \
    return result;

int unlink(const char *path) { UNLINK(path, real_unlink(path)) }
int unlinkat(int at, const char *path, int flags) { UNLINK(path, real_unlinkat(at, path, flags)) }
