/* Aquifer's C interface: one table of functions, by aquifer_get_api(AQUIFER_ABI_MAJOR), and entry points
 * for hosts that take function pointers.
 *
 * Made by cbindgen from capi/src: AQUIFER_BLESS=1 cargo test -p aquifer-capi --test header writes it. */

#ifndef AQUIFER_H
#define AQUIFER_H

#include <stddef.h>
#include <stdint.h>

/*
 A flag of `host_allocate`: the host's writes bypass its caches.
 */
#define AQUIFER_HOST_WRITE_COMBINED 1

/*
 The bytes of a handle, for any pipe.
 */
#define AQUIFER_IPC_HANDLE_BYTES 128

/*
 A stack that sleeps keeps nothing: all of its memory is zero when it wakes.
 */
#define AQUIFER_KEEP_NOTHING 0

/*
 A stack that sleeps keeps its contents in page-locked memory.
 */
#define AQUIFER_KEEP_PAGE_LOCKED 1

/*
 A stack that sleeps keeps its contents in a file without a name.
 */
#define AQUIFER_KEEP_FILE 2

/*
 The version of the table: `aquifer_get_api` takes the major one.
 */
#define AQUIFER_ABI_MAJOR 1

/*
 Grows with each function that comes to the table.
 */
#define AQUIFER_ABI_MINOR 0

/*
 What a call returns. More codes may come; each but `AQUIFER_OK` has a message in `last_error`.
 */
enum aquifer_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Done.
   */
  AQUIFER_OK = 0,
  /*
   An argument can never be right, or a pointer for a result is null.
   */
  AQUIFER_ERROR_INVALID_ARGUMENT = 1,
  /*
   The device, the host or a limit has no room.
   */
  AQUIFER_ERROR_OUT_OF_MEMORY = 2,
  /*
   The device, the resource or this build cannot do this.
   */
  AQUIFER_ERROR_UNSUPPORTED = 3,
  /*
   No driver, or no such device.
   */
  AQUIFER_ERROR_NO_DEVICE = 4,
  /*
   A stream or a pointer belongs to another device.
   */
  AQUIFER_ERROR_WRONG_DEVICE = 5,
  /*
   A pointer or a handle that this library did not give out, or gave out for something else.
   */
  AQUIFER_ERROR_NOT_OURS = 6,
  /*
   A block that was freed before.
   */
  AQUIFER_ERROR_FREED_BEFORE = 7,
  /*
   A stack or a stream that was released or closed.
   */
  AQUIFER_ERROR_CLOSED = 8,
  /*
   The stream is in capture, where this call would cost the graph.
   */
  AQUIFER_ERROR_CAPTURE = 9,
  /*
   The context is lost: everything on this device fails from here on.
   */
  AQUIFER_ERROR_CONTEXT_LOST = 10,
  /*
   The process was forked after a device was opened.
   */
  AQUIFER_ERROR_FORKED = 11,
  /*
   The simulated device found an access that no order of streams allows.
   */
  AQUIFER_ERROR_SIMULATION = 12,
  /*
   An environment variable holds a value that means nothing.
   */
  AQUIFER_ERROR_ENVIRONMENT = 13,
  /*
   A file could not be written.
   */
  AQUIFER_ERROR_IO = 14,
  /*
   Any other failure of a call of the driver.
   */
  AQUIFER_ERROR_DRIVER = 15,
  /*
   A bug of this library: it panicked, and went no further.
   */
  AQUIFER_ERROR_PANIC = 16,
  /*
   The stack of this memory sleeps.
   */
  AQUIFER_ERROR_ASLEEP = 17,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum aquifer_status aquifer_status;
#else
typedef int32_t aquifer_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 A stack of resources. No address: only the functions of the table read it.
 */
typedef struct aquifer_stack aquifer_stack;

/*
 A stream that is open here. No address, as [`aquifer_stack`].
 */
typedef struct aquifer_stream aquifer_stream;

