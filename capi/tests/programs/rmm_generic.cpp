// RMM's own generic tests of memory resources, over stacks of Aquifer's. It is built against the folder `cpp/tests` of
// RMM's sources, and takes a GPU: RMM has no simulated device.
//
// Of RMM's generic tests, these are not here:
//
// - `mr_ref_test`, `mr_ref_allocation_test` and `mr_ref_test_mt`, which choose among RMM's resources by a name, so no
//   other can be put in. The three below have the same tests.
// - `AdaptorTest` and `CcclAdaptorTest`, which are of adaptors over `cuda_memory_resource`, for a list of types in a source.
// - The tests of host memory (`host_mr_ref_tests.cpp`, and those of pinned memory), as a callback's is device memory.
// - The sources `*_mr_tests.cpp`, `device_*_tests` and others, which are of one resource or container of RMM's each.
// - Of `CcclMrRefTestMT`, over Aquifer, what breaks the rules of `aquifer_rmm.hpp`. `AllocFreeDifferentThreadsPerThreadDefaultStream`
//   names cudaStreamPerThread, which `allocate_on` refuses, and an exception on its threads ends the process.
//   `AllocFreeDifferentThreadsDifferentStream` destroys a stream that is not detached: a later call of the driver on its
//   handle may end the process. Alone, in a process of its own, it passes.
// - RMM's build with CUDA_API_PER_THREAD_DEFAULT_STREAM, in which the stream 0 is cudaStreamPerThread to CUDA alone.
#include "mr/cccl_mr_ref_test_allocation.hpp"
#include "mr/cccl_mr_ref_test_basic.hpp"
#include "mr/cccl_mr_ref_test_mt.hpp"

#include "aquifer_rmm.hpp"

#include <rmm/mr/callback_memory_resource.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <memory>
#include <stdexcept>

using Ref = cuda::mr::resource_ref<cuda::mr::device_accessible>;

static const aquifer_api *api = aquifer_get_api(AQUIFER_ABI_MAJOR);

struct Release {
  void operator()(aquifer_stack *stack) const { EXPECT_EQ(AQUIFER_OK, api->stack_release(stack)) << api->last_error(); }
};
using Stack = std::unique_ptr<aquifer_stack, Release>;

static Stack make_stack(const char *text) {
  aquifer_stack *stack = nullptr;
  if (api->stack_create(text, 0, &stack) != AQUIFER_OK) throw std::runtime_error(api->last_error());
  return Stack(stack);
}

static void expect_no_misuse() {
  aquifer_misuse misuse{};
  misuse.struct_size = sizeof misuse;
  ASSERT_EQ(AQUIFER_OK, api->misuse(&misuse)) << api->last_error();
  EXPECT_EQ(0, misuse.unknown);
  EXPECT_EQ(0, misuse.freed_before);
  EXPECT_EQ(0, misuse.wrong_size);
  EXPECT_EQ(0, misuse.wrong_device);
}

// Each test has a stack of its own, which is empty at the test's end.
template <typename Text>
struct OverStack : testing::Test {
  Stack stack = make_stack(Text::text);
  rmm::mr::callback_memory_resource resource = aquifer::rmm_resource(api, stack.get(), 0);
  Ref ref{resource};
  rmm::cuda_stream stream{};

  void SetUp() override {
    std::string const test = testing::UnitTest::GetInstance()->current_test_info()->name();
    if (test == "AllocFreeDifferentThreadsPerThreadDefaultStream") GTEST_SKIP() << "cudaStreamPerThread is not taken";
    if (test == "AllocFreeDifferentThreadsDifferentStream" && !getenv("RMM_GENERIC_DESTROYS")) {
      GTEST_SKIP() << "a stream is destroyed undetached";
    }
  }

