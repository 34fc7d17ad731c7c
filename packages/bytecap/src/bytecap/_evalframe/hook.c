/* The PEP 523 hook: for a fresh frame of a marked code, find the entry whose guard holds, or ask
 * the owner's callback, and run the replacement in the frame's place.
 *
 *   frame ::= plain                 no owner active, not fresh, unmarked, skipped
 *           | disabled              run with no owner active, so nothing under it is captured
 *           | hit                   swap the entry's code in (way A), or call it (way B)
 *           | miss                  ask the callback, then hit or plain
 *
 * The hook is installed only while some thread has an active owner.
 */
#include "evalframe.h"
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>

__thread ThreadScope thread_scope;

static _PyFrameEvalFunction previous_hook; /* whose hook we replaced; NULL: the default */
static Py_ssize_t hook_users;              /* scopes with an owner; guarded by the GIL */
static PyCodeObject *stub_code;            /* runs in frames that are released unrun */

static PyObject *eval_hook(PyThreadState *tstate, Frame *frame, int throwflag);

void
hook_acquire(void)
{
    if (hook_users++ == 0) {
        _PyFrameEvalFunction current = current_hook();
        if (current != eval_hook) {
            previous_hook = current == _PyEval_EvalFrameDefault ? NULL : current;
            set_hook(eval_hook);
        }
    }
}

void
hook_release(void)
{
    if (--hook_users == 0 && current_hook() == eval_hook) {
        set_hook(previous_hook != NULL ? previous_hook : _PyEval_EvalFrameDefault);
    }
}

int
hook_installed(void)
{
    return current_hook() == eval_hook;
}

/* ---- the C stack ----------------------------------------------------------------------- */

#define STACK_MARGIN (256 * 1024)

/* Python calls under a hook nest C calls. Where the C stack is nearly used up the units of 3.12+
 * are not given back (so CPython raises RecursionError soon), and 3.11 raises it here. */
static int
stack_is_short(void)
{
    char *here = __builtin_frame_address(0);
    if (thread_scope.stack_limit == NULL) {
        char *lowest = NULL;
        pthread_attr_t attributes;
        size_t size = 0;
        void *address = NULL;
        if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
            pthread_attr_getstack(&attributes, &address, &size);
            pthread_attr_destroy(&attributes);
            lowest = address;
        }
        thread_scope.stack_limit = lowest != NULL ? lowest + STACK_MARGIN : (char *)1;
    }
    return here < thread_scope.stack_limit;
}

/* ---- running frames -------------------------------------------------------------------- */

static PyObject *
run_default(PyThreadState *tstate, Frame *frame, int throwflag)
{
    if (stack_is_short()) {
#if PY_VERSION_HEX < 0x030C0000
        PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded (C stack)");
        return NULL;
#else
        return evaluate_default(tstate, frame, throwflag);
#endif
    }
    refund_c_recursion(tstate, 1);
    PyObject *result = evaluate_default(tstate, frame, throwflag);
    refund_c_recursion(tstate, -1);
    return result;
}

static PyObject *
run_plain(PyThreadState *tstate, Frame *frame, int throwflag)
{
    if (previous_hook == NULL) {
        return run_default(tstate, frame, throwflag);
    }
    /* Hooks that come and go in several threads may end up holding each other as the previous one:
     * a frame that comes back to us goes to the interpreter. */
    Frame *outer = thread_scope.handed_on;
    thread_scope.handed_on = frame;
    PyObject *result = previous_hook(tstate, frame, throwflag);
    thread_scope.handed_on = outer;
    return result;
}

/* Runs a frame of the owner, under which more is captured (open) or not: then with no owner active, and the hook itself
 * goes away when no other thread needs it. */
static PyObject *
run_of_owner(PyThreadState *tstate, Frame *frame, int open,
             PyObject *(*run)(PyThreadState *, Frame *, int))
{
    Owner *saved;
    scope_enter(open ? thread_scope.owner : NULL, &saved);
    PyObject *result = run(tstate, frame, 0);
    scope_leave(saved);
    return result;
}

static PyObject *
release_unrun(PyThreadState *tstate, Frame *frame, PyObject *result)
{
    Owner *saved = thread_scope.owner;
    thread_scope.owner = NULL;
    frame_release_unrun(tstate, frame, stub_code);
    thread_scope.owner = saved;
    if (result != NULL && PyErr_Occurred()) {
        Py_CLEAR(result);
    }
    return result;
}

/* ---- way B ----------------------------------------------------------------------------- */

typedef struct {
    PyObject *positional; /* tuple */
    PyObject *keywords;   /* dict */
} CallArguments;

