/* Blocks for other processes, and NumPy's table of functions. */
#include "check.h"
#include <stdint.h>

static void blocks(const aquifer_api *api) {
  aquifer_stack *stack;
  aquifer_stream *stream;
  void *block, *part, *opened, *again;
  size_t bytes;
  OK(api->stack_create("pool(cuda)", 0, &stack));
  OK(api->stream_create(0, &stream));
  OK(api->allocate(stack, 1000, 0, stream, &block));
  OK(api->allocate(stack, 4096, 0, stream, &part));
  uint8_t handle[AQUIFER_IPC_HANDLE_BYTES], other[AQUIFER_IPC_HANDLE_BYTES];
  OK(api->ipc_export(block, stream, handle));
  OK(api->ipc_export(part, stream, other));
  CHECK(memcmp(handle, other, sizeof handle) != 0);
  /* On the simulated device a process opens its own. */
  OK(api->ipc_open(handle, stream, &opened, &bytes));
  CHECK(opened != NULL && bytes == 1000);
  OK(api->ipc_open(other, stream, &again, &bytes));
  CHECK(bytes == 4096 && again != opened);
  OK(api->ipc_close(opened));
  GIVES(AQUIFER_ERROR_NOT_OURS, api->ipc_close(opened));
  OK(api->ipc_close(again));
  GIVES(AQUIFER_ERROR_NOT_OURS, api->ipc_export((char *)block + 8, stream, handle));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->ipc_export(block, stream, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->ipc_open(NULL, stream, &opened, &bytes));
  memset(other, 0x5a, sizeof other);
  CHECK(api->ipc_open(other, stream, &opened, &bytes) != AQUIFER_OK && opened == NULL && bytes == 0);
  OK(api->deallocate(block, 1000, stream));
  GIVES(AQUIFER_ERROR_NOT_OURS, api->ipc_export(block, stream, handle));
  OK(api->deallocate(part, 4096, stream));
  OK(api->stream_close(stream));
  OK(api->stack_release(stack));
}

static void handlers(const aquifer_api *api) {
  const char *kinds[] = {"default", "pinned", "pinned:65536", "aligned:64"};
  CHECK(sizeof(aquifer_numpy_handler) == 168);
  for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
    aquifer_numpy_handler table, again;
    OK(aquifer_numpy_data_handler(kinds[kind], &table));
    OK(aquifer_numpy_data_handler(kinds[kind], &again));
    CHECK(table.ctx == again.ctx && table.version == 1 && table.name[0] != '\0');
    for (size_t bytes = 0; bytes < 200000; bytes = bytes * 3 + 1) {
      unsigned char *memory = table.malloc(table.ctx, bytes);
      CHECK(memory != NULL);
      memset(memory, 7, bytes);
      memory = table.realloc(table.ctx, memory, bytes + 5000);
      CHECK(memory != NULL && (bytes == 0 || (memory[0] == 7 && memory[bytes - 1] == 7)));
      table.free(table.ctx, memory, 1); /* NumPy's sizes are not always right. */
      unsigned char *zeros = table.calloc(table.ctx, bytes + 1, 3);
      CHECK(zeros != NULL && zeros[0] == 0 && zeros[bytes * 3] == 0);
      table.free(table.ctx, zeros, (bytes + 1) * 3);
    }
    CHECK(table.calloc(table.ctx, SIZE_MAX / 2, 3) == NULL);
    CHECK(table.malloc(table.ctx, SIZE_MAX) == NULL);
    table.free(table.ctx, NULL, 0);
  }
  aquifer_numpy_handler table;
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, aquifer_numpy_data_handler("aligned:3", &table));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, aquifer_numpy_data_handler("slow", &table));
  SAYS("huge_pages");
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, aquifer_numpy_data_handler(NULL, &table));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, aquifer_numpy_data_handler("pinned", NULL));
}

int main(void) {
  const aquifer_api *api = aquifer_get_api(AQUIFER_ABI_MAJOR);
  CHECK(api != NULL);
  blocks(api);
  handlers(api);
  puts("all of it");
  return 0;
}
