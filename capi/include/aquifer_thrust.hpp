// Thrust over a stack of Aquifer's, by RMM's names: the temporary memory of algorithms, and vectors, are of the stack and
// in the order of a stream. It takes C++17 and Thrust of CCCL 3, and no RMM.
//
//   aquifer::mr::stack_resource mr(api, stack, 0);
//   thrust::sort(aquifer::exec_policy(stream, mr), first, last);
//   thrust::inclusive_scan(aquifer::exec_policy_nosync(stream, mr), first, last, result);
//   aquifer::device_vector<int> numbers(1000, aquifer::mr::thrust_allocator<int>(nullptr, mr));
//
// Without a resource it is the process's own stack of the current device; without a stream, the legacy default stream.
// cudaStreamPerThread, which is another stream on each thread, is none that can be named here. A stream that is
// destroyed is given to `stream_detach` before.
//
// With another device system than CUDA (THRUST_DEVICE_SYSTEM) the host runs the algorithms. The stack has memory then
// that the host reaches, `managed` or `system`, and the device may be a simulated one. The host is on no stream, so
// policies and allocators wait for theirs before it touches memory.
#ifndef AQUIFER_THRUST_HPP
#define AQUIFER_THRUST_HPP

#include "aquifer.h"

#include <thrust/device_ptr.h>
#include <thrust/device_reference.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
#include <cuda_runtime_api.h>
#include <thrust/system/cuda/execution_policy.h>
#define AQUIFER_THRUST_ON_CUDA 1
#else
#define AQUIFER_THRUST_ON_CUDA 0
#endif

namespace aquifer {

// What the library says of a call that failed.
class bad_alloc : public std::bad_alloc {
 public:
  explicit bad_alloc(char const *message) : message_(std::make_shared<std::string>(message)) {}
  char const *what() const noexcept override { return message_->c_str(); }

 private:
  // A copy of an exception must not throw, and one of a string may.
  std::shared_ptr<std::string const> message_;
};

// There is no memory.
class out_of_memory : public bad_alloc {
 public:
  using bad_alloc::bad_alloc;
};

#if AQUIFER_THRUST_ON_CUDA
using thrust_stream = cudaStream_t;
#else
using thrust_stream = void *;
#endif

namespace mr {

// A stack on a device. It and its copies keep the stack.
class stack_resource {
 public:
  stack_resource(aquifer_api const *api, aquifer_stack *stack, int device) : api_(api), device_(device) {
    check(api->stack_retain(stack));
    stack_ = std::shared_ptr<aquifer_stack>(stack, [api](aquifer_stack *last) { api->stack_release(last); });
  }

  // The process's own stack of a device, which the variable AQUIFER_STACK describes.
  explicit stack_resource(int device) : stack_resource(table(), own(device), device) {}

  // That of the current device.
  stack_resource() : stack_resource(current_device()) {}

  void *allocate(thrust_stream stream, std::size_t bytes) const {
    void *pointer = nullptr;
    check(api_->allocate_on(stack_.get(), bytes, 0, stream, &pointer));
#if !AQUIFER_THRUST_ON_CUDA
    // The block may be one that the stream's work has not done with.
    try {
      wait(stream);
    } catch (...) {
      deallocate(stream, pointer, bytes);
      throw;
    }
#endif
    return pointer;
  }

  // A free that fails is counted by `misuse`.
  void deallocate(thrust_stream stream, void *pointer, std::size_t bytes) const noexcept {
    api_->deallocate_on(pointer, bytes, device_, stream);
  }

  // Blocks the host until the stream has done all that it was given.
  void wait(thrust_stream stream) const {
    aquifer_stream *opened = nullptr;
    check(api_->stream_open(device_, stream, &opened));
    aquifer_status const status = api_->stream_synchronize(opened);
    std::string const message = status == AQUIFER_OK ? "" : api_->last_error();
    api_->stream_close(opened);
    if (status != AQUIFER_OK) throw bad_alloc(("aquifer: " + message).c_str());
  }

  aquifer_stack *get() const noexcept { return stack_.get(); }
  int device() const noexcept { return device_; }

  friend bool operator==(stack_resource const &left, stack_resource const &right) noexcept {
    return left.stack_.get() == right.stack_.get() && left.device_ == right.device_;
  }
  friend bool operator!=(stack_resource const &left, stack_resource const &right) noexcept { return !(left == right); }

 private:
  static aquifer_api const *table() {
    aquifer_api const *const api = aquifer_get_api(AQUIFER_ABI_MAJOR);
    if (api == nullptr) throw bad_alloc("aquifer: the library has another major version than the header");
    return api;
  }

  static aquifer_stack *own(int device) {
    aquifer_stack *stack = nullptr;
    check(table(), table()->stack_default(device, &stack));
    return stack;
  }

