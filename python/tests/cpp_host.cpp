// A host in C++ inside of Python's process, as PyTorch is: it catches what the package's entry point throws.

#include <dlfcn.h>

#include <cstddef>
#include <new>

using Allocate = void *(*)(size_t bytes, int device, void *stream);

static bool frame_ended;

struct Frame {
  ~Frame() { frame_ended = true; }
};

// A frame between the throw and the catch, whose end has to run.
static void *allocate(Allocate entry, size_t bytes) {
  Frame frame;
  return entry(bytes, 0, nullptr);
}

// What came of asking the loaded library of the package for so many bytes.
extern "C" const char *ask(const char *path, size_t bytes) {
  void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return "no library";
  auto entry = reinterpret_cast<Allocate>(dlsym(library, "aquifer_torch_alloc"));
  if (entry == nullptr) return "no entry point";
  frame_ended = false;
  try {
    return allocate(entry, bytes) == nullptr ? "null" : "memory";
  } catch (const std::bad_alloc &) {
    return frame_ended ? "bad_alloc" : "a frame was left out";
  }
}