static int
collect_arguments(Frame *frame, PyCodeObject *code, CallArguments *call)
{
    int count = code->co_argcount, slot = count + code->co_kwonlyargcount;
    PyObject *rest = NULL;
    call->keywords = PyDict_New();
    if (code->co_flags & CO_VARARGS) {
        rest = frame->localsplus[slot++];
    }
    Py_ssize_t extra = rest != NULL ? PyTuple_GET_SIZE(rest) : 0;
    call->positional = PyTuple_New(count + extra);
    if (call->keywords == NULL || call->positional == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count + extra; i++) {
        PyObject *value = i < count ? frame->localsplus[i] : PyTuple_GET_ITEM(rest, i - count);
        PyTuple_SET_ITEM(call->positional, i, Py_NewRef(value));
    }
    for (int i = 0; i < code->co_kwonlyargcount; i++) {
        PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, count + i);
        if (PyDict_SetItem(call->keywords, name, frame->localsplus[count + i]) < 0) {
            return -1;
        }
    }
    if (code->co_flags & CO_VARKEYWORDS) {
        return PyDict_Update(call->keywords, frame->localsplus[slot]);
    }
    return 0;
}

/* Way B: call a function made from the replacement code. */
static PyObject *
call_replacement(Frame *frame, PyCodeObject *code, PyObject *inputs)
{
    PyObject *origin = frame_function(frame);
    PyObject *function = PyFunction_New((PyObject *)code, frame->f_globals);
    CallArguments call = {NULL, NULL};
    PyObject *result = NULL;
    if (function == NULL) {
        return NULL;
    }
    PyObject *closure = ((PyFunctionObject *)origin)->func_closure;
    if ((closure == NULL || PyFunction_SetClosure(function, closure) == 0) &&
        collect_arguments(frame, frame_code(frame), &call) == 0) {
        /* What another call passes is kept: this one may be made by a finalizer, before the other's frame came. */
        PyCodeObject *outer_code = thread_scope.passing;
        PyObject *outer_inputs = thread_scope.inputs;
        thread_scope.passing = code; /* its frame comes by the hook once: do not ask again */
        thread_scope.inputs = inputs;
        result = PyObject_Call(function, call.positional, call.keywords);
        thread_scope.passing = outer_code;
        thread_scope.inputs = outer_inputs;
    }
    Py_XDECREF(call.positional);
    Py_XDECREF(call.keywords);
    Py_DECREF(function);
    return result;
}

static PyObject *
run_called(PyThreadState *tstate, Frame *frame, Owner *owner, Entry *entry, PyObject *inputs)
{
    owner->called++;
    hook_acquire(); /* even with nobody capturing: the replacement's frame takes its inputs there */
    PyObject *result = call_replacement(frame, (PyCodeObject *)entry->code, inputs);
    hook_release();
    return release_unrun(tstate, frame, result);
}

/* The frame that way B made. */
static PyObject *
run_passing(PyThreadState *tstate, Frame *frame, PyCodeObject *code)
{
    if (thread_scope.inputs != NULL) {
        int slot = code_local_slot(code, INPUTS_NAME);
        frame->localsplus[slot] = Py_NewRef(thread_scope.inputs);
    }
    thread_scope.passing = NULL;
    thread_scope.inputs = NULL;
    return run_default(tstate, frame, 0);
}

static PyObject *
run_entry(PyThreadState *tstate, Frame *frame, Owner *owner, Entry *entry, PyObject *inputs)
{
    PyObject *result;
    int open = owner->recursive && !entry->closed;
    owner->hits++;
    entry->hits++;
    Py_INCREF(entry); /* a reset may drop it while it runs */
    Owner *saved;
    scope_enter(open ? owner : NULL, &saved);
    if (frame_swap_code(tstate, frame, (PyCodeObject *)entry->code)) {
        if (inputs != NULL) {
            frame->localsplus[entry->inputs_slot] = Py_NewRef(inputs);
        }
        result = run_default(tstate, frame, 0);
    } else {
        result = run_called(tstate, frame, owner, entry, inputs);
    }
    scope_leave(saved);
    Py_DECREF(entry);
    return result;
}

/* ---- guards ---------------------------------------------------------------------------- */

/* When it holds, *inputs is what the entry's code wants, or NULL. */
static int
guard_holds(Entry *entry, Frame *frame, PyCodeObject *code, PyObject **inputs)
{
    *inputs = NULL;
    if (entry->guard == Py_None) {
        return 1;
    }
    Scope scope = {
        .slots = frame->localsplus,
        .slot_count = code_argument_slots(code),
        .function = frame_function(frame),
        .globals = frame->f_globals,
        .builtins = frame->f_builtins,
        .code = code,
    };
    return guard_program_check(entry->guard, &scope, entry->inputs_slot >= 0 ? inputs : NULL);
}

/* The entry whose guard holds (a new reference), or NULL. */
static Entry *
find_entry(Mark *mark, Frame *frame, PyCodeObject *code, PyObject **inputs)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(mark->entries); i++) {
        Entry *entry = (Entry *)PyList_GET_ITEM(mark->entries, i);
        unsigned generation = mark->generation;
        Py_INCREF(entry);
        if (guard_holds(entry, frame, code, inputs)) {
            if (i > 0 && generation == mark->generation) {
                mark_move_to_front(mark, i);
            }
            return entry;
        }
        Py_DECREF(entry);
        if (generation != mark->generation) {
            i = -1; /* a finalizer changed the list: look again */
        }
    }
    return NULL;
}

