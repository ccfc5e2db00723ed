/* What objects that were compiled with a newer glibc's headers ask for, and glibc 2.28 has not. Linked into the files of a wheel
   (cmake/old_glibc.py); the rest of what is newer has the same name there, or stands in that glibc's libc_nonshared.a. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Whether the process surely has one thread: libstdc++ then counts references without atomic operations. */
HIDDEN char __libc_single_threaded = 0;

/* Waits until `deadline` of `clock`. libstdc++ asks for it with the monotonic clock. Condition variables follow the system's clock, to
   which the time that is left is added: a clock that is set meanwhile makes the wait longer or shorter, as it did in C++ before glibc
   2.30. Callers look at the deadline again after a wait. */
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const struct timespec* deadline) {
  const long second = 1000000000;
  struct timespec now, until;
  if (deadline->tv_nsec < 0 || deadline->tv_nsec >= second || clock_gettime(clock, &now) != 0 ||
      clock_gettime(CLOCK_REALTIME, &until) != 0) {
    return EINVAL;
  }
  until.tv_sec += deadline->tv_sec - now.tv_sec;
  until.tv_nsec += deadline->tv_nsec - now.tv_nsec;
  if (until.tv_nsec < 0) {
    until.tv_nsec += second;
    --until.tv_sec;
  } else if (until.tv_nsec >= second) {
    until.tv_nsec -= second;
    ++until.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &until);
}

/* 32 random bits of the system's. std::random_device asks for it, which stands in libstdc++ beside what is needed. */
HIDDEN uint32_t arc4random(void) {
  uint32_t value;
  while (getrandom(&value, sizeof(value), 0) != (ssize_t)sizeof(value)) {
    if (errno != EINTR) {
      abort();
    }
  }
  return value;
}
