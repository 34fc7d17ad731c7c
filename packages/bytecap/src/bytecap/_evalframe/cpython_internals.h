/* Everything this package knows about the inside of CPython lies in this header.
 *
 * Supported: 3.11, 3.12, 3.13 with the GIL. A new minor version means reading this file against
 * its internal/pycore_frame.h, nothing else. Sources: Include/internal/pycore_frame.h,
 * Python/ceval.c (_PyEvalFramePushAndInit, RETURN_VALUE, RETURN_GENERATOR), Python/pystate.c
 * (_PyThreadState_PopFrame) of each version.
 */
#ifndef BYTECAP_CPYTHON_INTERNALS_H
#define BYTECAP_CPYTHON_INTERNALS_H

#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef Py_GIL_DISABLED
#error "bytecap needs the GIL: free-threaded builds of CPython are not supported"
#endif
#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "bytecap supports CPython 3.11, 3.12 and 3.13"
#endif

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <internal/pycore_code.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_frame.h>
#pragma GCC diagnostic pop

typedef _PyInterpreterFrame Frame;

/* ---- reading a frame ------------------------------------------------------------------- */

static inline PyCodeObject *
frame_code(Frame *frame)
{
#if PY_VERSION_HEX >= 0x030D0000
    return (PyCodeObject *)frame->f_executable;
#else
    return frame->f_code;
#endif
}

static inline PyObject *
frame_function(Frame *frame)
{
#if PY_VERSION_HEX >= 0x030C0000
    return frame->f_funcobj;
#else
    return (PyObject *)frame->f_func;
#endif
}

/* Is this the start of an ordinary function call (no generator resumption, no class body)? */
static inline int
frame_is_fresh_function(Frame *frame)
{
    if (frame->owner != FRAME_OWNED_BY_THREAD) {
        return 0;
    }
    PyCodeObject *code = frame_code(frame);
#if PY_VERSION_HEX >= 0x030D0000
    int at_start = frame->instr_ptr == _PyCode_CODE(code);
#else
    int at_start = frame->prev_instr == _PyCode_CODE(code) - 1;
#endif
    return at_start && (code->co_flags & CO_OPTIMIZED) != 0;
}

/* Generators, coroutines and asynchronous generators: their frames are copied out by
 * RETURN_GENERATOR, so they are left alone. */
static inline int
code_makes_generator(PyCodeObject *code)
{
    return (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0;
}

/* Slots that hold arguments at the start of a frame: positional, keyword-only, *args, **kwargs. */
static inline int
code_argument_slots(PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount +
           ((code->co_flags & CO_VARARGS) != 0) + ((code->co_flags & CO_VARKEYWORDS) != 0);
}

/* Frame size in words of the data stack. */
static inline Py_ssize_t
code_frame_size(PyCodeObject *code)
{
#if PY_VERSION_HEX >= 0x030C0000
    return code->co_framesize;
#else
    return code->co_nlocalsplus + code->co_stacksize + FRAME_SPECIALS_SIZE;
#endif
}

/* The slot of a local variable that is no argument, or -1. */
static inline int
code_local_slot(PyCodeObject *code, const char *name)
{
    for (int slot = code_argument_slots(code); slot < code->co_nlocals; slot++) {
        PyObject *local = PyTuple_GET_ITEM(code->co_localsplusnames, slot);
        if (PyUnicode_CompareWithASCIIString(local, name) == 0) {
            return slot;
        }
    }
    return -1;
}

static inline PyObject *
code_freevar_name(PyCodeObject *code, int index)
{
    int start = code->co_nlocalsplus - code->co_nfreevars;
    return PyTuple_GET_ITEM(code->co_localsplusnames, start + index);
}

/* ---- changing a fresh frame ------------------------------------------------------------ */

static inline void
frame_set_code(Frame *frame, PyCodeObject *code) /* takes a new reference, drops the old one */
{
    PyCodeObject *old = frame_code(frame);
    Py_INCREF(code);
#if PY_VERSION_HEX >= 0x030D0000
    frame->f_executable = (PyObject *)code;
    frame->instr_ptr = _PyCode_CODE(code);
#else
    frame->f_code = code;
    frame->prev_instr = _PyCode_CODE(code) - 1;
#endif
    frame->stacktop = code->co_nlocalsplus;
    Py_DECREF(old);
}

/* Way A: puts `code` into a fresh frame in place. Arguments stay where they are, so both codes
 * must have the same argument slots. Returns 0, with nothing changed, when the frame is not the
 * top of the data stack or the chunk has no room for the new size. */
static inline int
frame_swap_code(PyThreadState *tstate, Frame *frame, PyCodeObject *code)
{
    PyObject **base = (PyObject **)frame;
    if (tstate->datastack_top != base + code_frame_size(frame_code(frame))) {
        return 0;
    }
    if (base + code_frame_size(code) >= tstate->datastack_limit) {
        return 0;
    }
    tstate->datastack_top = base + code_frame_size(code);
    for (int slot = code_argument_slots(code); slot < code->co_nlocalsplus; slot++) {
        frame->localsplus[slot] = NULL; /* beyond the arguments the old code had only NULLs too */
    }
    frame_set_code(frame, code);
    return 1;
}

/* A frame that never runs must be cleared by its callee on 3.12 and later (on 3.11 the caller
 * does it). The functions that do it are not exported, so the default evaluator runs `stub`
 * (a code object without locals that returns None) in the frame and clears it on the way out.
 * A pending exception is kept; should the stub itself be interrupted by a signal handler that
 * raises, that exception wins. */
static inline void
frame_release_unrun(PyThreadState *tstate, Frame *frame, PyCodeObject *stub)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *pending = PyErr_GetRaisedException();
    int slots = code_argument_slots(frame_code(frame));
    for (int slot = 0; slot < slots; slot++) {
        Py_CLEAR(frame->localsplus[slot]);
    }
    /* The stub is smaller than any function's frame: this cannot fail for lack of room. */
    if (frame_swap_code(tstate, frame, stub) == 0) {
        Py_FatalError("bytecap: a frame that was not run is not on top of the data stack");
    }
    PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, 0);
    if (result == NULL) {
        Py_XDECREF(pending);
    } else {
        Py_DECREF(result);
        PyErr_SetRaisedException(pending);
    }
