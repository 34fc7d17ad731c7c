// The native executor: runs a unit's instructions in one call, through the C ABI of libtorch and the limited API of
// CPython. No header of either is read; what is used is declared here, and libtorch's functions come in as addresses.
//
//   unit  ::= word*            words are 64-bit integers; see codegen/runtime/encode.py for each instruction
//   slot  : one buffer. `data` is its address, `handle` an at::Tensor (an AtenTensorHandle), where it has one
//   frame : slots and arena of one run in progress; frames are kept for the next run
//   sizes : what of the words depends on symbolic sizes; see sizes.h, which stands before this text
//
// A unit lives on one device. On a CUDA device the arena is a block of torch's caching allocator, taken in each run, and
// kernels are functions of the driver, launched on the current stream. Such a unit may have buffers on the CPU beside: their
// types are marked HOST, their memory is their own, and their kernels are functions of a shared library.
typedef unsigned char u8;
typedef int i32;
typedef struct Object Object;
typedef void *Handle;

extern "C" {
Object *PyTuple_New(long);
int PyTuple_SetItem(Object *, long, Object *);
Object *PyTuple_GetItem(Object *, long);
long PyTuple_Size(Object *);
Object *PySequence_Tuple(Object *);
Object *PyObject_CallObject(Object *, Object *);
Object *PyList_GetItem(Object *, long);
int PyList_SetItem(Object *, long, Object *);
long PyList_Size(Object *);
Object *PyObject_Type(Object *);
int PyObject_IsInstance(Object *, Object *);
void Py_IncRef(Object *);
void Py_DecRef(Object *);
Object *PyLong_FromLongLong(i64);
i64 PyLong_AsLongLong(Object *);
Object *PyErr_Occurred();
void PyErr_Fetch(Object **, Object **, Object **);
void PyErr_NormalizeException(Object **, Object **, Object **);
int PyException_SetTraceback(Object *, Object *);
Object *PyCapsule_New(void *, const char *, void (*)(Object *));
void *PyCapsule_GetPointer(Object *, const char *);
struct MethodDef { const char *name; Object *(*call)(Object *, Object *const *, long); int flags; const char *doc; };
Object *PyCFunction_NewEx(MethodDef *, Object *, Object *);
void *PyEval_SaveThread();
void PyEval_RestoreThread(void *);
int posix_memalign(void **, unsigned long, unsigned long);
void *memcpy(void *, const void *, unsigned long);
extern Object _Py_NoneStruct, PyList_Type, PyLong_Type;
}

typedef void (*Kernel)(void *const *, const i64 *, i64, i64 *);

static const i64 VALUES = 1ll << 40;       // where numbers of sizes begin among outputs

static const i64 LAUNCH_FAILED = 1 << 16;  // in a run's status; beside it, the driver's result
static const i64 HAS_WRITTEN = 1ll << 40;  // in a run's status: inputs of the caller's may hold something else