/* ---- the callback ---------------------------------------------------------------------- */

static int
accept_entry(Owner *owner, PyCodeObject *code, Entry *entry, Frame *frame, PyObject *view,
             PyObject **inputs)
{
    if (entry_check_layout(entry, code) < 0) {
        return -1;
    }
    Mark *mark = mark_ensure(code, owner);
    if (mark == NULL || mark_insert(mark, entry) < 0) {
        return -1;
    }
    int holds = guard_holds(entry, frame, code, inputs);
    if (holds == 0) { /* what it was made from does not pass its own guard: run plain */
        owner->rejected++;
        if (owner->report != Py_None) {
            PyObject *answer = PyObject_CallFunctionObjArgs(owner->report, view, entry, NULL);
            Py_XDECREF(answer);
            return answer == NULL ? -1 : 0;
        }
    }
    return holds;
}

/* 1: *entry is to run; 0: run plain; -1: error set. *closed: nothing under the plain frame is captured. */
static int
ask_callback(Owner *owner, Frame *frame, PyCodeObject *code, Entry **entry, PyObject **inputs,
             int *closed)
{
    PyObject *view = frame_view_new(frame);
    if (view == NULL) {
        return -1;
    }
    owner->misses++;
    Owner *saved;
    scope_enter(NULL, &saved);
    thread_scope.busy++;
    PyObject *callback = Py_NewRef(owner->callback);
    PyObject *answer = PyObject_CallOneArg(callback, view);
    Py_DECREF(callback);
    int verdict = -1;
    if (answer == NULL) {
        verdict = -1;
    } else if (answer == Py_None || answer == Py_False) {
        *closed = answer == Py_False;
        verdict = 0;
    } else if (Py_TYPE(answer) == entry_type) {
        verdict = accept_entry(owner, code, (Entry *)answer, frame, view, inputs);
    } else {
        PyErr_Format(PyExc_TypeError, "callback must return Entry, None or False, not %.100s",
                     Py_TYPE(answer)->tp_name);
    }
    thread_scope.busy--;
    scope_leave(saved);
    Py_DECREF(view);
    if (verdict > 0) {
        *entry = (Entry *)answer;
    } else {
        Py_XDECREF(answer);
    }
    return verdict;
}

static PyObject *
eval_marked(PyThreadState *tstate, Frame *frame, Owner *owner, PyCodeObject *code, Mark *mark)
{
    PyObject *inputs = NULL;
    Entry *entry = mark != NULL ? find_entry(mark, frame, code, &inputs) : NULL;
    if (entry == NULL) {
        int closed = 0;
        int verdict = ask_callback(owner, frame, code, &entry, &inputs, &closed);
        if (verdict == 0) {
            return run_of_owner(tstate, frame, owner->recursive && !closed, run_plain);
        }
        if (verdict < 0) {
            return release_unrun(tstate, frame, NULL);
        }
    }
    PyObject *result = run_entry(tstate, frame, owner, entry, inputs);
    Py_XDECREF(inputs);
    Py_DECREF(entry);
    return result;
}

static PyObject *
eval_hook(PyThreadState *tstate, Frame *frame, int throwflag)
{
    if (frame == thread_scope.handed_on) {
        return run_default(tstate, frame, throwflag);
    }
    Owner *owner = thread_scope.owner;
    if ((owner == NULL && thread_scope.passing == NULL) || throwflag ||
        !frame_is_fresh_function(frame)) {
        return run_plain(tstate, frame, throwflag);
    }
    PyCodeObject *code = frame_code(frame);
    if (code == thread_scope.passing) {
        return run_passing(tstate, frame, code);
    }
    if (owner == NULL || capture_is_off) {
        return run_plain(tstate, frame, throwflag);
    }
    CodeState *state = code_state_get(code);
    Mark *mark = NULL;
    if (state != NULL) {
        if (state->disabled) {
            return run_of_owner(tstate, frame, 0, run_plain);
        }
        mark = mark_find(state, owner);
    }
    int wanted = mark != NULL ? (mark->enabled || owner->recursive) && !mark->skipped
                              : owner->recursive;
    if (!wanted || code_makes_generator(code)) {
        return run_plain(tstate, frame, throwflag);
    }
    return eval_marked(tstate, frame, owner, code, mark);
}

int
hook_init(void)
{
    PyObject *compiled = Py_CompileString("def released_frame(): return None\n", "<bytecap>",
                                          Py_file_input);
    if (compiled == NULL) {
        return -1;
    }
    PyObject *constants = ((PyCodeObject *)compiled)->co_consts;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constants); i++) {
        if (PyCode_Check(PyTuple_GET_ITEM(constants, i))) {
            stub_code = (PyCodeObject *)Py_NewRef(PyTuple_GET_ITEM(constants, i));
        }
    }
    Py_DECREF(compiled);
    return stub_code == NULL ? -1 : 0;
}
