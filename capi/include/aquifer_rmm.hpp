// RMM's resource of a stack: what RMM's containers, cuDF and other libraries over RMM allocate comes from Aquifer.
//
//   aquifer_stack *stack;
//   api->stack_default(0, &stack);
//   rmm::mr::set_per_device_resource(rmm::cuda_device_id{0}, aquifer::rmm_resource(api, stack, 0));
//
// RMM 26 takes C++20. cudaStreamPerThread, which is another stream on each thread, is none that can be named here:
// give streams, or the legacy default stream. A stream that is destroyed is given to `stream_detach` before.
#ifndef AQUIFER_RMM_HPP
#define AQUIFER_RMM_HPP

#include "aquifer.h"

#include <rmm/error.hpp>
#include <rmm/mr/callback_memory_resource.hpp>

#include <cstddef>
#include <memory>
#include <string>

namespace aquifer {

namespace detail {

// RMM's callbacks get a cuda::stream_ref, and before 26.10 an rmm::cuda_stream_view.
template <typename Stream>
auto stream_handle(Stream const &stream, int) -> decltype(stream.get()) {
  return stream.get();
}

template <typename Stream>
auto stream_handle(Stream const &stream, long) -> decltype(stream.value()) {
  return stream.value();
}

[[noreturn]] inline void throw_status(aquifer_api const *api, aquifer_status status) {
  std::string const message = std::string("aquifer: ") + api->last_error();
  if (status == AQUIFER_ERROR_OUT_OF_MEMORY) throw rmm::out_of_memory(message);
  throw rmm::bad_alloc(message);
}

}  // namespace detail

// A resource of a stack on a device. It and its copies keep the stack. Throws rmm::out_of_memory where there is no memory,
// and rmm::bad_alloc where a call fails otherwise. A free that fails is counted by `misuse`.
inline rmm::mr::callback_memory_resource rmm_resource(aquifer_api const *api, aquifer_stack *stack, int device) {
  aquifer_status const status = api->stack_retain(stack);
  if (status != AQUIFER_OK) detail::throw_status(api, status);
  std::shared_ptr<aquifer_stack> const kept(stack, [api](aquifer_stack *last) { api->stack_release(last); });
  return rmm::mr::callback_memory_resource(
      [api, kept](std::size_t bytes, auto stream, void *) -> void * {
        void *pointer = nullptr;
        aquifer_status const status =
            api->allocate_on(kept.get(), bytes, 0, detail::stream_handle(stream, 0), &pointer);
        if (status != AQUIFER_OK) detail::throw_status(api, status);
        return pointer;
      },
      [api, kept, device](void *pointer, std::size_t bytes, auto stream, void *) {
        api->deallocate_on(pointer, bytes, device, detail::stream_handle(stream, 0));
      });
}

}  // namespace aquifer

#endif