#else
    (void)tstate;
    (void)frame;
    (void)stub;
#endif
}

/* ---- the hook -------------------------------------------------------------------------- */

/* With a hook installed every Python call runs a C evaluator of its own, and 3.12+ charges two
 * units of the C recursion budget for each. Without a hook it charges none, so they are given
 * back: Python's own recursion limit then rules as before. */
static inline void
refund_c_recursion(PyThreadState *tstate, int sign)
{
#if PY_VERSION_HEX >= 0x030C0000
    tstate->c_recursion_remaining += 2 * sign;
#else
    (void)tstate;
    (void)sign;
#endif
}

static inline PyObject *
evaluate_default(PyThreadState *tstate, Frame *frame, int throwflag)
{
    return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
}

static inline _PyFrameEvalFunction
current_hook(void)
{
    return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
}

static inline void
set_hook(_PyFrameEvalFunction function)
{
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), function);
}

/* ---- per-code storage ------------------------------------------------------------------ */

static inline Py_ssize_t
request_code_extra_index(freefunc release)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Eval_RequestCodeExtraIndex(release);
#else
    return _PyEval_RequestCodeExtraIndex(release);
#endif
}

static inline void *
get_code_extra(PyCodeObject *code, Py_ssize_t index)
{
    void *extra = NULL;
    if (code->co_extra == NULL) { /* the fast path of every unmarked frame */
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030C0000
    PyUnstable_Code_GetExtra((PyObject *)code, index, &extra);
#else
    _PyCode_GetExtra((PyObject *)code, index, &extra);
#endif
    return extra;
}

static inline int
set_code_extra(PyCodeObject *code, Py_ssize_t index, void *extra)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Code_SetExtra((PyObject *)code, index, extra);
#else
    return _PyCode_SetExtra((PyObject *)code, index, extra);
#endif
}

/* ---- dictionaries ---------------------------------------------------------------------- */

/* The instance dictionary of `object`, a new reference, or NULL without an error set when it has
 * none. Never runs Python code: PyObject_GenericGetDict materialises inline values. */
static inline PyObject *
instance_dict(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
#if PY_VERSION_HEX >= 0x030C0000
    int has_dict = type->tp_dictoffset != 0 || (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) != 0;
#else
    int has_dict = type->tp_dictoffset != 0;
#endif
    if (!has_dict) {
        return NULL;
    }
    PyObject *dict = PyObject_GenericGetDict(object, NULL);
    if (dict == NULL) {
        PyErr_Clear();
    }
    return dict;
}

/* The dictionary of a class, borrowed, or NULL. */
static inline PyObject *
class_dict(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *dict = PyType_GetDict(type); /* static types have one in each interpreter */
    Py_XDECREF(dict); /* the type or the interpreter holds it */
    return dict;
#else
    return type->tp_dict;
#endif
}

/* The instance dictionary, borrowed, when it exists already; else NULL. Two loads. */
static inline PyObject *
peek_instance_dict(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) { /* three words before the object */
        uintptr_t word = ((uintptr_t *)object)[-3];
        return (word & 1) ? NULL : (PyObject *)word; /* 3.12: bit 0 marks inline values */
    }
    return type->tp_dictoffset > 0 ? *(PyObject **)((char *)object + type->tp_dictoffset) : NULL;
}

