/* Functions of the C library under the versions that glibc 2.27 has, so that what is built on a newer system runs on
 * older ones (PEP 600, manylinux_2_28). A program linked with this file calls these wrappers, which are its own and
 * hidden.
 *
 * glibc 2.34 gave the functions of libpthread and libdl new versions, 2.33 stat and fstat, 2.29 some of libm; the old
 * versions are kept for programs of before: https://sourceware.org/glibc/wiki/Release/2.34
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#ifndef __x86_64__
#error "versions of x86-64; other architectures began with others"
#endif

#define OLD(name, version) __asm__(".symver old_" #name "," #name "@" version)
#define HIDDEN __attribute__((visibility("hidden")))

OLD(dlopen, "GLIBC_2.2.5");
extern void* old_dlopen(const char*, int);
HIDDEN void* dlopen(const char* path, int flags) {
  return old_dlopen(path, flags);
}
OLD(dlsym, "GLIBC_2.2.5");
extern void* old_dlsym(void*, const char*);
HIDDEN void* dlsym(void* library, const char* name) {
  return old_dlsym(library, name);
}
OLD(dlclose, "GLIBC_2.2.5");
extern int old_dlclose(void*);
HIDDEN int dlclose(void* library) {
  return old_dlclose(library);
}
OLD(dlerror, "GLIBC_2.2.5");
extern char* old_dlerror(void);
HIDDEN char* dlerror(void) {
  return old_dlerror();
}
OLD(dladdr, "GLIBC_2.2.5");
extern int old_dladdr(const void*, Dl_info*);
HIDDEN int dladdr(const void* address, Dl_info* info) {
  return old_dladdr(address, info);
}

OLD(pthread_create, "GLIBC_2.2.5");
extern int old_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
HIDDEN int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  return old_pthread_create(thread, attributes, run, argument);
}
OLD(pthread_join, "GLIBC_2.2.5");
extern int old_pthread_join(pthread_t, void**);
HIDDEN int pthread_join(pthread_t thread, void** result) {
  return old_pthread_join(thread, result);
}
OLD(pthread_detach, "GLIBC_2.2.5");
extern int old_pthread_detach(pthread_t);
HIDDEN int pthread_detach(pthread_t thread) {
  return old_pthread_detach(thread);
}
OLD(pthread_once, "GLIBC_2.2.5");
extern int old_pthread_once(pthread_once_t*, void (*)(void));
HIDDEN int pthread_once(pthread_once_t* once, void (*run)(void)) {
  return old_pthread_once(once, run);
}
OLD(pthread_key_create, "GLIBC_2.2.5");
extern int old_pthread_key_create(pthread_key_t*, void (*)(void*));
HIDDEN int pthread_key_create(pthread_key_t* key, void (*end)(void*)) {
  return old_pthread_key_create(key, end);
}
HIDDEN int __pthread_key_create(pthread_key_t* key, void (*end)(void*)) {
  return old_pthread_key_create(key, end);
}
OLD(pthread_key_delete, "GLIBC_2.2.5");
extern int old_pthread_key_delete(pthread_key_t);
HIDDEN int pthread_key_delete(pthread_key_t key) {
  return old_pthread_key_delete(key);
}
OLD(pthread_getspecific, "GLIBC_2.2.5");
extern void* old_pthread_getspecific(pthread_key_t);
HIDDEN void* pthread_getspecific(pthread_key_t key) {
  return old_pthread_getspecific(key);
}
OLD(pthread_setspecific, "GLIBC_2.2.5");
extern int old_pthread_setspecific(pthread_key_t, const void*);
HIDDEN int pthread_setspecific(pthread_key_t key, const void* value) {
  return old_pthread_setspecific(key, value);
}
OLD(pthread_mutex_trylock, "GLIBC_2.2.5");
extern int old_pthread_mutex_trylock(pthread_mutex_t*);
HIDDEN int pthread_mutex_trylock(pthread_mutex_t* mutex) {
  return old_pthread_mutex_trylock(mutex);
}
OLD(pthread_mutexattr_init, "GLIBC_2.2.5");
extern int old_pthread_mutexattr_init(pthread_mutexattr_t*);
HIDDEN int pthread_mutexattr_init(pthread_mutexattr_t* attributes) {
  return old_pthread_mutexattr_init(attributes);
}
OLD(pthread_mutexattr_settype, "GLIBC_2.2.5");
extern int old_pthread_mutexattr_settype(pthread_mutexattr_t*, int);
HIDDEN int pthread_mutexattr_settype(pthread_mutexattr_t* attributes, int type) {
  return old_pthread_mutexattr_settype(attributes, type);
}
OLD(pthread_mutexattr_destroy, "GLIBC_2.2.5");
extern int old_pthread_mutexattr_destroy(pthread_mutexattr_t*);
HIDDEN int pthread_mutexattr_destroy(pthread_mutexattr_t* attributes) {
  return old_pthread_mutexattr_destroy(attributes);
}
OLD(pthread_rwlock_rdlock, "GLIBC_2.2.5");
extern int old_pthread_rwlock_rdlock(pthread_rwlock_t*);
HIDDEN int pthread_rwlock_rdlock(pthread_rwlock_t* lock) {
  return old_pthread_rwlock_rdlock(lock);
}
OLD(pthread_rwlock_wrlock, "GLIBC_2.2.5");
extern int old_pthread_rwlock_wrlock(pthread_rwlock_t*);
HIDDEN int pthread_rwlock_wrlock(pthread_rwlock_t* lock) {
  return old_pthread_rwlock_wrlock(lock);
}
OLD(pthread_rwlock_unlock, "GLIBC_2.2.5");
extern int old_pthread_rwlock_unlock(pthread_rwlock_t*);
HIDDEN int pthread_rwlock_unlock(pthread_rwlock_t* lock) {
  return old_pthread_rwlock_unlock(lock);
}
OLD(pthread_setaffinity_np, "GLIBC_2.3.4");
extern int old_pthread_setaffinity_np(pthread_t, size_t, const cpu_set_t*);
HIDDEN int pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t* set) {
  return old_pthread_setaffinity_np(thread, bytes, set);
}
/* glibc 2.30 brought it: the wait ends by the clock of pthread_cond_timedwait, which a step of that clock moves. */
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const struct timespec* end) {
  struct timespec now;
  struct timespec until;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += end->tv_sec - now.tv_sec;
  until.tv_nsec += end->tv_nsec - now.tv_nsec;
  if (until.tv_nsec < 0) {
    until.tv_nsec += 1000000000L;
    until.tv_sec -= 1;
  } else if (until.tv_nsec >= 1000000000L) {
    until.tv_nsec -= 1000000000L;
    until.tv_sec += 1;
  }
  return pthread_cond_timedwait(condition, mutex, &until);
}