/*
 `custatevecDeviceMemHandler_t` and `cutensornetDeviceMemHandler_t`, which are alike.
 */
typedef struct aquifer_cuquantum_handler {
  /*
   The device's number.
   */
  void *ctx;
  /*
   Returns 0, or another number where there is no memory.
   */
  int (*device_alloc)(void *ctx, void **pointer, size_t size, void *stream);
  /*
   Returns 0, or another number where the block is none.
   */
  int (*device_free)(void *ctx, void *pointer, size_t size, void *stream);
  /*
   The handler's name.
   */
  char name[64];
} aquifer_cuquantum_handler;

/*
 NumPy's `PyDataMem_Handler`: 168 bytes.
 */
typedef struct aquifer_numpy_handler {
  /*
   The handler's name.
   */
  char name[127];
  /*
   1.
   */
  uint8_t version;
  /*
   What the functions are called with.
   */
  void *ctx;
  /*
   As C's.
   */
  void *(*malloc)(void *ctx, size_t size);
  /*
   As C's.
   */
  void *(*calloc)(void *ctx, size_t count, size_t size);
  /*
   As C's.
   */
  void *(*realloc)(void *ctx, void *block, size_t size);
  /*
   As C's, with a size.
   */
  void (*free)(void *ctx, void *block, size_t size);
} aquifer_numpy_handler;

/*
 PyTorch's `MempoolId_t`, a `std::pair` of two numbers.
 */
typedef struct aquifer_torch_pool_id {
  /*
   The first number.
   */
  uint64_t first;
  /*
   The second number.
   */
  uint64_t second;
} aquifer_torch_pool_id;

/*
 What is known of a block.
 */
typedef struct aquifer_block_info {
  /*
   The size of this structure, which the caller sets: fields after it are left alone.
   */
  size_t struct_size;
  /*
   The size that was asked for.
   */
  uint64_t requested_bytes;
  /*
   The size of the block.
   */
  uint64_t bytes;
  /*
   The device's number.
   */
  int32_t device;
} aquifer_block_info;

/*
 What a stack holds and did. Fields after `struct_size`, which the caller sets, are of the outermost pool, and of the
 outermost `statistics` where there is one; a number that the stack does not know is 0.
 */
typedef struct aquifer_statistics {
  /*
   The size of this structure, which the caller sets: fields after it are left alone.
   */
  size_t struct_size;
  /*
   Bytes of blocks that are in use.
   */
  uint64_t live_bytes;
  /*
   The most that were in use at one time.
   */
  uint64_t peak_bytes;
  /*
   Bytes that were allocated in all. Of `statistics`.
   */
  uint64_t total_bytes;
  /*
   Blocks that are in use. Of `statistics`.
   */
  uint64_t live_blocks;
  /*
   Bytes that the pool has of the resource below.
   */
  uint64_t reserved_bytes;
  /*
   The most that it had.
   */
  uint64_t peak_reserved_bytes;
  /*
   Bytes of the pool that are free.
   */
  uint64_t free_bytes;
  /*
   The largest block that is free, in bytes.
   */
  uint64_t largest_free_bytes;
} aquifer_statistics;

/*
 Calls that none should make, counted for the process.
 */
typedef struct aquifer_misuse {
  /*
   The size of this structure, which the caller sets: fields after it are left alone.
   */
  size_t struct_size;
  /*
   Frees of pointers that are no block, and no page-locked memory.
   */
  uint64_t unknown;
  /*
   Frees of blocks that were freed before.
   */
  uint64_t freed_before;
  /*
   Frees with another size than was asked for. The block is freed, by the size that is known.
   */
  uint64_t wrong_size;
  /*
   Frees on a stream of another device. The block stays.
   */
  uint64_t wrong_device;
  /*
   Frees in the child of a fork. Nothing is done.
   */
  uint64_t forked;
} aquifer_misuse;