static inline unsigned
type_version(PyTypeObject *type) /* 0: changes of the type cannot be told */
{
#if PY_VERSION_HEX >= 0x030D0000
    return type->tp_version_tag; /* the flag is not set any more; invalid tags are 0 */
#else
    return (type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
#endif
}

/* Attributes that 3.13 stores inline in the object change without a new tag of its dict. This moves them
 * into the dict, as dict.popitem does before it takes the last one; that one is put back. Nothing else
 * tells Python code of it. (Watchers of the dict are not told of inline changes by 3.13.0.) */
static inline void
move_attributes_into_dict(PyObject *dict)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyDictObject *table = (PyDictObject *)dict;
    if (table->ma_values == NULL || table->ma_used == 0 || !PyDict_CheckExact(dict)) {
        return;
    }
    PyObject *item = PyObject_CallMethod(dict, "popitem", NULL);
    if (item == NULL ||
        PyDict_SetItem(dict, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1)) < 0) {
        PyErr_Clear(); /* no memory for a table: there is room for what was just taken */
    }
    Py_XDECREF(item);
#else
    (void)dict;
#endif
}

/* The index of the item, in the order of the dict (no OrderedDict), from which PyDict_Next goes on to that at `index`,
 * and its place: the very item, unless keys were deleted, whose places are left empty. */
static inline Py_ssize_t
dict_place_before(PyObject *dict, Py_ssize_t index)
{
    PyDictObject *table = (PyDictObject *)dict;
    int is_dense = table->ma_values != NULL || table->ma_keys->dk_nentries == table->ma_used;
    return is_dense ? index : 0;
}

/* A number that changes with every change of the dict, or 0 when changes might not show. */
static inline uint64_t
dict_tag(PyObject *dict)
{
#if PY_VERSION_HEX >= 0x030D0000
    /* Inline attributes (see above). */
    if (((PyDictObject *)dict)->ma_values != NULL) {
        return 0;
    }
#endif
    _Py_COMP_DIAG_PUSH
    _Py_COMP_DIAG_IGNORE_DEPR_DECLS
    return ((PyDictObject *)dict)->ma_version_tag;
    _Py_COMP_DIAG_POP
}

/* ---- iterators ------------------------------------------------------------------------- */

/* Objects/listobject.c, tupleobject.c, dictobject.c, rangeobject.c, enumobject.c, Python/bltinmodule.c. */
typedef struct {
    PyObject_HEAD
    Py_ssize_t it_index;
    PyObject *it_seq; /* NULL: exhausted */
} SequenceIterator;

typedef struct {
    PyObject_HEAD
    PyDictObject *di_dict; /* NULL: exhausted */
    Py_ssize_t di_used, di_pos;
    PyObject *di_result;
    Py_ssize_t len;
} DictIterator;

typedef struct {
    PyObject_HEAD
#if PY_VERSION_HEX < 0x030C0000
    long index;
#endif
    long start, step, len;
} RangeIterator;

typedef struct {
    PyObject_HEAD
    Py_ssize_t en_index; /* PY_SSIZE_T_MAX: en_longindex counts */
    PyObject *en_sit, *en_result, *en_longindex, *one;
} Enumerate;

typedef struct {
    PyObject_HEAD
    Py_ssize_t tuplesize;
    PyObject *ittuple, *result;
    int strict;
} Zip;

static inline int
iterator_layouts_fit(void)
{
    return PyListIter_Type.tp_basicsize == sizeof(SequenceIterator) &&
           PyTupleIter_Type.tp_basicsize == sizeof(SequenceIterator) &&
           PyDictIterKey_Type.tp_basicsize == sizeof(DictIterator) &&
           PyRangeIter_Type.tp_basicsize == sizeof(RangeIterator) &&
           PyEnum_Type.tp_basicsize == sizeof(Enumerate) && PyZip_Type.tp_basicsize == sizeof(Zip);
}

static inline int
is_dict_iterator(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    return type == &PyDictIterKey_Type || type == &PyDictIterValue_Type || type == &PyDictIterItem_Type;
}

/* 1: *value is what it gives after `n` others; 0: it ends before. */
static inline int
range_iterator_ahead(PyObject *iterator, Py_ssize_t n, long *value)
{
    RangeIterator *self = (RangeIterator *)iterator;
#if PY_VERSION_HEX < 0x030C0000
    n += self->index;
#endif
    *value = (long)((unsigned long)self->start + (unsigned long)n * (unsigned long)self->step);
    return n < self->len;
}

#endif