  void TearDown() override {
    aquifer_statistics statistics{};
    statistics.struct_size = sizeof statistics;
    ASSERT_EQ(AQUIFER_OK, api->statistics(stack.get(), &statistics)) << api->last_error();
    EXPECT_EQ(0, statistics.live_blocks);
    EXPECT_EQ(0, statistics.live_bytes);
    expect_no_misuse();
    EXPECT_EQ(AQUIFER_OK, api->stream_detach(0, static_cast<cudaStream_t>(stream))) << api->last_error();
  }
};

struct Pool {
  static constexpr const char *text = "pool(cuda)";
};
struct PoolStatistics {
  static constexpr const char *text = "pool(cuda) | statistics";
};
struct Async {
  static constexpr const char *text = "async";
};

// The control: the same callbacks over a resource of RMM's.
static rmm::mr::callback_memory_resource forwarding(Ref upstream) {
  return rmm::mr::callback_memory_resource(
      [upstream](std::size_t bytes, cuda::stream_ref stream, void *) mutable {
        return upstream.allocate(stream, bytes, rmm::CUDA_ALLOCATION_ALIGNMENT);
      },
      [upstream](void *pointer, std::size_t bytes, cuda::stream_ref stream, void *) mutable {
        upstream.deallocate(stream, pointer, bytes, rmm::CUDA_ALLOCATION_ALIGNMENT);
      });
}

struct OverRmmCuda : testing::Test {
  rmm::mr::cuda_memory_resource upstream{};
  rmm::mr::callback_memory_resource resource = forwarding(upstream);
  Ref ref{resource};
  rmm::cuda_stream stream{};
};

struct OverRmmPool : testing::Test {
  rmm::mr::pool_memory_resource upstream{rmm::mr::cuda_memory_resource{}, 0};
  rmm::mr::callback_memory_resource resource = forwarding(upstream);
  Ref ref{resource};
  rmm::cuda_stream stream{};
};

// The suites are known in RMM's namespace alone.
namespace rmm::test {

INSTANTIATE_TYPED_TEST_SUITE_P(AquiferPool, CcclMrRefTest, OverStack<Pool>);
INSTANTIATE_TYPED_TEST_SUITE_P(AquiferPool, CcclMrRefAllocationTest, OverStack<Pool>);
INSTANTIATE_TYPED_TEST_SUITE_P(AquiferPool, CcclMrRefTestMT, OverStack<Pool>);

INSTANTIATE_TYPED_TEST_SUITE_P(AquiferPoolStatistics, CcclMrRefTest, OverStack<PoolStatistics>);
INSTANTIATE_TYPED_TEST_SUITE_P(AquiferPoolStatistics, CcclMrRefAllocationTest, OverStack<PoolStatistics>);
INSTANTIATE_TYPED_TEST_SUITE_P(AquiferPoolStatistics, CcclMrRefTestMT, OverStack<PoolStatistics>);

INSTANTIATE_TYPED_TEST_SUITE_P(AquiferAsync, CcclMrRefTest, OverStack<Async>);
INSTANTIATE_TYPED_TEST_SUITE_P(AquiferAsync, CcclMrRefAllocationTest, OverStack<Async>);
INSTANTIATE_TYPED_TEST_SUITE_P(AquiferAsync, CcclMrRefTestMT, OverStack<Async>);

INSTANTIATE_TYPED_TEST_SUITE_P(ControlCuda, CcclMrRefTest, OverRmmCuda);
INSTANTIATE_TYPED_TEST_SUITE_P(ControlCuda, CcclMrRefAllocationTest, OverRmmCuda);
INSTANTIATE_TYPED_TEST_SUITE_P(ControlCuda, CcclMrRefTestMT, OverRmmCuda);

INSTANTIATE_TYPED_TEST_SUITE_P(ControlPool, CcclMrRefTest, OverRmmPool);
INSTANTIATE_TYPED_TEST_SUITE_P(ControlPool, CcclMrRefAllocationTest, OverRmmPool);
INSTANTIATE_TYPED_TEST_SUITE_P(ControlPool, CcclMrRefTestMT, OverRmmPool);

}  // namespace rmm::test