/*
 The functions of this library. The table only grows: a program that was built with a smaller one finds what it knows at
 the places that it knows. `aquifer_get_api` returns it.

 All functions may be called from any thread. In the child of a fork, after a device was opened, each but `misuse`
 returns `AQUIFER_ERROR_FORKED` and does nothing.
 */
typedef struct aquifer_api {
  /*
   The size of this table in bytes.
   */
  size_t struct_size;
  /*
   Of another major version, nothing else can be told.
   */
  uint32_t abi_major;
  /*
   Grows with each function that comes to the table.
   */
  uint32_t abi_minor;
  /*
   The library's version, such as "0.1.0".
   */
  const char *(*version)(void);
  /*
   What the calling thread's last call that failed says. It stays until the thread's next failure.
   */
  const char *(*last_error)(void);
  /*
   A code's name.
   */
  const char *(*status_name)(int32_t status);
  /*
   Builds a stack of resources on a device by a text, such as `pool(cuda, max=80%) | statistics`. Without a text
   (null), by the variable AQUIFER_STACK; without that, a pool. A pool over `cuda` has `handles=off` unless the
   text says otherwise, so that cuIpcGetMemHandle shares its memory.
   */
  aquifer_status (*stack_create)(const char *text, int32_t device, struct aquifer_stack **stack);
  /*
   The process's own stack of a device, which it keeps: the caller does not release it, and cannot.
   */
  aquifer_status (*stack_default)(int32_t device, struct aquifer_stack **stack);
  /*
   Counts one more user of a stack.
   */
  aquifer_status (*stack_retain)(struct aquifer_stack *stack);
  /*
   Counts one user less. With the last one free memory goes back to the driver, and with the last block the rest: both
   wait for the streams that freed it. Blocks stay valid until they are freed.
   */
  aquifer_status (*stack_release)(struct aquifer_stack *stack);
  /*
   Opens a stream by the driver's handle (a `CUstream` or `cudaStream_t`; null is the legacy default stream), or counts
   one more user of it. Its owner closes it here before it destroys it.
   */
  aquifer_status (*stream_open)(int32_t device, void *cuda_stream, struct aquifer_stream **stream);
  /*
   Makes a stream, and opens it. It is destroyed when it was closed and nothing needs it.
   */
  aquifer_status (*stream_create)(int32_t device, struct aquifer_stream **stream);
  /*
   The driver's handle of a stream.
   */
  aquifer_status (*stream_handle)(struct aquifer_stream *stream, void **cuda_stream);
  /*
   Counts one user less. With the last one the stream is let go: its owner may destroy it. Blocks that were allocated
   on it stay valid, and are freed after all that it was given. A stream in capture is not closed.
   */
  aquifer_status (*stream_close)(struct aquifer_stream *stream);
  /*
   Blocks until the stream has done all that it was given.
   */
  aquifer_status (*stream_synchronize)(struct aquifer_stream *stream);
  /*
   Memory for work on a stream, from this call on. An alignment of 0 is 256, the least. No bytes give null, and
   `AQUIFER_OK`.
   */
  aquifer_status (*allocate)(struct aquifer_stack *stack,
                             size_t bytes,
                             size_t alignment,
                             struct aquifer_stream *stream,
                             void **pointer);
  /*
   Frees in the order of a stream: work that was given to it before may use the block. Without a stream (null), in the
   order of the one that it was allocated on. `bytes` may be 0 for unknown; a wrong size is counted, and the block is
   freed. Null is freed by doing nothing.
   */
  aquifer_status (*deallocate)(void *pointer, size_t bytes, struct aquifer_stream *stream);
  /*
   As `allocate`, by the driver's handle of a stream, which this call opens for good. The driver is asked each time
   which stream has the handle, which takes two of its calls.
   */
  aquifer_status (*allocate_on)(struct aquifer_stack *stack,
                                size_t bytes,
                                size_t alignment,
                                void *cuda_stream,
                                void **pointer);
  /*
   As `deallocate`, by the driver's handle of a stream.
   */
  aquifer_status (*deallocate_on)(void *pointer, size_t bytes, int32_t device, void *cuda_stream);
  /*
   Lets go of a stream that `allocate_on` opened, before its owner destroys it.
   */
  aquifer_status (*stream_detach)(int32_t device, void *cuda_stream);
  /*
   Says that a block is used on another stream: its free waits for what that was given by then.
   */
  aquifer_status (*record_stream)(void *pointer, struct aquifer_stream *stream);
  /*
   What is known of a block.
   */
  aquifer_status (*block_info)(const void *pointer, struct aquifer_block_info *info);
  /*
   Page-locked host memory, which kernels reach where the device can map it. An alignment of 0 is 64.
   `flags` is 0, or `AQUIFER_HOST_WRITE_COMBINED`.
   */
  aquifer_status (*host_allocate)(size_t bytes, size_t alignment, uint32_t flags, void **pointer);
  /*
   Frees page-locked memory. It is handed out again when the devices are past what they were given.
   */
  aquifer_status (*host_deallocate)(void *pointer);
  /*
   Page-locks memory of the program where it lies.
   */
  aquifer_status (*host_pin)(void *pointer, size_t bytes);
  /*
   Waits for the device, and unlocks memory that was pinned.
   */
  aquifer_status (*host_unpin)(void *pointer);
  /*
   The device's address of a byte of such memory.
   */
  aquifer_status (*host_device_pointer)(const void *pointer, void **device_pointer);
  /*
   What a stack holds and did.
   */
  aquifer_status (*statistics)(struct aquifer_stack *stack, struct aquifer_statistics *statistics);
  /*
   The free and the total memory of a device, in bytes.
   */
  aquifer_status (*memory_info)(int32_t device, uint64_t *free_bytes, uint64_t *total_bytes);
  /*
   Gives free memory of the stack's pools back at once, as far as the device is past it, until each has `keep` bytes. It
   waits for no work of the device.
   */
  aquifer_status (*trim)(struct aquifer_stack *stack, size_t keep, size_t *released);
  /*
   Calls that none should make, counted for the process.
   */
  aquifer_status (*misuse)(struct aquifer_misuse *misuse);
  /*
   Writes a row of RMM's log for each allocation and free of the stack from now on, for aquifer-replay. Those of a
   capture are not in it.
   */
  aquifer_status (*log_start)(struct aquifer_stack *stack, const char *path);
  /*
   Ends the log, and waits until it is written.
   */
  aquifer_status (*log_stop)(struct aquifer_stack *stack);
  /*
   From now on allocations on these streams come from the pool of a key, until `capture_end`: for the memory of a
   graph that another library captures. Call it before the capture begins, and name each stream of the graph that
   allocates, also one that joins later. Allocations on other streams come from the stack, as ever. Captures of
   other keys may be active at once, each on streams of its own. The streams stay open until the end.

   Null and 0 are for all streams: no other capture is active beside that.

   The key is two numbers of the caller's. A later graph of the same key has the same memory, so the caller orders their
   launches, and no block that one graph has left is in use while another one runs. The driver's calls for memory are
   made in relaxed mode, so the capture may have any.
   */
  aquifer_status (*capture_begin)(struct aquifer_stack *stack,
                                  uint64_t high,
                                  uint64_t low,
                                  struct aquifer_stream *const *streams,
                                  size_t count);
  /*
   The capture of a key ends, after the driver has ended it, on any thread: allocations on its streams come from the stack again. What was
   allocated for the graph, and freed, stays the graph's.
   */
  aquifer_status (*capture_end)(struct aquifer_stack *stack, uint64_t high, uint64_t low);
  /*
   The graphs of a key are gone: their memory goes back to the stack, with the last block that is in use.
   */
  aquifer_status (*capture_release)(struct aquifer_stack *stack, uint64_t high, uint64_t low);
  /*
   Writes the handle of a block, for another process: `AQUIFER_IPC_HANDLE_BYTES` bytes. It blocks until the stream has
   done all that it was given. The block stays allocated for as long as another process has it open.
   */
  aquifer_status (*ipc_export)(const void *pointer, struct aquifer_stream *stream, uint8_t *handle);
  /*
   Opens a block of another process, for work on a stream: its address here, and its size. Both processes order their
   work on it.
   */
  aquifer_status (*ipc_open)(const uint8_t *handle,
                             struct aquifer_stream *stream,
                             void **pointer,
                             size_t *bytes);
  /*
   Closes a block that was opened, after all that its stream was given.
   */
  aquifer_status (*ipc_close)(void *pointer);
  /*
   Waits for the streams that freed memory, and gives free memory of the stack's pools back until each has `keep` bytes;
   page-locked memory, too.
   */
  aquifer_status (*wait_and_trim)(struct aquifer_stack *stack, size_t keep, size_t *released);
  /*
   Waits for all work of the devices, and gives free page-locked memory back, as long as the pool keeps `keep` bytes.
   */
  aquifer_status (*host_trim)(size_t keep, size_t *released);
  /*
   What the pool of page-locked memory holds: live, reserved and free bytes.
   */
  aquifer_status (*host_statistics)(struct aquifer_statistics *statistics);
  /*
   The most bytes that the pool of page-locked memory takes, a multiple of 4096. `SIZE_MAX` is for no maximum. A pool
   that has more keeps it.
   */
  aquifer_status (*host_set_maximum)(size_t bytes);
  /*
   The bytes that the pool of page-locked memory keeps when more is free. A free gives back what is above it, if the
   devices have nothing to do. `SIZE_MAX`, the default, keeps all.
   */
  aquifer_status (*host_set_release_threshold)(size_t bytes);
  /*
   The threads that touch new page-locked memory of 16 MiB and more, before it is locked. It is there several times
   faster so. 0, the default, is for a process that forks: the kernel copies such memory for the child.
   */
  aquifer_status (*host_set_touch_threads)(uint32_t threads);
  /*
   Waits for all work of the device, puts the contents of the stack's pool aside, and gives its memory back. Addresses
   stay, and `stack_wake` brings the memory back there. `keep` is `AQUIFER_KEEP_NOTHING`, after which all is zero,
   `AQUIFER_KEEP_PAGE_LOCKED`, or `AQUIFER_KEEP_FILE` for a file without a name in `folder`. The pool has to map its
   memory: `pool(virtual)` or `pool(cuda, handles=on)`.

   From this call until `stack_wake` has returned, no work that uses the memory is given to the device. An allocation is
   `AQUIFER_ERROR_ASLEEP`; blocks may be freed. After an error the stack is as it was. `bytes`, which may be null, is
   what went back.
   */
  aquifer_status (*stack_sleep)(struct aquifer_stack *stack,
                                uint32_t keep,
                                const char *folder,
                                size_t *bytes);
  /*
   Brings the memory of a stack back that sleeps. After an error, as of a device without room, it sleeps as before.
   */
  aquifer_status (*stack_wake)(struct aquifer_stack *stack);
} aquifer_api;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Memory of the process's stack of a device. Throws `std::bad_alloc` where there is none.

 # Safety

 The caller is C++ code that an exception may pass.
 */
