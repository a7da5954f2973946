/* The beginning of the one-file program, which is also an AppImage: it unpacks what follows it once, and starts it.

   The file is this program, linked statically, then a squashfs image compressed with zstd. installer/appimage.py fills
   in `record`: where the image begins, its size and sha256, and the version. The same layout serves any system whose
   executables may be followed by other bytes; only the magic of AppImages, at offset 8 of an ELF file, is Linux's own.

       CACHE/llama-appliance/unpacked/lock                   held while one start looks, unpacks, or deletes
       CACHE/llama-appliance/unpacked/VERSION-DIGEST/        the image's files; a program that runs from it shares a lock
       CACHE/llama-appliance/unpacked/new, old               half unpacked, half deleted: the next start deletes them

   A folder under its final name is whole: it was written beside, flushed to the disk, and renamed. Each start compares
   every entry's kind, size, time and mode with the image's directory, which takes milliseconds, and unpacks again if
   something differs, because programs that clean caches delete single files. The contents are trusted: their sum was
   checked while they were unpacked. Unpacking a version deletes the others, except for those that a program runs from.

   CACHE is $LLAMA_APPLIANCE_UNPACK_DIR, $XDG_CACHE_HOME or ~/.cache. Without a home that can be written to, the folder
   is /var/tmp/llama-appliance-UID. Programs are started from there, so it and every folder above it must belong to the
   user or to the system and be closed to others, or sticky. Then nobody else can put another folder in its place between
   the look and the start. */

#define _GNU_SOURCE
#include <squashfuse/squashfuse.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ftw.h>
#include <limits.h>
#include <sha2.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define NAME "llama-appliance"
#define VARIABLE "LLAMA_APPLIANCE_UNPACK_DIR"
#define EXTRACTED "squashfs-root"
#define MEBIBYTE (1 << 20)
#define REASON (PATH_MAX + 64)
#define ADVICE "name a folder of yours, which other users can neither write to nor replace, with " VARIABLE

/* `volatile`: the values are not those that the compiler sees. */
static const volatile struct {
    char magic[16], version[32], digest[72];
    uint64_t offset, size;
} record = {NAME "!", "", "", 0, 0};

static int image = -1;
static sqfs files;
static char self[PATH_MAX];
static const char *pattern;  // only what matches is unpacked; NULL: everything

/* The library's other decompressors. The image is zstd's, and lzo's licence is not for every program. */
int uncompress(void) { return -1; }
int lzma_stream_buffer_decode(void) { return -1; }
int LZ4_decompress_safe(void) { return -1; }
int lzo1x_decompress_safe(void) { return -1; }

