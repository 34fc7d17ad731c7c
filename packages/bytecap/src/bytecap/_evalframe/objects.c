/* The plain Python types: Owner, Entry, FrameView. */
#include "evalframe.h"
#include <structmember.h>

PyTypeObject *owner_type, *entry_type, *frame_view_type;

/* What tp_clear leaves of its members goes with the object alone. */
void
object_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (type->tp_weaklistoffset > 0) {
        PyObject_ClearWeakRefs(object);
    }
    type->tp_clear(object);
    for (const PyMemberDef *member = type->tp_members; member->name != NULL; member++) {
        if (member->type == T_OBJECT) {
            Py_CLEAR(*(PyObject **)((char *)object + member->offset));
        }
    }
    type->tp_free(object);
    Py_DECREF(type);
}

/* ---- Owner ----------------------------------------------------------------------------- */

static int
owner_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"callback", "recursive", "name", "report", NULL};
    Owner *self = (Owner *)object;
    PyObject *callback, *name = NULL, *report = Py_None;
    int recursive = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$pUO:Owner", names, &callback, &recursive,
                                     &name, &report)) {
        return -1;
    }
    if (!PyCallable_Check(callback)) {
        PyErr_SetString(PyExc_TypeError, "callback must be callable");
        return -1;
    }
    name = name != NULL ? Py_NewRef(name) : PyUnicode_FromString("");
    if (name == NULL) {
        return -1;
    }
    Py_XSETREF(self->callback, Py_NewRef(callback));
    Py_XSETREF(self->name, name);
    Py_XSETREF(self->report, Py_NewRef(report));
    self->recursive = recursive;
    return 0;
}

static int
owner_traverse(PyObject *object, visitproc visit, void *arg)
{
    Owner *self = (Owner *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->callback);
    Py_VISIT(self->report);
    for (Mark *mark = self->marks; mark != NULL; mark = mark->next_of_owner) {
        Py_VISIT(mark->entries);
    }
    return 0;
}

static int
owner_clear(PyObject *object)
{
    Owner *self = (Owner *)object;
    Py_CLEAR(self->callback);
    Py_CLEAR(self->report);
    mark_unlink_owner(self);
    return 0;
}

/* closure: NULL for the enabled codes, else all that have a mark. */
static PyObject *
owner_codes(PyObject *object, void *closure)
{
    PyObject *codes = PyList_New(0);
    for (Mark *mark = ((Owner *)object)->marks; codes != NULL && mark != NULL;
         mark = mark->next_of_owner) {
        if ((mark->enabled || closure != NULL) &&
            PyList_Append(codes, (PyObject *)mark->state->code) < 0) {
            Py_CLEAR(codes);
        }
    }
    if (codes == NULL) {
        return NULL;
    }
    PyObject *result = PyList_AsTuple(codes);
    Py_DECREF(codes);
    return result;
}

static PyMemberDef owner_members[] = {
    {"callback", T_OBJECT, offsetof(Owner, callback), READONLY, NULL},
    {"report", T_OBJECT, offsetof(Owner, report), READONLY, NULL},
    {"name", T_OBJECT, offsetof(Owner, name), READONLY, NULL},
    {"recursive", T_INT, offsetof(Owner, recursive), READONLY, NULL},
    {"hits", T_PYSSIZET, offsetof(Owner, hits), READONLY, "frames run by an entry's code"},
    {"called", T_PYSSIZET, offsetof(Owner, called), READONLY,
     "hits whose frame had no room to grow, so that the replacement was called"},
    {"misses", T_PYSSIZET, offsetof(Owner, misses), READONLY, "times the callback was asked"},
    {"rejected", T_PYSSIZET, offsetof(Owner, rejected), READONLY,
     "new entries whose own guard did not hold"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Owner, weakrefs), READONLY, NULL},
    {NULL},
};

static PyGetSetDef owner_getset[] = {
    {"codes", owner_codes, NULL, "the code objects enabled for this owner", NULL},
    {"marked", owner_codes, NULL, "all code objects with a mark or entries of this owner", ""},
    {NULL},
};