void *aquifer_cupy_malloc(void *param, size_t size, int device);

/*
 Frees memory after all work that the device was given so far, on any stream.
 */
void aquifer_cupy_free(void *param, void *pointer, int device);

/*
 Fills a handler for `custatevecSetDeviceMemHandler` or `cutensornetSetDeviceMemHandler`: the process's stack of a
 device. The streams that the host passes are not destroyed before the host's handle is.

 # Safety

 `handler` is null, or a place for one.
 */
aquifer_status aquifer_cuquantum_device_handler(int device,
                                                struct aquifer_cuquantum_handler *handler);

/*
 Fills a handler of a kind: `default`, `pinned`, `pinned:BYTES` (smaller blocks stay on the heap), `aligned:BYTES`,
 `huge_pages` or `numa:NODE`.

 # Safety

 `kind` is null or a text that ends in a zero; `handler` is null or a place for one.
 */
aquifer_status aquifer_numpy_data_handler(const char *kind,
                                          struct aquifer_numpy_handler *handler);

/*
 Memory of the process's stack of a device, in the order of a stream. Throws PyTorch's `c10::OutOfMemoryError` where there
 is none, or `std::bad_alloc` where PyTorch's libraries do not have that.

 # Safety

 The caller is C++ code that an exception may pass; the stream is one of the device's primary context, and is never
 destroyed.
 */