static _Noreturn void end(int status, const char *format, ...) {
    va_list values;
    va_start(values, format);
    fputs("error: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    exit(status);
}

static _Noreturn void end_damaged(void) {
    end(1, "%s is damaged: copy or download it again", self);
}

/* ---- the image ---------------------------------------------------------------------------------------------------- */

static void open_image(void) {
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    image = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (length < 0 || image < 0)
        end(1, "cannot read this program itself: %s; /proc must be mounted", strerror(errno));
    if (sqfs_init(&files, image, record.offset) != SQFS_OK)
        end_damaged();
}

static void check_sum(void) {
    static uint8_t block[MEBIBYTE];
    char found[SHA256_DIGEST_STRING_LENGTH];
    SHA2_CTX sum;
    SHA256Init(&sum);
    for (uint64_t done = 0; done < record.size;) {
        size_t wanted = record.size - done < sizeof block ? record.size - done : sizeof block;
        ssize_t got = pread(image, block, wanted, record.offset + done);
        if (got <= 0)
            end_damaged();
        SHA256Update(&sum, block, got);
        done += got;
    }
    if (strcmp(SHA256End(&sum, found), (const char *)record.digest) != 0)
        end_damaged();
}

/* Call `visit` for every entry, a folder before what is in it, until it returns false. */
static bool each_entry(bool (*visit)(int folder, const char *path, sqfs_inode *inode), int folder) {
    sqfs_traverse walk;
    sqfs_err failed = sqfs_traverse_open(&walk, &files, sqfs_inode_root(&files));
    bool going = true;
    while (failed == SQFS_OK && going && sqfs_traverse_next(&walk, &failed)) {
        sqfs_inode inode;
        if (walk.dir_end)
            continue;
        if ((failed = sqfs_inode_get(&files, &inode, walk.entry.inode)) == SQFS_OK)
            going = visit(folder, walk.path, &inode);
    }
    sqfs_traverse_close(&walk);
    if (failed != SQFS_OK)
        end_damaged();
    return going;
}

static void read_target(sqfs_inode *inode, char target[PATH_MAX]) {
    size_t size = PATH_MAX;
    if (sqfs_readlink(&files, inode, target, &size) != SQFS_OK)
        end_damaged();
}

static bool is_there(int folder, const char *path, sqfs_inode *inode) {
    char target[PATH_MAX], found[PATH_MAX];
    struct stat there;
    if (fstatat(folder, path, &there, AT_SYMLINK_NOFOLLOW) != 0 || (there.st_mode & S_IFMT) != (inode->base.mode & S_IFMT))
        return false;
    if (S_ISLNK(there.st_mode)) {
        read_target(inode, target);
        ssize_t length = readlinkat(folder, path, found, sizeof found);
        return length == (ssize_t)strlen(target) && memcmp(target, found, length) == 0;
    }
    return !S_ISREG(there.st_mode) ||
           ((uint64_t)there.st_size == inode->xtra.reg.file_size && there.st_mtime == inode->base.mtime &&
            (there.st_mode & 0777) == (inode->base.mode & 0777));
}

static uint64_t wanted_bytes;

static bool add_bytes(int folder, const char *path, sqfs_inode *inode) {
    (void)folder, (void)path;
    wanted_bytes += 4096 + (S_ISREG(inode->base.mode) ? inode->xtra.reg.file_size : 0);
    return true;
}

static bool write_file(int folder, const char *path, sqfs_inode *inode) {
    static uint8_t block[MEBIBYTE];
    struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = inode->base.mtime}};
    int file = openat(folder, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
        return false;
    bool fine = true;
    for (uint64_t done = 0; fine && done < inode->xtra.reg.file_size;) {
        sqfs_off_t size = sizeof block;
        if (sqfs_read_range(&files, inode, done, &size, block) != SQFS_OK || size <= 0)
            end_damaged();
        for (sqfs_off_t at = 0; fine && at < size;) {
            ssize_t written = write(file, block + at, size - at);
            fine = written > 0;
            at += written;
        }
        done += size;
    }
    fine = fine && fchmod(file, inode->base.mode & 0777) == 0 && futimens(file, times) == 0;
    return close(file) == 0 && fine;
}

