/* Lets tritonserver wait longer for a Python member that stands still (docs/faults.md). Made for it by patience.py.

   The Python backend waits a second at a time for a member's answer, in sem_timedwait. When such a wait ends without an
   answer it looks whether the member's own thread, which wakes up three times a second, has said since the request that
   it lives; if not, it gives the member up. Where the whole machine was held up (a virtual machine's host, a migration,
   a suspended laptop), that wait is over before the member's thread had a chance to run. So a wait that was in vain goes
   on for PATIENCE_S; an answer, or another signal of life, ends it as before. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef PATIENCE_S
#error "PATIENCE_S: seconds that a wait goes on for"
#endif

typedef int Wait(sem_t *, const struct timespec *);

static Wait *wait_of_libc(void) {
  static Wait *found; /* threads that look for it at once find the same */
  if (found == NULL) found = (Wait *)dlsym(RTLD_NEXT, "sem_timedwait");
  return found;
}

/* The members, which tritonserver starts, must not have this: it takes itself, the first of the list, out of it. A shell
   that starts tritonserver leaves it there. */
__attribute__((constructor)) static void begin(void) {
  const char *list = getenv("LD_PRELOAD");
  if (strcmp(program_invocation_short_name, "tritonserver") != 0) return;
  if (list == NULL || strstr(list, "libpenstock-patience") == NULL) return;
  const char *rest = strchr(list, ':');
  if (rest != NULL)
    setenv("LD_PRELOAD", rest + 1, 1);
  else
    unsetenv("LD_PRELOAD");
}

int sem_timedwait(sem_t *semaphore, const struct timespec *deadline) {
  if (wait_of_libc()(semaphore, deadline) == 0) return 0;
  if (errno != ETIMEDOUT) return -1;
  struct timespec later; /* from now on, since the deadline may be long over: members are to have time to wake up */
  if (clock_gettime(CLOCK_REALTIME, &later) != 0) return -1;
  later.tv_sec += PATIENCE_S;
  return wait_of_libc()(semaphore, &later);
}
