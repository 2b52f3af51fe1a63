/* What the programs of the tests share: a check that names its line, and calls that have to give a code. */
#ifndef CHECK_H
#define CHECK_H

#include "aquifer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);          \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

/* The call gives this code; one that is no success says why. */
#define GIVES(code, call) gives(api, __FILE__, __LINE__, #call, (code), (call))
#define OK(call) GIVES(AQUIFER_OK, call)

/* The last call's message has this text in it. */
#define SAYS(text) says(api, __FILE__, __LINE__, (text))

static inline void gives(const aquifer_api *api, const char *file, int line, const char *call,
                         aquifer_status expected, aquifer_status got) {
  if (got != expected) {
    fprintf(stderr, "%s:%d: %s gave %s, not %s: %s\n", file, line, call, api->status_name(got),
            api->status_name(expected), got == AQUIFER_OK ? "" : api->last_error());
    exit(1);
  }
  if (got != AQUIFER_OK && api->last_error()[0] == '\0') {
    fprintf(stderr, "%s:%d: %s gave %s and no message\n", file, line, call, api->status_name(got));
    exit(1);
  }
}

static inline void says(const aquifer_api *api, const char *file, int line, const char *text) {
  if (strstr(api->last_error(), text) == NULL) {
    fprintf(stderr, "%s:%d: the message is not of `%s`: %s\n", file, line, text, api->last_error());
    exit(1);
  }
}

#endif
