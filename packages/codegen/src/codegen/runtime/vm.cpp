// The native executor: runs a unit's instructions in one call, through the C ABI of libtorch and the limited API of
// CPython. No header of either is read; what is used is declared here, and libtorch's functions come in as addresses.
//
//   unit  ::= word*            words are 64-bit integers; see codegen/runtime/encode.py for each instruction
//   slot  : one buffer. `data` is its address, `handle` an at::Tensor (an AtenTensorHandle), where it has one
//   frame : slots and arena of one run in progress; frames are kept for the next run
//   sizes : what of the words depends on symbolic sizes; see sizes.h
//
// sizes.h, frames.h and operators.h stand before this text; before them all stand the numbers that Python has, too:
// `enum Op`, `enum SizeOp`, `enum What` and constants (codegen/runtime/native.py: executor_source).
//
// A unit lives on one device. On a CUDA device the arena is a block of torch's caching allocator, taken in each run, and
// kernels are functions of the driver, launched on the current stream. Such a unit may have buffers on the CPU beside: their
// types are marked HOST, their memory is their own, and their kernels are functions of a shared library.

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

// A kernel that waits for the one in front is launched early (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) behind
// another such one of the run, which lets it start as soon as there is room; others would not, and graphs are slower for it.
static bool launch_grid(Run *run, const i64 *w) {  // function, grid3, threads, shared bytes, early, spare, sizes, count,
  static void *none = nullptr;                     // slot*, size*
  void **data = run->frame->data;                  // spare: parameters behind the buffers, which are null
  void *few[264], **p = few;                       // ~slot: memory of the CPU, of which the kernel takes the number in it
  i64 count = w[9], sizes = count + w[8], all = sizes + w[7];
  if (!w[1] || !w[2] || !w[3]) return true;      // no point to run at
  if (all > 264 && !(p = (void **)malloc((unsigned long)all * sizeof(void *)))) return false;
  for (i64 k = 0; k < count; k++) p[k] = w[10 + k] < 0 ? data[~w[10 + k]] : &data[w[10 + k]];
  for (i64 k = count; k < sizes; k++) p[k] = (void *)&w[10 + k];  // their lower halves: sizes are limited to 32 bits
  for (i64 k = sizes; k < all; k++) p[k] = &none;
  LaunchAttribute early = {6, 0, {1}};
  LaunchConfig config = {{(unsigned)w[1], (unsigned)w[2], (unsigned)w[3]}, {(unsigned)w[4], 1, 1}, (unsigned)w[5],
                         run->stream, &early, w[6] && run->behind_own};
  i32 failed = run->unit->torch->launch(&config, (void *)w[0], p, nullptr);
  if (p != few) free(p);
  if (failed) run->status = LAUNCH_FAILED | failed;
  run->behind_own = w[6];
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
  if (CALL <= op && op <= ATTENTION_BACKWARD) run->behind_own = 0;
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
    case MM: return call_operator(run, w, t->mm);
    case BMM: return call_operator(run, w, t->bmm);
    case ADDMM: return call_operator(run, w, t->addmm);
    case BADDBMM: return call_operator(run, w, t->baddbmm);
    case CONVOLUTION: return call_operator(run, w, t->convolution);
    case CONVOLUTION_BACKWARD: return call_operator(run, w, t->convolution_backward);
    case ATTENTION: return call_operator(run, w, t->attention);
    case ATTENTION_BACKWARD: return call_operator(run, w, t->attention_backward);
    case FEW_WINDOWS: return few_windows(run, w);
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
    if (w[1] == AS_NUMBER) {
      value = PyLong_AsLongLong(args[w[0]]);
      if (value == -1 && PyErr_Occurred()) return false;
    } else {
      Handle handle = frame->handle[w[0]];
      if (t->dim(handle, &ndim) || w[2] >= ndim || (w[1] == AS_SIZE ? t->sizes : t->strides)(handle, &dims)) return false;
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
  const i64 *type = unit->words + 3 * unit->prepared;  // the types of the inputs, in order; -1: integer
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
  const i64 *w = run->frame->words + unit->code_end;  // slot, or -1 - number of a literal, or VALUES + number of a size
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
  Run run = {unit, frame, 0, 1, 0, 0, nullptr, nullptr, nullptr};
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

// objects: tensor parameter calls literals recover restride; kept alive with the words by `keep`
extern "C" Object *make_unit(const Torch *torch, const i64 *words, const i64 *types, const i64 *head, Object *objects,
                             Object *keep) {
  Unit *unit = (Unit *)calloc(1, sizeof(Unit));
  unit->torch = torch;
  unit->words = words;
  unit->types = types;
  *(Head *)unit = *(const Head *)head;
  Object **fields[] = {&unit->tensor, &unit->parameter, &unit->calls, &unit->literals, &unit->recover, &unit->restride};
  for (long k = 0; k < 6; k++) *fields[k] = PyTuple_GetItem(objects, k);
  Py_IncRef(keep);
  unit->keep = keep;
  Object *capsule = PyCapsule_New(unit, "codegen.unit", destroy_unit);
  Object *made = PyCFunction_NewEx(&METHOD, capsule, nullptr);
  Py_DecRef(capsule);
  return made;
}
