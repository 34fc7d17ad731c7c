/* GuardProgram: the Python type round nodes and checks. */
#include "guards.h"
#include <structmember.h>

PyTypeObject *guard_program_type;


static PyObject *
program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nodes", "symbol_count", "guards", "inputs", NULL};
    PyObject *nodes, *guards = Py_None, *none = PyTuple_New(0), *inputs = none;
    Py_ssize_t symbols = 0;
    if (none == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "O!|nOO!:GuardProgram", names, &PyTuple_Type, &nodes,
                                                     &symbols, &guards, &PyTuple_Type, &inputs)) {
        Py_XDECREF(none);
        return NULL;
    }
    GuardProgram *self = (GuardProgram *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_DECREF(none);
        return NULL;
    }
    self->symbol_count = symbols;
    self->guards = Py_NewRef(guards);
    self->spec = PyTuple_Pack(2, nodes, inputs);
    Py_DECREF(none);
    if (symbols < 0) {
        PyErr_SetString(PyExc_ValueError, "a negative number of symbols");
    }
    if (symbols < 0 || self->spec == NULL ||
        guard_program_build(self, nodes, inputs) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
program_traverse(PyObject *object, visitproc visit, void *arg)
{
    GuardProgram *self = (GuardProgram *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->spec);
    Py_VISIT(self->guards);
    return 0;
}

static int
program_clear(PyObject *object)
{
    GuardProgram *self = (GuardProgram *)object;
    /* Nodes borrow from `spec`; run_program refuses a program without one. */
    guard_program_free_parts(self);
    self->node_count = self->check_count = self->input_count = 0;
    Py_CLEAR(self->spec);
    Py_CLEAR(self->guards);
    return 0;
}

/* ---- from Python ----------------------------------------------------------------------- */

static int
scope_of(PyObject *object, Scope *scope)
{
    memset(scope, 0, sizeof *scope);
    if (Py_TYPE(object) == frame_view_type) {
        scope->named_locals = PyStructSequence_GET_ITEM(object, VIEW_LOCALS);
        scope->function = PyStructSequence_GET_ITEM(object, VIEW_FUNCTION);
        scope->globals = PyStructSequence_GET_ITEM(object, VIEW_GLOBALS);
        scope->builtins = PyStructSequence_GET_ITEM(object, VIEW_BUILTINS);
        scope->cells = PyStructSequence_GET_ITEM(object, VIEW_CELLS);
        scope->code = (PyCodeObject *)PyStructSequence_GET_ITEM(object, VIEW_CODE);
        return 0;
    }
    if (PyDict_Check(object)) {
        scope->named_locals = object;
        return 0;
    }
    PyErr_SetString(PyExc_TypeError, "expected a FrameView or a dict of locals");
    return -1;
}

static PyObject *
program_check(PyObject *self, PyObject *object)
{
    Scope scope;
    if (scope_of(object, &scope) < 0) {
        return NULL;
    }
    return PyBool_FromLong(guard_program_run((GuardProgram *)self, &scope, NULL, NULL));
}

/* failure(scope) -> None | (guard index, found, value) */
static PyObject *
program_failure(PyObject *self, PyObject *object)
{
    Scope scope;
    Failure failure = {-1, NULL};
    if (scope_of(object, &scope) < 0) {
        return NULL;
    }
    if (guard_program_run((GuardProgram *)self, &scope, &failure, NULL)) {
        Py_RETURN_NONE;
    }
    PyObject *value = failure.value != NULL ? failure.value : Py_NewRef(Py_None);
    return Py_BuildValue("(iNN)", failure.guard, PyBool_FromLong(failure.value != NULL), value);
}

/* inputs(scope) -> tuple of the inputs' values, or None when the guards do not hold */
static PyObject *
program_inputs(PyObject *self, PyObject *object)
{
    Scope scope;
    PyObject *inputs = NULL;
    if (scope_of(object, &scope) < 0) {
        return NULL;
    }
    return guard_program_run((GuardProgram *)self, &scope, NULL, &inputs) ? inputs
                                                                           : Py_NewRef(Py_None);
}

/* values(scope, missing) -> tuple: every node's value, without any check */
static PyObject *
program_values(PyObject *object, PyObject *args)
{
    GuardProgram *self = (GuardProgram *)object;
    PyObject *where, *missing;
    Scope scope;
    if (!PyArg_ParseTuple(args, "OO", &where, &missing) || scope_of(where, &scope) < 0) {
        return NULL;
    }
    PyObject *found = PyTuple_New(self->node_count);
    for (int i = 0; found != NULL && i < self->node_count; i++) {
        Node *node = &self->nodes[i];
        PyObject *parent = node->parent < 0 ? NULL : PyTuple_GET_ITEM(found, node->parent);
        PyObject *value = NULL;
        int owned = 0;
        int known = parent != missing && fetch_node(node, parent, &scope, &value, &owned);
        value = known ? value : missing;
        PyTuple_SET_ITEM(found, i, known && owned ? value : Py_NewRef(value));
    }
    return found;
}

static PyMethodDef program_methods[] = {
    {"check", program_check, METH_O, "check(frame_view or dict of locals) -> bool"},
    {"failure", program_failure, METH_O,
     "failure(scope) -> None or (guard index, value was found, value)"},
    {"inputs", program_inputs, METH_O,
     "inputs(scope) -> tuple of the inputs' values, or None when the guards do not hold"},
    {"values", program_values, METH_VARARGS, "values(scope, missing) -> tuple, node by node"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef program_members[] = {
    {"guards", T_OBJECT, offsetof(GuardProgram, guards), READONLY, NULL},
    {"spec", T_OBJECT, offsetof(GuardProgram, spec), READONLY, "(nodes, inputs)"},
    {"node_count", T_INT, offsetof(GuardProgram, node_count), READONLY, NULL},
    {"input_count", T_INT, offsetof(GuardProgram, input_count), READONLY, NULL},
    {"replays", T_PYSSIZET, offsetof(GuardProgram, replays), READONLY,
     "runs that the present recording answered"},
    {NULL},
};

static PyType_Slot program_slots[] = {
    {Py_tp_doc, "GuardProgram(nodes, symbol_count=0, guards=None, inputs=())"},
    {Py_tp_new, program_new},
    {Py_tp_traverse, program_traverse},
    {Py_tp_clear, program_clear},
    {Py_tp_dealloc, object_dealloc},
    {Py_tp_methods, program_methods},
    {Py_tp_members, program_members},
    {0, NULL},
};

static PyType_Spec program_spec = {
    "bytecap._evalframe.GuardProgram", sizeof(GuardProgram), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, program_slots,
};

int
guard_program_init(PyObject *module)
{
    guard_program_type = (PyTypeObject *)PyType_FromSpec(&program_spec);
    if (guard_program_type == NULL || PyModule_AddType(module, guard_program_type) < 0) {
        return -1;
    }
    return torch_state_init(module) < 0 || tensor_init(module) < 0 ? -1 : relation_init(module);
}
