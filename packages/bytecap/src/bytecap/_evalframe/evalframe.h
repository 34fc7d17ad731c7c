/* Types shared by the files of the extension.
 *
 *   Owner      one compile()d callable: its callback and the marks it made
 *   CodeState  what co_extra of a code object points to: its marks, and whether it is disabled
 *   Mark       (code, owner): the entries of that owner for that code, most recent hit first
 *   Entry      a guard and the replacement code that is right while the guard holds
 *   FrameView  what a callback may look at: arguments, globals, cells of a frame about to start
 *
 * An owner holds its marks and through them its entries; code objects only point at them. So a
 * compile()d callable that is dropped takes everything with it, and code that dies unlinks itself.
 */
#ifndef BYTECAP_EVALFRAME_H
#define BYTECAP_EVALFRAME_H

#include "cpython_internals.h"

typedef struct Owner Owner;
typedef struct CodeState CodeState;

typedef struct Mark {
    struct Mark *next_of_owner;
    struct Mark *next_of_code;
    Owner *owner;       /* borrowed: the owner unlinks its marks when it dies */
    CodeState *state;   /* borrowed: the code unlinks its marks when it dies */
    PyObject *entries;  /* list of Entry, or NULL after clearing */
    int enabled;        /* the callback is asked for this code */
    int skipped;        /* run plain for ever */
    unsigned generation; /* counts changes of `entries` */
} Mark;

struct CodeState {
    PyCodeObject *code; /* borrowed: this state dies with it */
    Mark *marks;
    int disabled;       /* nobody captures it, nor what it calls */
};

struct Owner {
    PyObject_HEAD
    PyObject *callback;
    PyObject *name;
    PyObject *report; /* called with (frame view, entry) when a new entry's own guard fails */
    PyObject *weakrefs;
    Mark *marks;
    int recursive;
    Py_ssize_t hits, called, misses, rejected;
};

typedef struct {
    PyObject_HEAD
    PyObject *guard;   /* GuardProgram or None */
    PyObject *code;    /* replacement */
    PyObject *payload; /* whatever the one who made the entry wants to find again */
    Py_ssize_t hits;
    int inputs_slot;   /* of the replacement's local INPUTS_NAME, or -1 */
    int closed;        /* nothing under it is captured, even if its owner is recursive */
} Entry;

/* A local of the replacement code with this name gets the tuple of the guard program's inputs. */
#define INPUTS_NAME ".inputs"

/* The items of a FrameView, which is a struct sequence. */
enum { VIEW_CODE, VIEW_FUNCTION, VIEW_GLOBALS, VIEW_BUILTINS, VIEW_LOCALS, VIEW_CELLS };

/* Where a guard finds its values: a live frame (slots) or a FrameView / dict (named_locals). */
typedef struct {
    PyObject **slots;       /* NULL when reading by name */
    int slot_count;
    PyObject *named_locals; /* dict, or NULL */
    PyObject *function;     /* borrowed, or NULL */
    PyObject *globals, *builtins;
    PyObject *cells;        /* dict of cells, used with named_locals */
    PyCodeObject *code;     /* NULL for a plain dict */
} Scope;

typedef struct {
    Owner *owner; /* who captures in this thread now; NULL: nobody */
    int busy;     /* a callback is running */
    PyCodeObject *passing; /* replacement code that way B is just calling */
    PyObject *inputs;      /* for its frame, or NULL */
    Frame *handed_on;      /* frame that was given to the hook that was here before ours */
    char *stack_limit; /* below this address the C stack is nearly used up */
} ThreadScope;

extern __thread ThreadScope thread_scope;
extern PyTypeObject *owner_type, *entry_type, *frame_view_type, *dispatcher_type,
    *guard_program_type;

/* code_state.c */
int code_state_init(void);
CodeState *code_state_get(PyCodeObject *code);    /* NULL when there is none; no error set */
CodeState *code_state_ensure(PyCodeObject *code); /* NULL with an error set */
Mark *mark_find(CodeState *state, Owner *owner);
Mark *mark_ensure(PyCodeObject *code, Owner *owner);
void mark_unlink_owner(Owner *owner);
int mark_insert(Mark *mark, Entry *entry);
void mark_move_to_front(Mark *mark, Py_ssize_t index);

/* objects.c */
int objects_init(PyObject *module);
void object_dealloc(PyObject *object); /* tp_dealloc of all types that have a tp_clear */
int entry_check_layout(Entry *entry, PyCodeObject *original);
PyObject *frame_view_new(Frame *frame);

/* dispatch.c */
int dispatch_init(PyObject *module);
int iterators_init(PyObject *module);
PyObject *call_in_scope(Owner *owner, PyObject *callable, PyObject *const *args, size_t nargsf,
                        PyObject *kwnames);
void scope_enter(Owner *owner, Owner **saved);
void scope_leave(Owner *saved);

/* hook.c */
int hook_init(void);
void hook_acquire(void);
void hook_release(void);
int hook_installed(void);
extern int capture_is_off; /* everything runs plain: set_capturing(False) */

/* code_marks.c */
extern PyMethodDef code_methods[];

/* guard_program.c */
int guard_program_init(PyObject *module);
/* 1: holds, 0: does not. *inputs, if wanted, gets a tuple of the program's inputs when it holds. */
int guard_program_check(PyObject *program, const Scope *scope, PyObject **inputs);

#endif