/* std::random_device. */
HIDDEN unsigned arc4random(void) {
  unsigned bits = 0;
  while (getrandom(&bits, sizeof(bits), 0) != (ssize_t)sizeof(bits)) {
  }
  return bits;
}

/* Before 2.33 these were macros of functions that took the version of struct stat. */
OLD(__xstat, "GLIBC_2.2.5");
extern int old___xstat(int, const char*, struct stat*);
HIDDEN int stat(const char* path, struct stat* info) {
  return old___xstat(1, path, info);
}
HIDDEN int stat64(const char* path, struct stat64* info) {
  return old___xstat(1, path, (struct stat*)info);
}
OLD(__lxstat, "GLIBC_2.2.5");
extern int old___lxstat(int, const char*, struct stat*);
HIDDEN int lstat(const char* path, struct stat* info) {
  return old___lxstat(1, path, info);
}
HIDDEN int lstat64(const char* path, struct stat64* info) {
  return old___lxstat(1, path, (struct stat*)info);
}
OLD(__fxstat, "GLIBC_2.2.5");
extern int old___fxstat(int, int, struct stat*);
HIDDEN int fstat(int file, struct stat* info) {
  return old___fxstat(1, file, info);
}
HIDDEN int fstat64(int file, struct stat64* info) {
  return old___fxstat(1, file, (struct stat*)info);
}
OLD(__fxstatat, "GLIBC_2.4");
extern int old___fxstatat(int, int, const char*, struct stat*, int);
HIDDEN int fstatat(int folder, const char* path, struct stat* info, int flags) {
  return old___fxstatat(1, folder, path, info, flags);
}

#define OLD_MATH(name)              \
  OLD(name, "GLIBC_2.2.5");         \
  extern double old_##name(double); \
  HIDDEN double name(double x) {    \
    return old_##name(x);           \
  }
OLD_MATH(exp)
OLD_MATH(exp2)
OLD_MATH(log)
OLD_MATH(log2)
OLD(pow, "GLIBC_2.2.5");
extern double old_pow(double, double);
HIDDEN double pow(double x, double y) {
  return old_pow(x, y);
}

/* libstdc++ asks whether counters may be plain: never. */
HIDDEN char __libc_single_threaded = 0;

#ifdef HEED_SHARES_CXX
/* gcc 11 brought std::__throw_bad_array_new_length, for sizes that no memory can have. */
extern void abort(void) __attribute__((noreturn));
HIDDEN void _ZSt28__throw_bad_array_new_lengthv(void) {
  abort();
}
#endif

#ifdef HEED_PROGRAM
/* Before 2.34 a program brought the function that runs its constructors. */
OLD(__libc_start_main, "GLIBC_2.2.5");
extern int old___libc_start_main(int (*)(int, char**, char**), int, char**, void (*)(int, char**, char**),
                                 void (*)(void), void (*)(void), void*);
extern void (*__init_array_start[])(int, char**, char**) HIDDEN;
extern void (*__init_array_end[])(int, char**, char**) HIDDEN;
static void run_constructors(int count, char** arguments, char** environment) {
  for (void (**one)(int, char**, char**) = __init_array_start; one < __init_array_end; ++one)
    (*one)(count, arguments, environment);
}
HIDDEN int __libc_start_main(int (*run)(int, char**, char**), int count, char** arguments, void (*init)(void),
                             void (*end)(void), void (*loader_end)(void), void* stack) {
  (void)init;
  return old___libc_start_main(run, count, arguments, run_constructors, end, loader_end, stack);
}
#endif