void *aquifer_torch_alloc(size_t size,
                          int device,
                          void *stream);

/*
 As `aquifer_torch_alloc`, for `torch.cuda.MemPool`: null where there is none.

 # Safety

 The stream is one of the device's primary context, and is never destroyed.
 */
void *aquifer_torch_alloc_nothrow(size_t size, int device, void *stream);

/*
 Frees a block, in the order of a stream.

 # Safety

 As `aquifer_torch_alloc`; the stream was given all work that uses the block.
 */
void aquifer_torch_free(void *pointer, size_t size, int device, void *stream);

/*
 `set_init_fn`: opens the stacks of the devices when they are used, so there is nothing to do.
 */
void aquifer_torch_init(int device_count);

/*
 `set_reset_fn`, by `torch.cuda.empty_cache()`: gives free memory of all stacks back, and free page-locked memory.
 */
void aquifer_torch_reset(void);

/*
 `set_memory_fraction_fn`: the pool of a device has at most this part of its memory. More than 1 is all of it.

 A fraction of 0 or less, one of less than 256 bytes, and NaN leave the limit of the pool as it was. A stack without a
 pool gets no limit. PyTorch asks for no error of this call: so besides `aquifer_torch_last_error`, a line on standard
 error says that the call had no effect, and why.
 */