  static int current_device() {
    int device = 0;
#if AQUIFER_THRUST_ON_CUDA
    cudaError_t const error = cudaGetDevice(&device);
    if (error != cudaSuccess) throw bad_alloc(cudaGetErrorString(error));
#endif
    return device;
  }

  static void check(aquifer_api const *api, aquifer_status status) {
    if (status == AQUIFER_OK) return;
    std::string const message = std::string("aquifer: ") + api->last_error();
    if (status == AQUIFER_ERROR_OUT_OF_MEMORY) throw out_of_memory(message.c_str());
    throw bad_alloc(message.c_str());
  }

  void check(aquifer_status status) const { check(api_, status); }

  aquifer_api const *api_;
  std::shared_ptr<aquifer_stack> stack_;
  int device_;
};

// An allocator of Thrust's, for a resource and a stream.
template <typename T>
class thrust_allocator {
 public:
  using value_type = T;
  using pointer = thrust::device_ptr<T>;
  using const_pointer = thrust::device_ptr<T const>;
  using reference = thrust::device_reference<T>;
  using const_reference = thrust::device_reference<T const>;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;

  template <typename U>
  struct rebind {
    using other = thrust_allocator<U>;
  };

  thrust_allocator() = default;
  explicit thrust_allocator(thrust_stream stream) : stream_(stream) {}
  thrust_allocator(thrust_stream stream, stack_resource resource) : stream_(stream), resource_(std::move(resource)) {}
  template <typename U>
  thrust_allocator(thrust_allocator<U> const &other) : stream_(other.stream()), resource_(other.resource()) {}

  pointer allocate(size_type count) {
    if (count > max_size()) throw out_of_memory("aquifer: more elements than an address has bytes");
    return pointer(static_cast<T *>(resource_.allocate(stream_, count * sizeof(T))));
  }

  void deallocate(pointer first, size_type count) noexcept {
    resource_.deallocate(stream_, const_cast<std::remove_cv_t<T> *>(first.get()), count * sizeof(T));
  }

  size_type max_size() const noexcept { return (std::numeric_limits<std::ptrdiff_t>::max)() / sizeof(T); }
  thrust_stream stream() const noexcept { return stream_; }
  stack_resource const &resource() const noexcept { return resource_; }

  // Memory of equal ones is the same, and free at the same point of a stream.
  template <typename U>
  bool operator==(thrust_allocator<U> const &other) const noexcept {
    return stream_ == other.stream() && resource_ == other.resource();
  }
  template <typename U>
  bool operator!=(thrust_allocator<U> const &other) const noexcept {
    return !(*this == other);
  }

 private:
  thrust_stream stream_ = nullptr;
  stack_resource resource_;
};

}  // namespace mr

namespace detail {

using thrust_allocator = mr::thrust_allocator<char>;

#if AQUIFER_THRUST_ON_CUDA
inline auto policy(thrust_allocator const &allocator) { return thrust::cuda::par(allocator).on(allocator.stream()); }
inline auto policy_nosync(thrust_allocator const &allocator) {
  return thrust::cuda::par_nosync(allocator).on(allocator.stream());
}
#else
inline auto policy(thrust_allocator const &allocator) {
  allocator.resource().wait(allocator.stream());
  return thrust::device(allocator);
}
inline auto policy_nosync(thrust_allocator const &allocator) { return policy(allocator); }
#endif

}  // namespace detail

// Where an algorithm takes its temporary memory, and the stream that it runs on. The call waits for the stream.
class exec_policy : public decltype(detail::policy(std::declval<detail::thrust_allocator const &>())) {
 public:
  explicit exec_policy(thrust_stream stream = nullptr, mr::stack_resource resource = mr::stack_resource())
      : exec_policy(detail::thrust_allocator(stream, std::move(resource))) {}

 private:
  using policy = decltype(detail::policy(std::declval<detail::thrust_allocator const &>()));
  explicit exec_policy(detail::thrust_allocator const &allocator) : policy(detail::policy(allocator)) {}
};

// As `exec_policy`. The call waits for the stream only where its result needs that.
class exec_policy_nosync : public decltype(detail::policy_nosync(std::declval<detail::thrust_allocator const &>())) {
 public:
  explicit exec_policy_nosync(thrust_stream stream = nullptr, mr::stack_resource resource = mr::stack_resource())
      : exec_policy_nosync(detail::thrust_allocator(stream, std::move(resource))) {}

 private:
  using policy = decltype(detail::policy_nosync(std::declval<detail::thrust_allocator const &>()));
  explicit exec_policy_nosync(detail::thrust_allocator const &allocator) : policy(detail::policy_nosync(allocator)) {}
};

// Thrust's vector, of a stack. Thrust writes and copies its elements on the default stream, as RMM's. So its allocator
// has that stream, which is null, and other streams are ordered with it before they use the elements.
template <typename T>
using device_vector = thrust::device_vector<T, mr::thrust_allocator<T>>;

}  // namespace aquifer

#endif
