// RMM over a stack of Aquifer's. It makes no call of CUDA itself.
#include "aquifer_rmm.hpp"
#include "check.h"

#include <cuda/stream_ref>

static const aquifer_api *api = aquifer_get_api(AQUIFER_ABI_MAJOR);

static uint64_t live_blocks(aquifer_stack *stack) {
  aquifer_statistics statistics{};
  statistics.struct_size = sizeof statistics;
  OK(api->statistics(stack, &statistics));
  return statistics.live_blocks;
}

int main() {
  aquifer_stack *stack = nullptr;
  aquifer_stream *stream = nullptr;
  void *handle = nullptr;
  OK(api->stack_create("pool(cuda, max=64MiB) | statistics", 0, &stack));
  OK(api->stream_create(0, &stream));
  OK(api->stream_handle(stream, &handle));
  {
    auto resource = aquifer::rmm_resource(api, stack, 0);
    auto copy = resource;
    cuda::stream_ref ref(static_cast<cudaStream_t>(handle));
    void *block = resource.allocate(ref, 1000, 256);
    aquifer_block_info info{};
    info.struct_size = sizeof info;
    OK(api->block_info(block, &info));
    CHECK(info.requested_bytes == 1000 && live_blocks(stack) == 1);
    copy.deallocate(ref, block, 1000, 256);
    CHECK(live_blocks(stack) == 0);
    bool is_thrown = false;
    try {
      (void)resource.allocate(ref, size_t{65} << 20, 256);
    } catch (const rmm::out_of_memory &error) {
      is_thrown = strstr(error.what(), "aquifer: ") != nullptr;
    }
    CHECK(is_thrown);
    // The resource keeps the stack.
    OK(api->stack_release(stack));
    block = resource.allocate(ref, 1000, 256);
    CHECK(live_blocks(stack) == 1);
    copy.deallocate(ref, block, 1000, 256);
  }
  aquifer_statistics statistics{};
  statistics.struct_size = sizeof statistics;
  GIVES(AQUIFER_ERROR_CLOSED, api->statistics(stack, &statistics));
  OK(api->stream_close(stream));
  puts("all of it");
}
