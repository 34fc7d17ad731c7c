/* Marking code objects and looking at their entries, from Python. */
#include "evalframe.h"

/* The code object that a function is called with, of `least` to `most` arguments; NULL with a TypeError. */
static PyCodeObject *
code_argument(PyObject *const *args, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most)
{
    if (count < least || count > most || !PyCode_Check(args[0])) {
        PyErr_Format(PyExc_TypeError, "expected %zd to %zd arguments, a code object first", least, most);
        return NULL;
    }
    return (PyCodeObject *)args[0];
}

static PyObject *
set_mark(PyObject *const *args, Py_ssize_t count, int enabled, int skipped)
{
    PyCodeObject *code = code_argument(args, count, 2, 2);
    if (code == NULL) {
        return NULL;
    }
    Owner *owner = (Owner *)args[1];
    if (Py_TYPE(owner) != owner_type || owner->callback == NULL) {
        PyErr_SetString(PyExc_TypeError, "expected an Owner, or the Owner was not initialised");
        return NULL;
    }
    Mark *mark = mark_ensure(code, owner);
    if (mark == NULL) {
        return NULL;
    }
    mark->enabled = enabled;
    mark->skipped = skipped;
    Py_RETURN_NONE;
}

#define MARK_FUNCTION(name, enabled, skipped) \
    static PyObject *name(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) \
    { \
        return set_mark(args, count, enabled, skipped); \
    }
MARK_FUNCTION(py_enable, 1, 0)
MARK_FUNCTION(py_skip, 0, 1)

static PyObject *
py_disable(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyCodeObject *code = code_argument(args, count, 1, 2);
    CodeState *state = code != NULL ? code_state_ensure(code) : NULL;
    if (state == NULL) {
        return NULL;
    }
    state->disabled = count == 1 || PyObject_IsTrue(args[1]) == 1;
    Py_RETURN_NONE;
}

/* entries(code, owner | None) -> tuple: of this owner, or of all. */
static PyObject *
py_entries(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (code_argument(args, count, 1, 2) == NULL) {
        return NULL;
    }
    PyObject *owner = count == 2 ? args[1] : Py_None;
    CodeState *state = code_state_get((PyCodeObject *)args[0]);
    PyObject *found = PyList_New(0);
    for (Mark *mark = state ? state->marks : NULL; found != NULL && mark != NULL;
         mark = mark->next_of_code) {
        if (owner != Py_None && (PyObject *)mark->owner != owner) {
            continue;
        }
        Py_ssize_t end = PyList_GET_SIZE(found);
        if (PyList_SetSlice(found, end, end, mark->entries) < 0) {
            Py_CLEAR(found);
        }
    }
    PyObject *result = found != NULL ? PyList_AsTuple(found) : NULL;
    Py_XDECREF(found);
    return result;
}

/* Drops the entries (and skip marks) of one owner, or of all. What is running keeps running. */
static PyObject *
py_reset(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (code_argument(args, count, 1, 2) == NULL) {
        return NULL;
    }
    PyObject *owner = count == 2 ? args[1] : Py_None;
    CodeState *state = code_state_get((PyCodeObject *)args[0]);
    PyObject *dropped = PyList_New(0); /* freed only after the walk: freeing runs any code */
    if (dropped == NULL) {
        return NULL;
    }
    /* Nothing that the garbage collector counts is made in the walk: it may free marks. */
    for (Mark *mark = state ? state->marks : NULL; mark != NULL; mark = mark->next_of_code) {
        if (owner != Py_None && (PyObject *)mark->owner != owner) {
            continue;
        }
        Py_ssize_t end = PyList_GET_SIZE(dropped), count = PyList_GET_SIZE(mark->entries);
        if (PyList_SetSlice(dropped, end, end, mark->entries) < 0 ||
            PyList_SetSlice(mark->entries, 0, count, NULL) < 0) {
            Py_DECREF(dropped);
            return NULL;
        }
        mark->generation++;
        mark->skipped = 0;
    }
    Py_DECREF(dropped);
    Py_RETURN_NONE;
}

static PyObject *
py_remove_entry(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (code_argument(args, count, 2, 2) == NULL) {
        return NULL;
    }
    CodeState *state = code_state_get((PyCodeObject *)args[0]);
    for (Mark *mark = state ? state->marks : NULL; mark != NULL; mark = mark->next_of_code) {
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(mark->entries); i++) {
            if (PyList_GET_ITEM(mark->entries, i) == args[1]) {
                mark->generation++;
                if (PyList_SetSlice(mark->entries, i, i + 1, NULL) < 0) {
                    return NULL;
                }
                Py_RETURN_TRUE;
            }
        }
    }
    Py_RETURN_FALSE;
}

static PyObject *
py_status(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (code_argument(args, count, 2, 2) == NULL) {
        return NULL;
    }
    CodeState *state = code_state_get((PyCodeObject *)args[0]);
    Mark *mark = state != NULL ? mark_find(state, (Owner *)args[1]) : NULL;
    const char *status = "unmarked";
    if (state != NULL && state->disabled) {
        status = "disabled";
    } else if (mark != NULL && mark->skipped) {
        status = "skipped";
    } else if (mark != NULL && mark->enabled) {
        status = "enabled";
    }
    return PyUnicode_FromString(status);
}

#define FASTCALL(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL

PyMethodDef code_methods[] = {
    {"enable", FASTCALL(py_enable),
     "enable(code, owner)\n\nCapture frames of the code in scopes of the owner; takes a skip mark back."},
    {"skip", FASTCALL(py_skip),
     "skip(code, owner)\n\nRun frames of the code plain for ever, for this owner; what they call may still be "
     "captured."},
    {"disable", FASTCALL(py_disable),
     "disable(code, flag=True)\n\nNobody captures the code, nor anything that it calls, while the flag stands."},
    {"entries", FASTCALL(py_entries),
     "entries(code, owner=None) -> tuple\n\nThose of the owner (None: of all), the one that hit last first."},
    {"reset", FASTCALL(py_reset),
     "reset(code, owner=None)\n\nDrop entries and skip marks. Frames that run an entry finish undisturbed."},
    {"remove_entry", FASTCALL(py_remove_entry),
     "remove_entry(code, entry) -> bool\n\nDrop one entry; says whether it was there."},
    {"status", FASTCALL(py_status),
     "status(code, owner) -> 'unmarked' | 'enabled' | 'skipped' | 'disabled'"},
    {NULL, NULL, 0, NULL},
};