struct Torch {  // in the order of codegen/runtime/native.py: FUNCTIONS
  i32 (*empty_strided)(i64, const i64 *, const i64 *, i32, i32, i32, Handle *);
  i32 (*from_blob)(void *, i64, const i64 *, const i64 *, i64, i32, i32, i32, Handle *);
  i32 (*reinterpret)(Handle, i64, const i64 *, const i64 *, i64, Handle *);
  i32 (*destroy)(Handle);
  i32 (*data_ptr)(Handle, void **);
  i32 (*offset)(Handle, i64 *);
  i32 (*dim)(Handle, i64 *);
  i32 (*dtype)(Handle, i32 *);
  i32 (*sizes)(Handle, i64 **);
  i32 (*strides)(Handle, i64 **);
  i32 (*device)(Handle, i32 *);
  i32 (*threads)(unsigned *);
  Object *(*wrap)(Handle);
  i32 (*mm)(Handle, Handle, Handle);
  i32 (*bmm)(Handle, Handle, Handle);
  i32 (*addmm)(Handle, Handle, Handle, Handle, double, double);
  i32 (*baddbmm)(Handle, Handle, Handle, Handle, double, double);
  i32 (*convolution)(Handle, Handle, Handle *, const i64 *, i64, const i64 *, i64, const i64 *, i64, i32, const i64 *,
                     i64, i64, Handle *);
  i32 (*convolution_backward)(Handle, Handle, Handle, const i64 **, i64, const i64 *, i64, const i64 *, i64, const i64 *,
                              i64, i32, const i64 *, i64, i64, const i32 *, i64, Handle *, Handle *, Handle *);
  i32 (*attention)(Handle, Handle, Handle, double, i32, Handle *, double *, Handle *, Handle *);
  i32 (*attention_backward)(Handle, Handle, Handle, Handle, Handle, Handle, double, i32, Handle *, double *, Handle *,
                            Handle *, Handle *);
  i32 (*device_index)(Handle, i32 *);
  // of a CUDA device alone; the last three are the driver's
  i32 (*stream)(i32, void **);
  i32 (*new_guard)(i32, void **);
  i32 (*delete_guard)(void *);
  i32 (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  i32 (*get_context)(void **);
  i32 (*set_context)(void *);
};

enum Op { FRESH, WINDOW, LAUNCH, DROP, CALL, MM, BMM, ADDMM, BADDBMM, CONVOLUTION, CONVOLUTION_BACKWARD, ATTENTION,
          ATTENTION_BACKWARD, LAUNCH_GRID, PHILOX_STATE, SKIP_IF_MORE, FEW_WINDOWS, TAKE, GIVE_BACK, NUMBER,
          WRITES_INPUTS };
enum Owner { BORROWED, OWNED, PYTHON };

struct Unit;
struct Frame {
  Frame *next;
  i64 *words, *types, *values;  // the unit's own, without symbolic sizes
  bool sized;                   // whether they are written for `values`
  i64 arena_bytes, arena_room;
  i64 spare_runs;               // how many runs in a row have left most of a large arena unused; -1: not the last one
  void *arena;
  Handle block;     // the tensor that the arena is, on a CUDA device, while a run is in progress
  void **data;
  Handle *handle;
  Object **object;
  u8 *owner;
  Handle *lasting;  // handles on the arena and on inputs' memory, made once and kept with the frame
  void **seen;      // the address that a lasting window was made for
  i64 *numbers;     // memory for one number of each slot: of the CPU, in a unit of another device
};

struct Unit {
  const Torch *torch;
  const i64 *words;
  const i64 *types;      // dtype ndim offset size* stride*
  i64 inputs, slots, outputs, arena_bytes, prepared, code_start, code_end, item_start, output_start;
  i32 device, index;  // device: 0 CPU, 1 CUDA
  void *context;      // the driver's, of a CUDA device
  Object *tensor, *parameter, *calls, *literals, *recover, *restride;
  Object *keep;
  Sizes sizes;
  Frame *frames;
};

static const i64 FIELD = 16;  // of the at::Tensor in a Python tensor, after the object's head; checked at load

static const i64 HOST = 256;   // in the dtype word of a type: memory of the CPU in a unit of another device

static inline Handle handle_of(Object *tensor) { return (char *)tensor + FIELD; }
static inline const i64 *sizes_of(const i64 *type) { return type + 3; }
static inline const i64 *strides_of(const i64 *type) { return type + 3 + type[1]; }
static inline i32 dtype_of(const i64 *type) { return (i32)(type[0] & (HOST - 1)); }
static inline i32 device_of(const Unit *unit, const i64 *type) { return type[0] & HOST ? 0 : unit->device; }
static inline double as_double(i64 bits) { return __builtin_bit_cast(double, bits); }

static bool matches(const Unit *unit, Handle handle, const i64 *type) {
  const Torch *t = unit->torch;
  i64 ndim, *sizes, *strides;
  i32 dtype, device, index;
  if (t->dtype(handle, &dtype) || dtype != dtype_of(type) || t->dim(handle, &ndim) || ndim != type[1]) return false;
  if (t->device(handle, &device) || device != device_of(unit, type)) return false;
  if (device && (t->device_index(handle, &index) || index != unit->index)) return false;
  if (t->sizes(handle, &sizes) || t->strides(handle, &strides)) return false;
  const i64 *n = sizes_of(type), *s = strides_of(type);
  bool same = true, empty = false;
  for (i64 k = 0; k < ndim; k++) {
    if (sizes[k] != n[k]) return false;
    same &= n[k] <= 1 || strides[k] == s[k];
    empty |= n[k] == 0;
  }
  return same || empty;
}

// ---- frames

static void free_frame(const Unit *unit, Frame *frame) {
  for (i64 k = 0; k < unit->slots; k++)
    if (frame->lasting[k]) unit->torch->destroy(frame->lasting[k]);
  if (!unit->device) free(frame->arena);
  if (frame->words != unit->words) free(frame->words);
  free(frame->data);
  free(frame);
}

static bool tensor_at(const Unit *unit, void *address, const i64 *type, Handle *made) {
  return !unit->torch->from_blob(address, type[1], sizes_of(type), strides_of(type), 0, dtype_of(type),
                                 device_of(unit, type), unit->index, made);
}

static void forget(const Unit *unit, Frame *frame, i64 slot) {
  if (frame->lasting[slot]) unit->torch->destroy(frame->lasting[slot]);
  frame->lasting[slot] = nullptr;
}

// Buffers of the arena, which begins at frame->arena.
static bool lay_out(const Unit *unit, Frame *frame) {
  const i64 *w = frame->words + unit->item_start;  // slot, byte offset, type or -1
  for (i64 k = 0; k < unit->prepared; k++, w += 3) {
    frame->data[w[0]] = (char *)frame->arena + w[1];
    if (w[2] < 0) continue;
    forget(unit, frame, w[0]);
    if (!tensor_at(unit, frame->data[w[0]], frame->types + w[2], &frame->lasting[w[0]])) return false;
    frame->handle[w[0]] = frame->lasting[w[0]];
  }
  return true;
}

// On a CUDA device the arena belongs to the stream: it is taken before its first use and given back after its last, and is
// mostly where it was before.
static bool take_block(const Unit *unit, Frame *frame) {
  if (!frame->arena_bytes) return true;
  i64 size = frame->arena_bytes, one = 1;
  void *address;
  if (unit->torch->empty_strided(1, &size, &one, 0, unit->device, unit->index, &frame->block)) return false;
  if (unit->torch->data_ptr(frame->block, &address)) return false;
  if (address == frame->arena) return true;
  frame->arena = address;
  if (lay_out(unit, frame)) return true;
  frame->arena = nullptr;
  return false;
}

static void give_block_back(const Unit *unit, Frame *frame) {
  if (frame->block) unit->torch->destroy(frame->block);
  frame->block = nullptr;
}

// The frame's own copy of what symbolic sizes are written into.
static bool copy_tables(const Unit *unit, Frame *frame) {
  const Sizes *s = &unit->sizes;
  unsigned long words = (unsigned long)s->words * sizeof(i64), types = (unsigned long)s->types * sizeof(i64);
  i64 *block = (i64 *)malloc(words + types + (unsigned long)(s->symbols + s->instructions + 1) * sizeof(i64));
  if (!block) return false;
  frame->words = block;
  frame->types = block + s->words;
  frame->values = frame->types + s->types;
  memcpy(frame->words, unit->words, words);
  memcpy(frame->types, unit->types, types);
  return true;
}

// So many bytes or a sixteenth more: sizes that grow in small steps find the block of those before.
static i64 roomy(i64 bytes) {
  i64 step = 1;
  while (step << 5 <= bytes) step <<= 1;
  return bytes < 1 << 20 ? bytes : (bytes + step - 1) / step * step;
}

static const i64 LARGE = 1 << 24, SPARE_RUNS = 8;

// Whether the arena is to be laid out anew, smaller: a few runs in a row had sizes that need little of it.
static inline bool is_too_large(Frame *frame) {
  if (frame->spare_runs < 0 || ++frame->spare_runs <= SPARE_RUNS) return false;
  free(frame->arena);
  frame->arena = nullptr;
  frame->arena_room = 0;
  return true;
}

// Everything that depends on the values of the symbols: words, types, the arena and the tensors in it.
static bool resize(const Unit *unit, Frame *frame) {
  const Sizes *s = &unit->sizes;
  frame->sized = false;
  if (!compute_sizes(s, unit->words, frame->values)) return false;
  write_sizes(s, frame->values, frame->words, frame->types);
  if (!within_limits(s, frame->words)) return false;
  for (i64 k = 0; k < unit->slots; k++) {
    forget(unit, frame, k);
    frame->seen[k] = nullptr;
  }
  frame->arena_bytes = place_items(s, frame->words, frame->words + unit->item_start);
  if (frame->arena_bytes < 0) return false;
  if (unit->device) {
    frame->arena_bytes = roomy(frame->arena_bytes);
    frame->arena = nullptr;
  } else {
    if (frame->arena_bytes > frame->arena_room) {
      free(frame->arena);
      frame->arena = nullptr;
      frame->arena_room = frame->arena_room ? frame->arena_bytes + frame->arena_bytes / 4 : frame->arena_bytes;
      if (posix_memalign(&frame->arena, 4096, (unsigned long)frame->arena_room)) {
        frame->arena = nullptr;
        frame->arena_room = 0;
        return false;
      }
    }
    bool spares = frame->arena_room > LARGE && frame->arena_bytes < frame->arena_room / 4;
    if (!spares) frame->spare_runs = -1;
    else if (frame->spare_runs < 0) frame->spare_runs = 0;
    if (!lay_out(unit, frame)) return false;
  }
  return frame->sized = true;
}

static Frame *new_frame(const Unit *unit) {
  Frame *frame = (Frame *)calloc(1, sizeof(Frame));
  i64 n = unit->slots;
  void **block = frame ? (void **)calloc((unsigned long)(n * 7 + 1), sizeof(void *)) : nullptr;
  if (!block) { free(frame); return nullptr; }
  frame->data = block;
  frame->handle = block + n;
  frame->object = (Object **)(block + 2 * n);
  frame->lasting = block + 3 * n;
  frame->seen = block + 4 * n;
  frame->numbers = (i64 *)(block + 5 * n);
  frame->owner = (u8 *)(block + 6 * n);
  frame->words = (i64 *)unit->words;
  frame->types = (i64 *)unit->types;
  frame->arena_bytes = unit->arena_bytes;
  frame->spare_runs = -1;
  if (unit->sizes.words) {
    if (copy_tables(unit, frame)) return frame;
    free_frame(unit, frame);
    return nullptr;
  }
  bool good = unit->device || !unit->arena_bytes || !posix_memalign(&frame->arena, 4096, (unsigned long)unit->arena_bytes);
  if (good && ((unit->device && unit->arena_bytes) || lay_out(unit, frame))) return frame;
  free_frame(unit, frame);
  return nullptr;
}

static inline void drop(const Unit *unit, Frame *frame, i64 slot) {
  if (frame->owner[slot] == OWNED) unit->torch->destroy(frame->handle[slot]);
  if (frame->owner[slot] == PYTHON) Py_DecRef(frame->object[slot]);
  frame->owner[slot] = BORROWED;
}

// ---- one run

struct Run {
  const Unit *unit;
  Frame *frame;
  i64 status, threads;
  i64 written;  // HAS_WRITTEN from the first instruction on that writes an input
  void *stream, *guard;
  void *unlocked;  // the thread state while the interpreter's lock is released
};

static void lock(Run *run) {
  if (run->unlocked) PyEval_RestoreThread(run->unlocked);
  run->unlocked = nullptr;
}

static void unlock(Run *run) { run->unlocked = PyEval_SaveThread(); }

static bool own(Run *run, i64 slot, Handle handle) {
  run->frame->handle[slot] = handle;
  run->frame->owner[slot] = OWNED;
  return !run->unit->torch->data_ptr(handle, &run->frame->data[slot]);
}

static Object *object_of(Run *run, i64 slot) {
  Frame *frame = run->frame;
  if (frame->object[slot]) { Py_IncRef(frame->object[slot]); return frame->object[slot]; }
  return run->unit->torch->wrap(frame->handle[slot]);
}

static bool adopt(Run *run, i64 slot, Object *tensor) {  // takes the reference
  const Unit *unit = run->unit;
  int found = PyObject_IsInstance(tensor, unit->tensor);
  if (found != 1) { Py_DecRef(tensor); return false; }
  run->frame->object[slot] = tensor;
  run->frame->owner[slot] = PYTHON;
  run->frame->handle[slot] = handle_of(tensor);
  return !unit->torch->data_ptr(run->frame->handle[slot], &run->frame->data[slot]);
}

static Object *call_with(Object *callable, Object *tensor, i64 number, const i64 *more, i64 count) {
  Object *args = PyTuple_New(2 + count);
  PyTuple_SetItem(args, 0, tensor);
  PyTuple_SetItem(args, 1, PyLong_FromLongLong(number));
  for (i64 k = 0; k < count; k++) PyTuple_SetItem(args, 2 + k, PyLong_FromLongLong(more[k]));
  Object *result = PyObject_CallObject(callable, args);
  Py_DecRef(args);
  return result;
}

// The kernels of a GPU are compiled for memory that begins at a multiple of 16 bytes.
static bool is_aligned(const Unit *unit, const i64 *type, void *data) { return !device_of(unit, type) || !((i64)data & 15); }

// A library may give a result other strides or another place than the program was written for: it is copied then.
static bool settle(Run *run, i64 slot, i64 type) {
  const Unit *unit = run->unit;
  const i64 *stated = run->frame->types + type;
  if (type < 0) return true;
  if (is_aligned(unit, stated, run->frame->data[slot]) && matches(unit, run->frame->handle[slot], stated)) return true;
  bool released = run->unlocked != nullptr;
  lock(run);
  Object *copy = call_with(unit->restride, object_of(run, slot), type, run->frame->values, unit->sizes.symbols);
  if (copy) {
    drop(run->unit, run->frame, slot);
    run->frame->object[slot] = nullptr;
  }
  bool good = copy && adopt(run, slot, copy);
  if (good && released) unlock(run);
  return good;
}

static bool results(Run *run, const i64 *w, const Handle *handles, i64 count) {  // pairs slot, type; slot -1: not kept
  bool good = true;
  for (i64 k = 0; k < count; k++) {
    if (!handles[k]) continue;
    if (w[2 * k] < 0) run->unit->torch->destroy(handles[k]);
    else good = own(run, w[2 * k], handles[k]) && settle(run, w[2 * k], w[2 * k + 1]) && good;
  }
  return good;
}

static bool call_python(Run *run, const i64 *w) {  // callable, tensors, results, integers, slot*, integer*, (slot type)*
  lock(run);
  i64 tensors = w[1], expected = w[2], count = w[1] + w[3];
  Object *args = PyTuple_New(count);
  for (i64 k = 0; k < count; k++)
    PyTuple_SetItem(args, k, k < tensors ? object_of(run, w[4 + k]) : PyLong_FromLongLong(w[4 + k]));
  Object *given = PyObject_CallObject(PyTuple_GetItem(run->unit->calls, w[0]), args);
  Py_DecRef(args);
  if (!given) return false;
  if (PyObject_IsInstance(given, run->unit->tensor) == 1) {
    Object *one = PyTuple_New(1);
    PyTuple_SetItem(one, 0, given);
    given = one;
  } else {
    Object *many = PySequence_Tuple(given);
    Py_DecRef(given);
    if (!many) return false;
    given = many;
  }
  bool good = PyTuple_Size(given) >= expected;
  const i64 *to = w + 4 + count;
  for (i64 k = 0; good && k < expected; k++) {
    if (to[2 * k] < 0) continue;
    Object *item = PyTuple_GetItem(given, k);
    Py_IncRef(item);
    good = adopt(run, to[2 * k], item) && settle(run, to[2 * k], to[2 * k + 1]);
  }
  Py_DecRef(given);
  if (good) unlock(run);
  return good;
}

// Another reading of the base's memory. mode 0: a tensor that shares the storage; 1: a tensor on the bare address, kept
// with the frame (for memory that outlives the run); 2: the address alone, for kernels.
static bool window(Run *run, const i64 *w) {  // slot, base, type, mode, bytes and elements from the base's first element
  const Unit *unit = run->unit;
  const Torch *t = unit->torch;
  Frame *frame = run->frame;
  const i64 *type = frame->types + w[2];
  void *address = (char *)frame->data[w[1]] + w[4];
  if (w[3] == 0) {
    Handle made;  // reinterpret counts from the base's own offset
    if (t->reinterpret(frame->handle[w[1]], type[1], sizes_of(type), strides_of(type), w[5], &made)) return false;
    return own(run, w[0], made);
  }
  frame->data[w[0]] = address;
  if (w[3] == 2) return true;
  if (!frame->lasting[w[0]] || frame->seen[w[0]] != address) {
    forget(unit, frame, w[0]);
    if (!tensor_at(unit, address, type, &frame->lasting[w[0]])) return false;
    frame->seen[w[0]] = address;
  }
  frame->handle[w[0]] = frame->lasting[w[0]];
  return true;
}

static bool convolution(Run *run, const i64 *w) {  // input weight bias d stride* padding* dilation* transposed extra* groups
  Handle *h = run->frame->handle, made[1] = {nullptr};
  i64 d = w[3];
  const i64 *stride = w + 4, *padding = stride + d, *dilation = padding + d, *extra = dilation + d + 1;
  Handle bias = w[2] < 0 ? nullptr : h[w[2]];
  if (run->unit->torch->convolution(h[w[0]], h[w[1]], bias ? &bias : nullptr, stride, d, padding, d, dilation, d,
                                    (i32)extra[-1], extra, d, extra[d], made)) return false;
  return results(run, extra + d + 1, made, 1);
}

// The same in two dimensions in float32, neither transposed nor in groups, as a product of matrices.
static bool few_windows(Run *run, const i64 *w) {
  const Unit *unit = run->unit;
  const Torch *t = unit->torch;
  Handle *h = run->frame->handle, part[3] = {nullptr, nullptr, nullptr}, made[1] = {nullptr};
  const i64 *to = w + 14, *type = run->frame->types + to[1], *out = sizes_of(type);
  i64 *sizes, *steps, *kernel, *turned, *along = nullptr;
  if (t->sizes(h[w[0]], &sizes) || t->strides(h[w[0]], &steps)) return false;
  if (t->sizes(h[w[1]], &kernel) || t->strides(h[w[1]], &turned)) return false;
  if (w[2] >= 0 && t->strides(h[w[2]], &along)) return false;
  const i64 taps = kernel[2] * kernel[3], width = kernel[1] * taps, rows = out[0] * out[2] * out[3];
  const bool in_order = turned[0] == width && turned[1] == taps && (taps == 1 || (turned[2] == kernel[3] && turned[3] == 1));
  if (!in_order || (along && *along != 1) || !rows) return convolution(run, w);
  void *x, *weight, *bias = nullptr, *space, *memory;
  if (t->data_ptr(h[w[0]], &x) || t->data_ptr(h[w[1]], &weight) || (w[2] >= 0 && t->data_ptr(h[w[2]], &bias))) return false;
  if (posix_memalign(&space, 64, (unsigned long)(rows * (width + kernel[0])) * sizeof(float))) return false;
  float *patches = (float *)space, *product = patches + rows * width;
  Windows g = {steps, sizes, kernel, out, w + 4, w + 6, w + 8};
  copy_patches((float *)x, &g, patches);
  struct { void *memory; i64 sizes[2], steps[2]; } matrix[3] = {
      {patches, {rows, width}, {width, 1}}, {weight, {width, kernel[0]}, {1, width}}, {product, {rows, kernel[0]}, {kernel[0], 1}}};
  bool good = true;
  for (i64 k = 0; good && k < 3; k++)
    good = !t->from_blob(matrix[k].memory, 2, matrix[k].sizes, matrix[k].steps, 0, dtype_of(type), 0, unit->index, &part[k]);
  good = good && !t->mm(part[2], part[0], part[1]);
  good = good && !t->empty_strided(type[1], out, strides_of(type), dtype_of(type), 0, unit->index, made);
  good = good && !t->data_ptr(made[0], &memory);
  if (good) copy_images(product, &g, (float *)bias, strides_of(type), (float *)memory);
  for (i64 k = 0; k < 3; k++)
    if (part[k]) t->destroy(part[k]);
  free(space);
  return results(run, to, made, 1) && good;
}

static bool convolution_backward(Run *run, const i64 *w) {
  // gradient input weight bias_size d stride* padding* dilation* transposed extra* groups mask3 (slot type)3
  Handle *h = run->frame->handle, made[3] = {nullptr, nullptr, nullptr};
  i64 d = w[4];
  const i64 *stride = w + 5, *padding = stride + d, *dilation = padding + d, *extra = dilation + d + 1;
  const i64 *mask = extra + d + 1, *bias_size = w + 3;
  i32 wanted[3] = {(i32)mask[0], (i32)mask[1], (i32)mask[2]};
  if (run->unit->torch->convolution_backward(h[w[0]], h[w[1]], h[w[2]], w[3] < 0 ? nullptr : &bias_size, w[3] < 0 ? 0 : 1,
                                             stride, d, padding, d, dilation, d, (i32)extra[-1], extra, d, extra[d], wanted,
                                             3, &made[0], &made[1], &made[2])) return false;
  return results(run, mask + 3, made, 3);
}

static bool attention(Run *run, const i64 *w) {  // q k v dropout causal mask has_scale scale (slot type)2
  Handle *h = run->frame->handle, made[2] = {nullptr, nullptr};
  Handle mask = w[5] < 0 ? nullptr : h[w[5]];
  double scale = as_double(w[7]);
  if (run->unit->torch->attention(h[w[0]], h[w[1]], h[w[2]], as_double(w[3]), (i32)w[4], mask ? &mask : nullptr,
                                  w[6] ? &scale : nullptr, &made[0], &made[1])) return false;
  return results(run, w + 8, made, 2);
}

static bool attention_backward(Run *run, const i64 *w) {  // grad q k v out lse dropout causal mask has_scale scale (slot type)3
  Handle *h = run->frame->handle, made[3] = {nullptr, nullptr, nullptr};
  Handle mask = w[8] < 0 ? nullptr : h[w[8]];
  double scale = as_double(w[10]);
  if (run->unit->torch->attention_backward(h[w[0]], h[w[1]], h[w[2]], h[w[3]], h[w[4]], h[w[5]], as_double(w[6]), (i32)w[7],
                                           mask ? &mask : nullptr, w[9] ? &scale : nullptr, &made[0], &made[1], &made[2]))
    return false;
  return results(run, w + 11, made, 3);
}

static bool fresh(Run *run, const i64 *w) {  // slot, type
  const Unit *unit = run->unit;
  const i64 *type = run->frame->types + w[1];
  Handle made;
  if (unit->torch->empty_strided(type[1], sizes_of(type), strides_of(type), dtype_of(type), device_of(unit, type), unit->index,
                                     &made))
    return false;
  return own(run, w[0], made);
}

static bool launch(Run *run, const i64 *w) {  // address, count, slot*, size*
  void *pointers[256], **p = pointers, **data = run->frame->data;
  if (w[1] > 256 && !(p = (void **)malloc((unsigned long)w[1] * sizeof(void *)))) return false;
  for (i64 k = 0; k < w[1]; k++) p[k] = data[w[2 + k]];
  ((Kernel)w[0])(p, w + 2 + w[1], run->threads, &run->status);
  if (p != pointers) free(p);
  return run->status == 0;
}

static bool launch_grid(Run *run, const i64 *w) {  // function, grid3, threads, shared bytes, spare, sizes, count, slot*, size*
  static void *none = nullptr;                     // spare: parameters behind the buffers, which are null
  void **data = run->frame->data;                  // ~slot: memory of the CPU, of which the kernel takes the number in it
  void *few[264], **p = few;
  i64 count = w[8], sizes = count + w[7], all = sizes + w[6];
  if (!w[1] || !w[2] || !w[3]) return true;      // no point to run at
  if (all > 264 && !(p = (void **)malloc((unsigned long)all * sizeof(void *)))) return false;
  for (i64 k = 0; k < count; k++) p[k] = w[9 + k] < 0 ? data[~w[9 + k]] : &data[w[9 + k]];
  for (i64 k = count; k < sizes; k++) p[k] = (void *)&w[9 + k];  // their lower halves: sizes are limited to 32 bits
  for (i64 k = sizes; k < all; k++) p[k] = &none;
  i32 failed = run->unit->torch->launch((void *)w[0], (unsigned)w[1], (unsigned)w[2], (unsigned)w[3], (unsigned)w[4], 1, 1,
                                        (unsigned)w[5], run->stream, p, nullptr);
  if (p != few) free(p);
  if (failed) run->status = LAUNCH_FAILED | failed;
  return !failed;
}

// The state of a device's generator, which moves on; not while the caller records a graph, in which it is not known.
static bool philox_state(Run *run, const i64 *w) {  // engine, generator, whether a stream is captured, count, seed, offset
  struct State { i64 seed, offset; };
  i32 captured = 0;
  if (((i32 (*)(void *, i32 *))w[2])(run->stream, &captured) || captured) return false;
  lock(run);  // one unit at a time
  State state = ((State (*)(void *, unsigned long))w[0])((void *)w[1], (unsigned long)w[3]);
  unlock(run);
  if (w[4] >= 0) *(i64 *)run->frame->data[w[4]] = state.seed;
  if (w[5] >= 0) *(i64 *)run->frame->data[w[5]] = state.offset;
  return true;
}

static bool step(Run *run, i64 op, const i64 *w) {
  const Torch *t = run->unit->torch;
  Handle *h = run->frame->handle;
  switch (op) {
    case FRESH: return fresh(run, w);
    case WINDOW: return window(run, w);
    case LAUNCH: return launch(run, w);
    case DROP: {
      bool python = run->frame->owner[w[0]] == PYTHON;
      if (python) lock(run);
      drop(run->unit, run->frame, w[0]);
      if (python) unlock(run);
      return true;
    }
    case CALL: return call_python(run, w);
    case MM: return !t->mm(h[w[0]], h[w[1]], h[w[2]]);
    case BMM: return !t->bmm(h[w[0]], h[w[1]], h[w[2]]);
    case ADDMM: return !t->addmm(h[w[0]], h[w[1]], h[w[2]], h[w[3]], as_double(w[4]), as_double(w[5]));
    case BADDBMM: return !t->baddbmm(h[w[0]], h[w[1]], h[w[2]], h[w[3]], as_double(w[4]), as_double(w[5]));
    case CONVOLUTION: return convolution(run, w);
    case CONVOLUTION_BACKWARD: return convolution_backward(run, w);
    case FEW_WINDOWS: return few_windows(run, w);
    case ATTENTION: return attention(run, w);
    case ATTENTION_BACKWARD: return attention_backward(run, w);
    case LAUNCH_GRID: return launch_grid(run, w);
    case PHILOX_STATE: return philox_state(run, w);
    case TAKE: return take_block(run->unit, run->frame);
    case GIVE_BACK: return give_block_back(run->unit, run->frame), true;
    case NUMBER: run->frame->data[w[0]] = run->frame->numbers + w[0]; return true;
    case WRITES_INPUTS: run->written = HAS_WRITTEN; return true;
  }
  return false;
}

static bool execute(Run *run) {
  const i64 *w = run->frame->words + run->unit->code_start, *end = run->frame->words + run->unit->code_end;
  unlock(run);
  while (w < end) {
    if (w[0] == SKIP_IF_MORE) {  // number, most, words that are skipped where it is more than that
      w += 5 + (w[2] > w[3] ? w[4] : 0);
      continue;
    }
    if (!step(run, w[0], w + 2)) { lock(run); return false; }
    w += 2 + w[1];
  }
  lock(run);
  return true;
}

// Reads the symbols off the inputs; what depends on them is written where they are not those of the frame's last run.
static bool bind_symbols(Run *run, Object *const *args) {
  const Unit *unit = run->unit;
  const Torch *t = unit->torch;
  Frame *frame = run->frame;
  const i64 *w = unit->words + unit->sizes.start;
  bool changed = !frame->sized;
  for (i64 k = 0; k < unit->sizes.symbols; k++, w += 3) {
    i64 value, ndim, *dims;
    if (w[1] == VALUE) {
      value = PyLong_AsLongLong(args[w[0]]);
      if (value == -1 && PyErr_Occurred()) return false;
    } else {
      Handle handle = frame->handle[w[0]];
      if (t->dim(handle, &ndim) || w[2] >= ndim || (w[1] == SIZE ? t->sizes : t->strides)(handle, &dims)) return false;
      value = dims[w[2]];
    }
    changed |= value != frame->values[k];
    frame->values[k] = value;
  }
  changed |= is_too_large(frame);
  return !changed || resize(unit, frame);
}

static bool read_inputs(Run *run, Object *const *args) {
  const Unit *unit = run->unit;
  const Torch *t = unit->torch;
  const i64 *type = unit->words + unit->item_start + 3 * unit->prepared;  // the types of the inputs, in order; -1: integer
  for (i64 k = 0; k < unit->inputs; k++) {
    Object *kind = PyObject_Type(args[k]);
    Py_DecRef(kind);
    run->frame->object[k] = args[k];
    if (type[k] < 0) {
      if (PyObject_IsInstance(args[k], &PyLong_Type) != 1) return false;
      continue;
    }
    if (kind != unit->tensor && kind != unit->parameter && PyObject_IsInstance(args[k], unit->tensor) != 1) return false;
    run->frame->handle[k] = handle_of(args[k]);
  }
  if (unit->sizes.words && !bind_symbols(run, args)) return false;
  for (i64 k = 0; k < unit->inputs; k++) {
    if (type[k] < 0) continue;
    Handle handle = run->frame->handle[k];
    if (!matches(unit, handle, run->frame->types + type[k])) return false;
    if (t->data_ptr(handle, &run->frame->data[k])) return false;
    if (!is_aligned(unit, unit->types + type[k], run->frame->data[k])) return false;
  }
  return true;
}

static Object *outputs(Run *run) {
  const Unit *unit = run->unit;
  Object *made = PyTuple_New(unit->outputs);
  const i64 *w = run->frame->words + unit->output_start;  // slot, or -1 - number of a literal, or VALUES + number of a size
  for (i64 k = 0; k < unit->outputs; k++) {
    Object *item = w[k] >= VALUES ? PyLong_FromLongLong(run->frame->values[w[k] - VALUES])
                   : w[k] >= 0    ? object_of(run, w[k])
                                  : PyTuple_GetItem(unit->literals, -1 - w[k]);
    if (w[k] < 0) Py_IncRef(item);
    if (!item) { Py_DecRef(made); return nullptr; }
    PyTuple_SetItem(made, k, item);
  }
  return made;
}

static void finish(Unit *unit, Frame *frame) {
  for (i64 k = 0; k < unit->slots; k++) {
    drop(unit, frame, k);
    frame->object[k] = nullptr;
  }
  frame->next = unit->frames;
  unit->frames = frame;
}

// What the fast way refuses or fails at is left to the reference executor: recover(status, *args). What failed when
// inputs had been written already is not run again: recover(status, error), or (status, None) where nothing was raised.
static Object *recover(Unit *unit, i64 status, Object *const *args, long count) {
  Object *all = PyTuple_New(count + 1);
  PyTuple_SetItem(all, 0, PyLong_FromLongLong(status));
  for (long k = 0; k < count; k++) { Py_IncRef(args[k]); PyTuple_SetItem(all, k + 1, args[k]); }
  Object *result = PyObject_CallObject(unit->recover, all);
  Py_DecRef(all);
  return result;
}

// The frame holds the inputs, and lets go of each after its last use; the list that held them is left with Nones.
static void take_inputs(Run *run, Object *list) {
  for (i64 k = 0; k < run->unit->inputs; k++) {
    Py_IncRef(run->frame->object[k]);
    run->frame->owner[k] = PYTHON;
    Py_IncRef(&_Py_NoneStruct);
    PyList_SetItem(list, k, &_Py_NoneStruct);
  }
}

static Object *recover_written(Unit *unit, i64 status) {
  Object *kind = nullptr, *error = nullptr, *traceback = nullptr;
  if (PyErr_Occurred()) {
    PyErr_Fetch(&kind, &error, &traceback);
    PyErr_NormalizeException(&kind, &error, &traceback);
    if (traceback) PyException_SetTraceback(error, traceback);
  }
  Object *given = error ? error : &_Py_NoneStruct;
  Object *result = recover(unit, status, &given, 1);
  if (kind) Py_DecRef(kind);
  if (error) Py_DecRef(error);
  if (traceback) Py_DecRef(traceback);
  return result;
}

static bool enter_device(Run *run) {
  const Unit *unit = run->unit;
  const Torch *t = unit->torch;
  unsigned threads = 1;
  t->threads(&threads);
  run->threads = threads;
  if (!unit->device) return true;
  void *context = nullptr;
  if (t->new_guard(unit->index, &run->guard) || t->get_context(&context)) return false;
  if (context != unit->context && t->set_context(unit->context)) return false;  // a thread that is new to the device
  return !t->stream(unit->index, &run->stream);
}

static void leave_device(Run *run) {
  if (run->guard) run->unit->torch->delete_guard(run->guard);
}

static Object *run_on(Unit *unit, Object *const *args, long count, Object *list) {
  if (count != unit->inputs) return recover(unit, 0, args, count);
  Frame *frame = unit->frames;
  if (frame) unit->frames = frame->next;
  else if (!(frame = new_frame(unit))) return recover(unit, 0, args, count);
  Run run = {unit, frame, 0, 1, 0, nullptr, nullptr, nullptr};
  bool good = read_inputs(&run, args) && enter_device(&run);
  if (good && list) take_inputs(&run, list);
  Object *result = good && execute(&run) ? outputs(&run) : nullptr;
  give_block_back(unit, frame);  // where the run failed
  leave_device(&run);
  finish(unit, frame);
  if (result) return result;
  if (run.written) return recover_written(unit, run.status | run.written);
  if (PyErr_Occurred()) return nullptr;
  if (!list) return recover(unit, run.status, args, count);
  if (!good) return recover(unit, run.status, &list, 1);  // nothing was taken: whoever runs it now empties the list
  Object *gone = &_Py_NoneStruct;
  return recover(unit, run.status, &gone, 1);
}

static Object *run_list(Unit *unit, Object *list) {
  long count = PyList_Size(list);
  if (count == 0 && unit->inputs) {  // nothing to run: give back what is kept for the next run
    while (Frame *frame = unit->frames) {
      unit->frames = frame->next;
      free_frame(unit, frame);
    }
    return PyTuple_New(0);
  }
  Object *few[64], **args = few;
  if (count > 64 && !(args = (Object **)malloc((unsigned long)count * sizeof(Object *)))) return nullptr;
  for (long k = 0; k < count; k++) args[k] = PyList_GetItem(list, k);
  Object *result = run_on(unit, args, count, list);
  if (args != few) free(args);
  return result;
}

// The inputs as arguments, or as one list that is emptied.
static Object *run_unit(Object *self, Object *const *args, long count) {
  Unit *unit = (Unit *)PyCapsule_GetPointer(self, "codegen.unit");
  if (count == 1 && PyObject_IsInstance(args[0], &PyList_Type) == 1) return run_list(unit, args[0]);
  return run_on(unit, args, count, nullptr);
}

static void destroy_unit(Object *capsule) {
  Unit *unit = (Unit *)PyCapsule_GetPointer(capsule, "codegen.unit");
  while (Frame *frame = unit->frames) {
    unit->frames = frame->next;
    free_frame(unit, frame);
  }
  Py_DecRef(unit->keep);
  free(unit);
}

static MethodDef METHOD = {"run_unit", run_unit, 0x80 /* METH_FASTCALL */, "Runs one unit on its inputs."};

// head: inputs slots outputs arena_bytes prepared item_start code_start code_end output_start sizes13 device index context
// objects: tensor parameter calls literals recover restride; kept alive with the words by `keep`
extern "C" Object *make_unit(const Torch *torch, const i64 *words, const i64 *types, const i64 *head, Object *objects,
                             Object *keep) {
  Unit *unit = (Unit *)calloc(1, sizeof(Unit));
  unit->torch = torch;
  unit->words = words;
  unit->types = types;
  unit->inputs = head[0];
  unit->slots = head[1];
  unit->outputs = head[2];
  unit->arena_bytes = head[3];
  unit->prepared = head[4];
  unit->item_start = head[5];
  unit->code_start = head[6];
  unit->code_end = head[7];
  unit->output_start = head[8];
  memcpy(&unit->sizes, head + 9, sizeof(Sizes));
  unit->device = (i32)head[22];
  unit->index = (i32)head[23];
  unit->context = (void *)head[24];
  Object **fields[] = {&unit->tensor, &unit->parameter, &unit->calls, &unit->literals, &unit->recover, &unit->restride};
  for (long k = 0; k < 6; k++) *fields[k] = PyTuple_GetItem(objects, k);
  Py_IncRef(keep);
  unit->keep = keep;
  Object *capsule = PyCapsule_New(unit, "codegen.unit", destroy_unit);
  Object *made = PyCFunction_NewEx(&METHOD, capsule, nullptr);
  Py_DecRef(capsule);
  return made;
}