static bool unpack_entry(int folder, const char *path, sqfs_inode *inode) {
    char target[PATH_MAX];
    if (pattern != NULL) {
        if (fnmatch(pattern, path, 0) != 0)
            return true;
        snprintf(target, sizeof target, "%s", path);
        for (char *slash = strchr(target, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
            *slash = '\0';
            mkdirat(folder, target, 0755);  // what fails here fails below as well
            *slash = '/';
        }
    }
    if (S_ISDIR(inode->base.mode))
        return mkdirat(folder, path, 0755) == 0 || errno == EEXIST;
    if (S_ISREG(inode->base.mode))
        return write_file(folder, path, inode);
    if (!S_ISLNK(inode->base.mode))
        end_damaged();
    read_target(inode, target);
    return symlinkat(target, folder, path) == 0;
}

/* ---- the folder --------------------------------------------------------------------------------------------------- */

static int delete_entry(const char *path, const struct stat *there, int kind, struct FTW *where) {
    (void)there, (void)kind, (void)where;
    return remove(path);
}

static void delete_tree(const char *path) {
    if (nftw(path, delete_entry, 32, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        end(1, "cannot delete %s: %s", path, strerror(errno));
}

/* Return the folder's descriptor after making it and those above it, or -1 with `errno`. */
static int make_folder(char *path) {
    for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != NULL)
            *slash = '\0';
        int failed = mkdir(path, 0700) != 0 && errno != EEXIST ? errno : 0;
        if (slash != NULL)
            *slash = '/';
        if (failed != 0) {
            errno = failed;
            return -1;
        }
        if (slash == NULL)
            return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
}

/* Say through which part of a path without links another user could change what is there: the rule of
   appliance/platform/strangers.py, which says why it holds. `last`: it is the end of the path, so being sticky does not
   help it. The path is cut and mended meanwhile. */
static bool has_stranger(char *real, bool last, char reason[REASON]) {
    struct stat system, there;
    if (real[1] != '\0') {
        char *cut = strrchr(real, '/') + (strrchr(real, '/') == real), kept = *cut;
        *cut = '\0';
        bool found = has_stranger(real, false, reason);
        *cut = kept;
        if (found)
            return true;
    }
    if (stat("/", &system) != 0 || lstat(real, &there) != 0)
        return snprintf(reason, REASON, "%s: %s", real, strerror(errno)) >= 0;
    if (there.st_uid != system.st_uid && there.st_uid != geteuid())
        return snprintf(reason, REASON, "%s belongs to another user (number %u)", real, (unsigned)there.st_uid) >= 0;
    bool closed = there.st_gid == 0 || there.st_gid == geteuid();
    if ((there.st_mode & (closed ? S_IWOTH : S_IWOTH | S_IWGRP)) != 0 && (last || (there.st_mode & S_ISVTX) == 0))
        return snprintf(reason, REASON, "other users may write to %s", real) >= 0;
    return false;
}

/* Enter the folder and return its lock, held; or -1 with the reason. The path becomes one without links. */
static int enter(char path[PATH_MAX], char reason[REASON]) {
    char real[PATH_MAX], above[PATH_MAX];
    struct stat opened, there;
    int lock = -1, folder = -1;
    strcpy(above, path);
    while (realpath(above, real) == NULL && errno == ENOENT)
        *(strrchr(above, '/') + (strrchr(above, '/') == above)) = '\0';
    if (realpath(above, real) != NULL && has_stranger(real, false, reason))
        return -1;  // before anything is made there
    if ((folder = make_folder(path)) < 0 || realpath(path, real) == NULL || fstat(folder, &opened) != 0 ||
        lstat(real, &there) != 0)
        snprintf(reason, REASON, "%s", strerror(errno));
    else if (opened.st_dev != there.st_dev || opened.st_ino != there.st_ino)
        snprintf(reason, REASON, "another folder was put there");
    else if (!has_stranger(strcpy(path, real), true, reason) &&
             (fchdir(folder) != 0 ||
              (lock = openat(folder, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)) < 0))
        snprintf(reason, REASON, "%s", strerror(errno));
    close(folder);
    while (lock >= 0 && flock(lock, LOCK_EX) != 0)
        if (errno != EINTR)
            end(1, "cannot lock %s/lock: %s; name another folder with " VARIABLE, path, strerror(errno));
    return lock;
}

/* Find a folder for everything that is unpacked, make it the current one, and return its lock. */
static int enter_any(char path[PATH_MAX]) {
    char first[PATH_MAX] = "", reason[REASON] = "", first_reason[REASON];
    const char *named = getenv(VARIABLE), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (named != NULL && named[0] != '\0') {
        if (named[0] != '/')
            end(2, VARIABLE " is '%s'; it must be an absolute path", named);
        snprintf(first, sizeof first, "%s/" NAME "/unpacked", named);
    } else if (cache != NULL && cache[0] == '/')
        snprintf(first, sizeof first, "%s/" NAME "/unpacked", cache);
    else if (home != NULL && home[0] == '/')
        snprintf(first, sizeof first, "%s/.cache/" NAME "/unpacked", home);
    int lock = -1;
    if (first[0] != '\0' && (lock = enter(strcpy(path, first), reason)) >= 0)
        return lock;
    if (named != NULL && named[0] != '\0')
        end(1, "cannot unpack into %s: %s; " ADVICE, first, reason);
    strcpy(first_reason, reason);
    snprintf(path, PATH_MAX, "/var/tmp/" NAME "-%u", (unsigned)geteuid());
    if ((lock = enter(path, reason)) < 0)
        end(1, "cannot unpack into %s%s%s%s%s: %s; " ADVICE, first, first[0] ? ": " : "", first_reason,
            first[0] ? ", nor into " : "", path, reason);
    return lock;
}

static bool is_version(const char *name) {
    size_t length = strlen(name);
    return length > 17 && name[length - 17] == '-' && strspn(name + length - 16, "0123456789abcdef") == 16;
}

static void delete_others(const char *own) {
    DIR *folder = opendir(".");
    struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (!is_version(entry->d_name) || strcmp(entry->d_name, own) == 0)
            continue;
        int other = open(entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (other >= 0 && flock(other, LOCK_EX | LOCK_NB) == 0 && rename(entry->d_name, "old") == 0)
            delete_tree("old");
        close(other);
    }
    closedir(folder);
}

/* Unpack into `name` of the current folder, whose path is for messages. */
static void unpack(const char *name, const char *path) {
    struct statvfs disk;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "unpacking into %s/%s, once\n", path, name);
    check_sum();
    delete_tree("new");
    delete_tree("old");
    each_entry(add_bytes, -1);
    if (statvfs(".", &disk) == 0 && disk.f_bavail * disk.f_frsize < wanted_bytes)
        errno = ENOSPC;
    else if (mkdir("new", 0700) == 0) {
        int folder = open("new", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        bool fine = folder >= 0 && each_entry(unpack_entry, folder) && syncfs(folder) == 0;
        int failed = errno;
        close(folder);
        errno = failed;
        if (fine && (rename(name, "old") == 0 || errno == ENOENT) && rename("new", name) == 0) {
            delete_tree("old");
            delete_others(name);
            return;
        }
        failed = errno;
        delete_tree("new");
        errno = failed;
    }
    end(1, "cannot unpack into %s: %s; it takes %llu MB there. Make room, or name another folder with " VARIABLE, path,
        strerror(errno), (unsigned long long)(wanted_bytes / 1000000 + 1));
}

/* ---- the words of AppImages ---------------------------------------------------------------------------------------- */

static const char HELP[] =
    "This file unpacks itself once into the user's cache and starts from there. It needs no FUSE.\n\n"
    "  --appimage-extract [PATTERN]      unpack into ./" EXTRACTED " and start nothing\n"
    "  --appimage-extract-and-run ...    the same as a plain start\n"
    "  --appimage-offset                 print where the squashfs image begins\n"
    "  --appimage-version                print the version of the program\n"
    "  --appimage-help                   print this\n\n"
    VARIABLE "=DIR names the folder to unpack into. Other users may neither write to it nor replace it.\n";

static void extract(void) {
    check_sum();
    if (mkdir(EXTRACTED, 0755) != 0)
        end(1, "cannot make the folder " EXTRACTED " here: %s", strerror(errno));
    int folder = open(EXTRACTED, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 || !each_entry(unpack_entry, folder))
        end(1, "cannot unpack into " EXTRACTED ": %s", strerror(errno));
}

/* Answer an --appimage option; return false if the program is to be started after all. */
static bool answered(const char *option, const char *next) {
    if (strcmp(option, "--appimage-extract-and-run") == 0)
        return false;
    if (strcmp(option, "--appimage-extract") == 0)
        pattern = next, extract();
    else if (strcmp(option, "--appimage-offset") == 0)
        printf("%llu\n", (unsigned long long)record.offset);
    else if (strcmp(option, "--appimage-version") == 0)
        printf("%s\n", (const char *)record.version);
    else if (strcmp(option, "--appimage-help") == 0)
        fputs(HELP, stdout);
    else if (strcmp(option, "--appimage-mount") == 0)
        end(2, "this AppImage is not mounted but unpacked; --appimage-extract unpacks it here");
    else
        end(2, "there is no option %s; --appimage-help lists them", option);
    return true;
}

int main(int argc, char **argv) {
    char path[PATH_MAX], name[sizeof record.version + 18], program[2 * PATH_MAX];
    open_image();
    if (argc > 1 && strncmp(argv[1], "--appimage-", 11) == 0) {
        if (answered(argv[1], argv[2]))
            return 0;
        memmove(argv + 1, argv + 2, (argc - 1) * sizeof *argv);
    }
    int before = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int lock = enter_any(path);
    snprintf(name, sizeof name, "%s-%.16s", (const char *)record.version, (const char *)record.digest);
    int folder = open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0 || !each_entry(is_there, folder)) {
        close(folder);
        unpack(name, path);
        folder = open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    flock(folder, LOCK_SH);
    fcntl(folder, F_DUPFD, 3);  // the program keeps it open, and so the lock that says it runs from here
    close(lock);
    if ((before < 0 || fchdir(before) != 0) && chdir("/") != 0)  // a folder that this user may not enter, as after sudo
        end(1, "cannot leave %s: %s", path, strerror(errno));
    const char *called = argc > 0 ? basename(argv[0]) : "";
    bool stands_in = strncmp(called, "llama-server", 12) == 0;
    snprintf(program, sizeof program, "%s/%s/%s", path, name, stands_in ? NAME "/llama-server" : "AppRun");
    setenv("LLAMA_APPLIANCE_FILE", self, 1);
    argv[0] = program;
    execv(program, argv);
    end(1, "cannot start %s: %s%s", program, strerror(errno),
        errno == EACCES ? "; its disk may be mounted noexec. Then, on another disk, " ADVICE : "");
}