static PyType_Slot owner_slots[] = {
    {Py_tp_doc, "Owner(callback, *, recursive=False, name='', report=None)\n\n"
                "One user of the hook. callback(frame_view) -> Entry | None | False."},
    {Py_tp_init, owner_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_traverse, owner_traverse},
    {Py_tp_clear, owner_clear},
    {Py_tp_dealloc, object_dealloc},
    {Py_tp_members, owner_members},
    {Py_tp_getset, owner_getset},
    {0, NULL},
};

static PyType_Spec owner_spec = {
    "bytecap._evalframe.Owner", sizeof(Owner), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, owner_slots,
};

/* ---- Entry ----------------------------------------------------------------------------- */

static int
entry_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"guard", "code", "payload", "closed", NULL};
    Entry *self = (Entry *)object;
    PyObject *guard, *code, *payload = Py_None;
    int closed = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!|Op:Entry", names, &guard, &PyCode_Type,
                                     &code, &payload, &closed)) {
        return -1;
    }
    if (self->code != NULL) { /* a frame may be running it */
        PyErr_SetString(PyExc_TypeError, "an Entry cannot be initialised again");
        return -1;
    }
    if (guard != Py_None && Py_TYPE(guard) != guard_program_type) {
        PyErr_SetString(PyExc_TypeError, "guard must be a GuardProgram or None");
        return -1;
    }
    Py_XSETREF(self->guard, Py_NewRef(guard));
    Py_XSETREF(self->code, Py_NewRef(code));
    Py_XSETREF(self->payload, Py_NewRef(payload));
    self->inputs_slot = code_local_slot((PyCodeObject *)code, INPUTS_NAME);
    self->closed = closed;
    return 0;
}

static int
entry_traverse(PyObject *object, visitproc visit, void *arg)
{
    Entry *self = (Entry *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->guard);
    Py_VISIT(self->payload);
    if (self->code != NULL && Py_REFCNT(self->code) == 1) {
        /* Code objects are not tracked: what only this one holds is visited from here. (A frame that
         * runs the code holds it, too.) */
        Py_VISIT(((PyCodeObject *)self->code)->co_consts);
    }
    return 0;
}

static int
entry_clear(PyObject *object)
{
    Entry *self = (Entry *)object;
    Py_CLEAR(self->guard);
    Py_CLEAR(self->payload);
    return 0;
}

static PyMemberDef entry_members[] = {
    {"guard", T_OBJECT, offsetof(Entry, guard), READONLY, NULL},
    {"code", T_OBJECT, offsetof(Entry, code), READONLY, "the replacement code object"},
    {"payload", T_OBJECT, offsetof(Entry, payload), 0, NULL},
    {"hits", T_PYSSIZET, offsetof(Entry, hits), READONLY, "how often it ran"},
    {NULL},
};

static PyType_Slot entry_slots[] = {
    {Py_tp_doc, "Entry(guard, code, payload=None, closed=False)\n\n"
                "Replacement code that is right while the guard holds. closed: nothing under it is "
                "captured, even if its owner is recursive."},
    {Py_tp_init, entry_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_traverse, entry_traverse},
    {Py_tp_clear, entry_clear},
    {Py_tp_dealloc, object_dealloc},
    {Py_tp_members, entry_members},
    {0, NULL},
};

static PyType_Spec entry_spec = {
    "bytecap._evalframe.Entry", sizeof(Entry), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, entry_slots,
};