void aquifer_torch_memory_fraction(double fraction,
                                   int device);

/*
 `set_base_alloc_fn`: the block's own address and size, as each is a block of its own.

 # Safety

 `size` is null, or a place for a number.
 */
void *aquifer_torch_base_alloc(void *pointer, size_t *size);

/*
 `set_record_stream_fn`: a block is used on another stream, for which its free waits.

 # Safety

 As `aquifer_torch_alloc`.
 */
void aquifer_torch_record_stream(void *pointer, void *stream);

/*
 `set_begin_allocate_to_pool`: allocations for which the filter says so come from a pool of their own from now on,
 until the end. PyTorch's filter of a graph says whether the stream is in the graph's capture, that of `use_mem_pool`
 whether the thread is the caller. It is asked for each allocation of the device's stack, on the thread that
 allocates, and none of them is warm meanwhile. An empty one, and null, take the allocations of all streams.

 A filter that throws ends the process. It calls nothing of this library but allocations and frees. PyTorch asks for
 no error of this call: so besides `aquifer_torch_last_error`, a line on standard error says that the call had no
 effect.

 # Safety

 `filter` is null, or a `std::function<bool(cudaStream_t)>` of libstdc++ that C++ passes by value. Threads may call
 it at once until the end has returned.
 */
void aquifer_torch_begin_allocate_to_pool(int device,
                                          struct aquifer_torch_pool_id pool,
                                          void *filter);

/*
 `set_end_allocate_to_pool_fn`: on any thread. No filter of the capture is called after it, and its copy is
 destroyed.
 */
void aquifer_torch_end_allocate_to_pool(int device,
                                        struct aquifer_torch_pool_id pool);

/*
 `set_release_pool`: the graphs of the pool are gone.
 */
void aquifer_torch_release_pool(int device, struct aquifer_torch_pool_id pool);

/*
 What the thread's last call that failed says. It stays until the thread's next failure.
 */
const char *aquifer_torch_last_error(void);

/*
 The table of a major version, for the life of the process. Null if this library does not have that version.
 */
const struct aquifer_api *aquifer_get_api(uint32_t abi_major);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* AQUIFER_H */
