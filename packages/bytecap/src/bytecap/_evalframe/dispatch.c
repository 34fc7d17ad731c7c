/* Calls with an owner active (or with none), and the callable object that makes such calls. */
#include "evalframe.h"
#include <structmember.h>

PyTypeObject *dispatcher_type;

/* Makes `owner` (or nobody) the one who captures in this thread. */
void
scope_enter(Owner *owner, Owner **saved)
{
    *saved = thread_scope.owner;
    thread_scope.owner = owner;
    if (owner != NULL && *saved == NULL) {
        hook_acquire();
    } else if (owner == NULL && *saved != NULL) {
        hook_release();
    }
}

void
scope_leave(Owner *saved)
{
    Owner *current;
    scope_enter(saved, &current);
}

PyObject *
call_in_scope(Owner *owner, PyObject *callable, PyObject *const *args, size_t nargsf,
              PyObject *kwnames)
{
    if (capture_is_off) {
        owner = NULL;
    }
    if (thread_scope.busy || thread_scope.owner == owner) {
        return PyObject_Vectorcall(callable, args, nargsf, kwnames);
    }
    Owner *saved;
    Py_XINCREF(owner);
    scope_enter(owner, &saved);
    PyObject *result = PyObject_Vectorcall(callable, args, nargsf, kwnames);
    scope_leave(saved);
    Py_XDECREF(owner);
    return result;
}

/* ---- functions ------------------------------------------------------------------------- */

static int
parse_owner(PyObject *object, Owner **owner)
{
    if (object != Py_None && Py_TYPE(object) != owner_type) {
        PyErr_SetString(PyExc_TypeError, "owner must be an Owner or None");
        return -1;
    }
    *owner = object == Py_None ? NULL : (Owner *)object;
    return 0;
}

/* call_with_owner(owner, fn, /, *args, **kwargs) */
static PyObject *
py_call_with_owner(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *kwnames)
{
    Owner *owner;
    if (count < 2) {
        PyErr_SetString(PyExc_TypeError, "call_with_owner(owner, fn, *args, **kwargs)");
        return NULL;
    }
    if (parse_owner(args[0], &owner) < 0) {
        return NULL;
    }
    return call_in_scope(owner, args[1], args + 2, (size_t)(count - 2), kwnames);
}

static PyObject *
py_active_owner(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return Py_NewRef(thread_scope.owner != NULL ? (PyObject *)thread_scope.owner : Py_None);
}

static PyObject *
py_hook_installed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(hook_installed());
}

int capture_is_off;

static PyObject *
py_set_capturing(PyObject *Py_UNUSED(module), PyObject *flag)
{
    int on = PyObject_IsTrue(flag);
    if (on < 0) {
        return NULL;
    }
    PyObject *before = PyBool_FromLong(!capture_is_off);
    capture_is_off = !on;
    return before;
}

static PyMethodDef dispatch_methods[] = {
    {"call_with_owner", (PyCFunction)(void (*)(void))py_call_with_owner,
     METH_FASTCALL | METH_KEYWORDS,
     "call_with_owner(owner, fn, /, *args, **kwargs)\n\n"
     "fn(*args, **kwargs) with `owner` capturing; with None, nobody captures."},
    {"active_owner", py_active_owner, METH_NOARGS, "The owner active in this thread, or None."},
    {"set_capturing", py_set_capturing, METH_O,
     "set_capturing(flag) -> the flag before: while it is False everything runs plain, entries too."},
    {"hook_installed", py_hook_installed, METH_NOARGS, "Is the frame hook in place just now?"},
    {NULL, NULL, 0, NULL},
};

/* ---- Dispatcher ------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Owner *owner; /* NULL: nobody captures */
    PyObject *wrapped;
    PyObject *dict;
    PyObject *weakrefs;
} Dispatcher;

static PyObject *
dispatcher_vectorcall(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Dispatcher *self = (Dispatcher *)object;
    return call_in_scope(self->owner, self->wrapped, args, nargsf, kwnames);
}

static PyObject *
dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"owner", "fn", NULL};
    PyObject *owner_object, *wrapped;
    Owner *owner;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Dispatcher", names, &owner_object,
                                     &wrapped) ||
        parse_owner(owner_object, &owner) < 0) {
        return NULL;
    }
    if (!PyCallable_Check(wrapped)) {
        PyErr_SetString(PyExc_TypeError, "fn must be callable");
        return NULL;
    }
    Dispatcher *self = (Dispatcher *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = dispatcher_vectorcall;
    self->owner = (Owner *)Py_XNewRef((PyObject *)owner);
    self->wrapped = Py_NewRef(wrapped);
    return (PyObject *)self;
}

static int
dispatcher_traverse(PyObject *object, visitproc visit, void *arg)
{
    Dispatcher *self = (Dispatcher *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->owner);
    Py_VISIT(self->wrapped);
    Py_VISIT(self->dict);
    return 0;
}

static int
dispatcher_clear(PyObject *object)
{
    Dispatcher *self = (Dispatcher *)object;
    Py_CLEAR(self->owner);
    Py_CLEAR(self->dict);
    return 0;
}

/* Bound like a function: obj.method() passes obj. */
static PyObject *
dispatcher_get(PyObject *self, PyObject *instance, PyObject *Py_UNUSED(type))
{
    if (instance == NULL || instance == Py_None) {
        return Py_NewRef(self);
    }
    return PyMethod_New(self, instance);
}

/* Copied and pickled like a function: a copy is the thing itself, a pickle its name. */
static PyObject *
dispatcher_reduce(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyObject_GetAttrString(self, "__qualname__");
}

static PyMethodDef dispatcher_methods[] = {
    {"__reduce__", dispatcher_reduce, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef dispatcher_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Dispatcher, wrapped), READONLY, NULL},
    {"owner", T_OBJECT, offsetof(Dispatcher, owner), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Dispatcher, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Dispatcher, weakrefs), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Dispatcher, vectorcall), READONLY, NULL},
    {NULL},
};

static PyGetSetDef dispatcher_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyType_Slot dispatcher_slots[] = {
    {Py_tp_doc, "Dispatcher(owner, fn)\n\nA callable that calls fn with `owner` capturing."},
    {Py_tp_new, dispatcher_new},
    {Py_tp_traverse, dispatcher_traverse},
    {Py_tp_clear, dispatcher_clear},
    {Py_tp_dealloc, object_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, dispatcher_get},
    {Py_tp_methods, dispatcher_methods},
    {Py_tp_members, dispatcher_members},
    {Py_tp_getset, dispatcher_getset},
    {0, NULL},
};

static PyType_Spec dispatcher_spec = {
    "bytecap._evalframe.Dispatcher", sizeof(Dispatcher), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, dispatcher_slots,
};

int
dispatch_init(PyObject *module)
{
    dispatcher_type = (PyTypeObject *)PyType_FromSpec(&dispatcher_spec);
    if (dispatcher_type == NULL || PyModule_AddType(module, dispatcher_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, dispatch_methods);
}