/* The replacement finds its arguments and cells where the original's frame has them. */
int
entry_check_layout(Entry *entry, PyCodeObject *original)
{
    PyCodeObject *code = (PyCodeObject *)entry->code;
    int shape_flags = CO_VARARGS | CO_VARKEYWORDS | CO_OPTIMIZED;
    const char *fault = NULL;
    if (code == NULL) {
        PyErr_SetString(PyExc_TypeError, "the Entry was not initialised");
        return -1;
    }
    if (code->co_argcount != original->co_argcount ||
        code->co_kwonlyargcount != original->co_kwonlyargcount) {
        fault = "takes other arguments";
    } else if ((code->co_flags & shape_flags) != (original->co_flags & shape_flags)) {
        fault = "has other *args, **kwargs or locals flags";
    } else if (code_makes_generator(code)) {
        fault = "is a generator or coroutine";
    } else if (code->co_nfreevars != original->co_nfreevars) {
        fault = "has other free variables";
    } else if (entry->inputs_slot >= 0 && Py_TYPE(entry->guard) != guard_program_type) {
        fault = "takes " INPUTS_NAME " without a GuardProgram, in another way";
    }
    for (int i = 0; fault == NULL && i < code->co_nfreevars; i++) {
        if (PyUnicode_Compare(code_freevar_name(code, i), code_freevar_name(original, i)) != 0) {
            fault = "has other free variables";
        }
    }
    if (fault != NULL) {
        PyErr_Format(PyExc_ValueError, "replacement code for %U %s than the original",
                     original->co_qualname, fault);
        return -1;
    }
    return 0;
}

/* ---- FrameView ------------------------------------------------------------------------- */

static PyObject *
arguments_dict(Frame *frame, PyCodeObject *code)
{
    PyObject *locals = PyDict_New();
    int count = code_argument_slots(code);
    for (int slot = 0; locals != NULL && slot < count; slot++) {
        PyObject *value = frame->localsplus[slot];
        PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, slot);
        if (value != NULL && PyDict_SetItem(locals, name, value) < 0) {
            Py_CLEAR(locals);
        }
    }
    return locals;
}

static PyObject *
cells_dict(PyObject *function, PyCodeObject *code)
{
    PyObject *cells = PyDict_New();
    PyObject *closure = function != NULL && PyFunction_Check(function)
                            ? ((PyFunctionObject *)function)->func_closure
                            : NULL;
    for (int i = 0; cells != NULL && closure != NULL && i < code->co_nfreevars; i++) {
        if (PyDict_SetItem(cells, code_freevar_name(code, i), PyTuple_GET_ITEM(closure, i)) < 0) {
            Py_CLEAR(cells);
        }
    }
    return cells;
}

PyObject *
frame_view_new(Frame *frame)
{
    PyCodeObject *code = frame_code(frame);
    PyObject *function = frame_function(frame);
    PyObject *view = PyStructSequence_New(frame_view_type);
    if (view == NULL) {
        return NULL;
    }
    PyStructSequence_SET_ITEM(view, VIEW_CODE, Py_NewRef((PyObject *)code));
    PyStructSequence_SET_ITEM(view, VIEW_FUNCTION, Py_NewRef(function != NULL ? function : Py_None));
    PyStructSequence_SET_ITEM(view, VIEW_GLOBALS, Py_NewRef(frame->f_globals));
    PyStructSequence_SET_ITEM(view, VIEW_BUILTINS, Py_NewRef(frame->f_builtins));
    PyStructSequence_SET_ITEM(view, VIEW_LOCALS, arguments_dict(frame, code));
    PyStructSequence_SET_ITEM(view, VIEW_CELLS, cells_dict(function, code));
    if (PyErr_Occurred()) {
        Py_DECREF(view);
        return NULL;
    }
    PyObject_GC_Track(view);
    return view;
}

static PyStructSequence_Field frame_view_fields[] = {
    {"code", NULL}, {"function", NULL}, {"globals", NULL}, {"builtins", NULL},
    {"locals", "arguments by name"}, {"cells", "free variable -> cell"}, {NULL, NULL},
};

static PyStructSequence_Desc frame_view_description = {
    "bytecap._evalframe.FrameView", "A frame that is about to start.", frame_view_fields, 6,
};

static PyTypeObject *
add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(spec);
    if (type == NULL || PyModule_AddType(module, type) < 0) {
        return NULL;
    }
    return type;
}

int
objects_init(PyObject *module)
{
    owner_type = add_type(module, &owner_spec);
    entry_type = owner_type ? add_type(module, &entry_spec) : NULL;
    frame_view_type = entry_type ? PyStructSequence_NewType(&frame_view_description) : NULL;
    return frame_view_type == NULL ? -1 : PyModule_AddType(module, frame_view_type);
}
