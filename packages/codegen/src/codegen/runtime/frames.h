// What the native executor works with: libtorch's and CPython's functions, frames with their arena, and the tensors of a
// run. It stands behind sizes.h, and before operators.h and vm.cpp.
typedef unsigned char u8;
typedef int i32;
typedef struct Object Object;
typedef void *Handle;
struct Result { Handle handle; };  // what an operator makes

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

struct LaunchAttribute { i32 id; i32 unused; i32 value[16]; };  // CUlaunchAttribute
struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3], block[3], shared;
  void *stream;
  LaunchAttribute *attributes;
  unsigned count;
};

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
                     i64, i64, Result *);
  i32 (*convolution_backward)(Handle, Handle, Handle, const i64 **, i64, const i64 *, i64, const i64 *, i64, const i64 *,
                              i64, i32, const i64 *, i64, i64, const i32 *, i64, Result *, Result *, Result *);
  i32 (*attention)(Handle, Handle, Handle, double, i32, Handle *, double *, Result *, Result *);
  i32 (*attention_backward)(Handle, Handle, Handle, Handle, Handle, Handle, double, i32, Handle *, double *, Result *,
                            Result *, Result *);
  i32 (*device_index)(Handle, i32 *);
  // of a CUDA device alone; the last three are the driver's
  i32 (*stream)(i32, void **);
  i32 (*new_guard)(i32, void **);
  i32 (*delete_guard)(void *);
  i32 (*launch)(const LaunchConfig *, void *, void **, void **);
  i32 (*get_context)(void **);
  i32 (*set_context)(void *);
};

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

struct Head {  // in the order of codegen/runtime/encode.py: _Encoder.run
  i64 inputs, slots, outputs, prepared, code_start, code_end;  // of the words, which begin with items; outputs come last
  Sizes sizes;
  i64 device, index;  // device: 0 CPU, 1 CUDA
  void *context;      // the driver's, of a CUDA device
};

struct Unit : Head {
  const Torch *torch;
  const i64 *words;
  const i64 *types;      // dtype ndim offset size* stride*
  Object *tensor, *parameter, *calls, *literals, *recover, *restride;
  Object *keep;
  Frame *frames;
};

static inline Handle handle_of(Object *tensor) { return (char *)tensor + FIELD; }
static inline const i64 *sizes_of(const i64 *type) { return type + 3; }
static inline const i64 *strides_of(const i64 *type) { return type + 3 + type[1]; }
static inline i32 dtype_of(const i64 *type) { return (i32)(type[0] & (HOST - 1)); }
static inline i32 device_of(const Unit *unit, const i64 *type) { return type[0] & HOST ? 0 : (i32)unit->device; }
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
  const i64 *w = frame->words;  // slot, byte offset, type or -1
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
  frame->arena_bytes = place_items(s, frame->words, frame->words);
  if (frame->arena_bytes < 0) return false;
  if (unit->device) {
    if (s->symbols) frame->arena_bytes = roomy(frame->arena_bytes);
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
  frame->spare_runs = -1;
  if (!unit->sizes.words || copy_tables(unit, frame)) return frame;
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
  i64 behind_own;  // whether the last kernel on the stream is one of this run that waits for what is in front
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

static bool results(Run *run, const i64 *w, const Result *made, i64 count) {  // pairs slot, type; slot -1: not kept
  bool good = true;
  for (i64 k = 0; k < count; k++) {
    if (!made[k].handle) continue;
    if (w[2 * k] < 0) run->unit->torch->destroy(made[k].handle);
    else good = own(run, w[2 * k], made[k].handle) && settle(run, w[2 * k], w[2 * k + 1]) && good;
  }
  return good;
}
